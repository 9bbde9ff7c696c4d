"""Losses of labels, against scikit-learn's."""

import numpy as np
import torch
from sklearn.metrics import hamming_loss as peer_hamming_loss
from sklearn.metrics import jaccard_score

from pyro_structured.fields.ops.label_losses import hamming_loss, intersection_over_union, intersection_over_union_loss


def test_against_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    labels, truth = (torch.rand(2, 50, 3, 4, generator=generator) < torch.rand(50, 1, 1, generator=generator)).double()
    labels[:2], truth[1:3] = 0.0, 0.0
    rows = [(a.flatten().numpy(), b.flatten().numpy()) for a, b in zip(labels, truth, strict=True)]
    expected = [jaccard_score(b, a, zero_division=1.0) for a, b in rows]
    np.testing.assert_allclose(intersection_over_union(labels, truth), expected)
    np.testing.assert_allclose(intersection_over_union_loss(labels, truth), 1 - np.array(expected))
    np.testing.assert_allclose(hamming_loss(labels, truth), [peer_hamming_loss(b, a) for a, b in rows])
    assert intersection_over_union(labels, truth)[1] == 1
    # Labels of other types, in numbers of the default type.
    for dtype in (torch.bool, torch.uint8, torch.long):
        pair = labels.to(dtype), truth.to(dtype)
        assert intersection_over_union(*pair).dtype == hamming_loss(*pair).dtype == torch.float32
        np.testing.assert_allclose(intersection_over_union(*pair), expected, rtol=1e-6)
        np.testing.assert_allclose(hamming_loss(*pair), hamming_loss(labels, truth), rtol=1e-6)
    # Samples of vectors with one truth.
    vectors = labels.reshape(5, 10, 12)
    assert hamming_loss(vectors, vectors[0], 1).shape == (5, 10) and not hamming_loss(vectors, vectors[0], 1)[0].any()
