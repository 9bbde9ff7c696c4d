"""Patterns that are clusters of masks."""

import numpy as np
import pytest
import torch

from pyro_structured.datasets import ellipse_figures
from pyro_structured.distributions import PatternCRF
from pyro_structured.models import clustered_patterns
from pyro_structured.structures import Grid


def test_a_field_of_clusters_is_their_mixture():
    masks = ellipse_figures(2, 60, seed=0)[:, ::2, ::2]
    weights, biases = clustered_patterns(masks, 5, random_state=0)
    assert weights.shape == (5, 16, 16)
    field = PatternCRF(torch.zeros(16, 16).double(), None, weights, biases, Grid(16, 16), "min")
    probs = weights.sigmoid()
    shares = (biases - (1 - probs).log().sum((1, 2))).exp()
    assert shares.sum() == pytest.approx(1)
    # Shares are multiples of one mask, and smoothed shares of pixels fit them.
    counts = shares * 60
    torch.testing.assert_close(counts, counts.round())
    ones = probs * (counts + 1)[:, None, None] - 0.5
    torch.testing.assert_close(ones, ones.round(), atol=1e-9, rtol=0)
    torch.testing.assert_close(ones.sum(0), torch.from_numpy(masks.sum(0)).double())
    assert float(field.log_partition_function) == pytest.approx(0, abs=1e-10)
    values = torch.from_numpy(masks[:7]).double()
    each = (values.unsqueeze(1) * probs.log() + (1 - values.unsqueeze(1)) * (1 - probs).log()).sum((2, 3))
    torch.testing.assert_close(field.log_prob(values), (each + shares.log()).logsumexp(1))


def test_separate_clusters_are_found():
    shapes = np.zeros((3, 4, 4))
    shapes[0, :2], shapes[1, 2:], shapes[2, :, :2] = 1, 1, 1
    label = np.repeat(np.arange(3), (20, 30, 50))
    weights, biases = clustered_patterns(shapes[label], 3, random_state=1)
    order = (biases - torch.nn.functional.logsigmoid(-weights).sum((1, 2))).argsort()
    np.testing.assert_array_equal((weights > 0).numpy()[order], shapes > 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masks": np.zeros((3, 4))}, r"masks: expected shape \(N, H, W\), got \(3, 4\)"),
        ({"masks": np.full((3, 2, 2), 2)}, "masks: expected zeros and ones"),
        ({"n_patterns": 0}, "n_patterns: expected"),
        ({"n_patterns": 3}, "n_patterns: expected at most 2, the number of different masks, got 3"),
        ({"random_state": -1}, "random_state: expected None, an integer .*, got -1"),
        ({"random_state": "a"}, "random_state: expected None, an integer .*, got 'a'"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {"masks": np.array([[[0, 1]], [[0, 1]], [[1, 1]]]), "n_patterns": 2, "random_state": 0} | change
    with pytest.raises(ValueError, match=message):
        clustered_patterns(**arguments)
