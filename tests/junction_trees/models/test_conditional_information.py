"""Information of labels about each other, given features and other labels."""

import io
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from tqdm import tqdm

from pyro_structured.junction_trees.models.conditional_information import (
    FOLDS,
    ConditionalScore,
    PairScore,
    ShownScore,
    dealt_rows,
    held_out_logits,
)
from pyro_structured.junction_trees.models.crf_training import FieldData, FieldOptions

OPTIONS = FieldOptions(l2=1.0, l1=0.0, tol=1e-8, max_iter=1000)


def rows(number, seed=0, sizes=(2, 2, 2), strength=1.5):
    """A chain of labels, all of which depend on the first feature too."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(number, 2))
    y = np.zeros((number, len(sizes)), dtype=int)
    for d, size in enumerate(sizes):
        logits = X[:, :1] * np.arange(size)
        if d:
            logits = logits + strength * (y[:, d - 1 : d] % size == np.arange(size))
        y[:, d] = (logits + rng.gumbel(size=(number, size))).argmax(1)
    return data_of(X, y)


def data_of(X, y, weights=None):
    known = torch.ones(y.shape, dtype=torch.bool)
    weights = torch.ones(len(y)).double() if weights is None else weights
    return FieldData(torch.as_tensor(X), torch.as_tensor(y), known, weights)


def score_of(data, penalty=0.0):
    sizes = (data.labels.max(0).values + 1).tolist()
    return ConditionalScore(held_out_logits(*dealt_rows(data), sizes, torch.nn.Identity(), OPTIONS), data, penalty)


def test_a_row_of_integer_weight_is_dealt_as_so_many_rows():
    weights = torch.tensor([3.0, 1.0, 7.0], dtype=torch.double)
    data = FieldData(torch.arange(3.0).double()[:, None], torch.zeros(3, 1).long(), torch.ones(3, 1).bool(), weights)
    rows, folds = dealt_rows(data._replace(weights=weights))
    expected = torch.arange(11) % 5
    place = torch.arange(3).repeat_interleave(weights.long())
    for row in range(3):
        for fold in range(5):
            chosen = (rows.inputs[:, 0] == row) & (folds == fold)
            assert rows.weights[chosen].sum() == ((place == row) & (expected == fold)).sum()
    assert rows.weights.sum() == 11 and len(rows.weights) == 9
    rows, folds = dealt_rows(data._replace(weights=weights / 2))
    assert folds.tolist() == [0, 1, 2] and torch.equal(rows.weights, weights / 2)


def test_held_out_logits_are_those_of_logistic_regressions_on_other_rows():
    data = rows(203, sizes=(2, 3))
    found = held_out_logits(*dealt_rows(data), [2, 3], torch.nn.Identity(), OPTIONS)
    split = PredefinedSplit(np.arange(203) % FOLDS)
    for d, logits in enumerate(found):
        peer = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000)
        expected = cross_val_predict(peer, data.inputs, data.labels[:, d], cv=split, method="predict_log_proba")
        np.testing.assert_allclose(logits, expected[:, 1:] - expected[:, :1], atol=1e-4)


def true_information(number=10**6, strength=1.5):
    """Information of the first two labels, by their exact probabilities given many draws of the features."""
    x = torch.from_numpy(np.random.default_rng(1).normal(size=number))
    first = torch.stack([torch.zeros_like(x), x], -1).log_softmax(-1)
    hit = strength * torch.eye(2, dtype=torch.double)
    second = (torch.stack([torch.zeros_like(x), x], -1).unsqueeze(1) + hit).log_softmax(-1)
    joint = first.unsqueeze(-1) + second
    both = joint.logsumexp(1, keepdim=True) + joint.logsumexp(2, keepdim=True)
    return float((joint.exp() * (joint - both)).sum((1, 2)).mean())


def test_information_of_neighbours():
    number = 20_000
    gains = score_of(rows(number)).pair_gains() / number
    assert gains[0, 1] == pytest.approx(true_information(), rel=0.1)
    np.testing.assert_array_equal(gains, gains.T)
    assert not gains.diagonal().any()


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 3)])
def test_neighbours_separate(sizes):
    """The ends of a chain depend on each other, also given the features, but not given the label in the middle."""
    score = score_of(rows(5000, sizes=sizes, strength=3.0))
    free = (sizes[0] - 1) * (sizes[2] - 1)
    assert score.gain((0, 2), frozenset()) > 20 * free
    # Twice this is about chi-square.
    assert -2 < score.gain((0, 2), frozenset([1])) < 5 * free
    assert score.gain((0, 1), frozenset([2])) > 100


def test_features_explain():
    """Labels that have nothing in common but a feature."""
    data = rows(5000, strength=0.0)
    counts = torch.einsum("ni,nj->ij", *[torch.nn.functional.one_hot(data.labels[:, d]).double() for d in (0, 1)])
    assert float(counts[0, 0] * counts[1, 1] / (counts[0, 1] * counts[1, 0])) > 1.3
    assert (score_of(data, penalty=1.0).pair_gains() == 0).all()


def test_penalty_and_cache():
    data = rows(500, sizes=(3, 2, 2))
    free, charged = score_of(data), score_of(data, penalty=0.5)
    gains = charged.pair_gains()
    for one, other, degrees in [(0, 1, 2), (1, 2, 1)]:
        alone = free.gain((one, other), frozenset())
        assert charged.gain((one, other), frozenset()) == pytest.approx(alone - 0.25 * math.log(500) * degrees)
        assert gains[one, other] == pytest.approx(max(charged.gain((one, other), frozenset()), 0))
        assert score_of(data, penalty=0.5).gain((one, other), frozenset()) == pytest.approx(
            charged.gain((one, other), frozenset())
        )


def test_weights_are_copies_and_missing_labels_do_not_count():
    data = rows(300)
    logits = held_out_logits(*dealt_rows(data), [2, 2, 2], torch.nn.Identity(), OPTIONS)
    weights = torch.arange(300) % 3
    copies = torch.arange(300).repeat_interleave(weights)
    known = data.known.clone()
    known[weights == 0, 1] = False
    expected = ConditionalScore([each[copies] for each in logits], data.part(copies), 0.0)
    weighted = ConditionalScore(logits, data._replace(weights=weights.double()), 0.0)
    missing = ConditionalScore(logits, data._replace(known=known, weights=weights.clamp(min=1).double()), 0.0)
    wanted = expected.gain((0, 1), frozenset([2]))
    assert weighted.gain((0, 1), frozenset([2])) == pytest.approx(wanted)
    assert missing.gain((0, 1), frozenset([2])) == pytest.approx(wanted)
    assert missing.gain((0, 2), frozenset([1])) == pytest.approx(expected.gain((0, 2), frozenset([1])))


def test_constant_labels_have_no_information():
    data = rows(100)
    data.labels[:, 1] = 0
    score = ConditionalScore(held_out_logits(*dealt_rows(data), [2, 1, 2], torch.nn.Identity(), OPTIONS), data, 0.0)
    gains = score.pair_gains()
    assert not gains[1].any() and gains[0, 2] > 0


def test_pairs_whatever_the_neighbours():
    score = PairScore(np.array([[0.0, 2.0], [2.0, 0.0]]))
    assert score.gain((0, 1), frozenset()) == score.gain((0, 1), frozenset([2])) == 2.0


def test_progress():
    shown = io.StringIO()
    with tqdm(unit="gain", file=shown) as bar:
        score = ShownScore(PairScore(np.array([[0.0, 2.0], [2.0, 0.0]])), bar)
        assert [score.gain((0, 1), frozenset()) for _ in range(3)] == [2.0] * 3
    assert "3gain" in shown.getvalue()
