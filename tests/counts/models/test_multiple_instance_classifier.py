"""A classifier of bags against sums over all instances, closed forms and scikit-learn's conventions."""

import copy
import math
import pickle

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.counts.models.bags import Bags
from pyro_structured.models import MultipleInstanceClassifier

RNG = np.random.default_rng(0)
SIZES = RNG.integers(1, 7, size=80)
BAG = RNG.permutation(np.repeat(RNG.permutation(200)[:80] * 3, SIZES))
X = RNG.normal(size=(len(BAG), 3)) * [1.0, 5.0, 0.1] + [0.0, 3.0, 1.0]
POSITIVE = X[:, 0] > 0.8
ANY = np.isin(BAG, BAG[POSITIVE])
NAMES = np.unique(BAG)
# Values of the first label, or of the third, or none of both: always the same number in a bag.
THREE = np.array(["one", "three", "two"])[BAG // 3 % 3]
LAWS = {
    "noisy_or": {"strength": 0.8, "leak": 0.05},
    "normal": {"fraction": 0.7, "scale": 0.3},
    "at_least": {"fraction": 0.5},
    "exactly": {"count": 1},
    "learned": {"fraction": 0.6, "scale": 0.4},
}


def curve(size):
    """Three laws."""
    share = torch.arange(size + 1) / size
    return torch.stack([-share, (share - 0.5).square(), share.cos()])


def of_bags(values):
    """The value of each bag."""
    return np.array([values[bag == BAG][0] for bag in NAMES])


def law_by_hand(name, size, tables):
    counts = np.arange(size + 1.0)
    if name == "noisy_or":
        off = 0.95 * 0.2**counts
        return np.log([off, 1 - off])
    if name == "normal":
        return -(np.stack([counts / size, counts / size - 0.7]) ** 2) / (2 * 0.09)
    if name == "learned":
        # Straight lines between nine numbers, which bags of 24 instances have at every third count.
        return np.stack([np.interp(counts / size, np.linspace(0, 1, 9), table[::3]) for table in tables])
    positive = counts >= size / 2 if name == "at_least" else counts == 1
    positive &= counts >= 1
    return np.log(
        np.stack([~positive, positive]), where=np.stack([~positive, positive]), out=np.full((2, size + 1), -np.inf)
    )


def enumerated(scores, law):
    """Weights of labels and of their positive instances, shapes (T,) and (T, D), by all vectors."""
    vectors = np.array(np.meshgrid(*[[0, 1]] * len(scores))).reshape(len(scores), -1).T
    joint = np.exp(law[:, vectors.sum(1)] + vectors @ scores)
    return joint.sum(1), joint @ vectors


def scores_of(estimator, rows):
    """Standardised by hand."""
    return ((rows - X.mean(0)) / X.std(0)).clip(-5, 5) @ estimator.coef_.T + estimator.intercept_


@parametrize_with_checks([MultipleInstanceClassifier(tol=1e-2)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("several", [False, True], ids=["two classes", "three classes"])
@pytest.mark.parametrize("name", LAWS)
def test_equals_enumeration(name, several):
    """Probabilities of classes, and of instances with and without labels, in bags of several sizes."""
    y = THREE if several else ANY
    estimator = MultipleInstanceClassifier(law=name, max_iter=3, tol=0.0, **LAWS[name])
    with pytest.warns(ConvergenceWarning, match="there is no convergence after 3 iterations"):
        estimator.fit(X, y, BAG)
    scores = scores_of(estimator, X)
    proba, log_proba = estimator.predict_proba(X, BAG), estimator.predict_log_proba(X, BAG)
    free, given = estimator.predict_instance_proba(X, BAG), estimator.predict_instance_proba(X, BAG, y)
    if not several:
        free, given = free[:, None], given[:, None]
    for place, bag in enumerate(NAMES):
        rows = np.flatnonzero(bag == BAG)
        law = law_by_hand(name, len(rows), estimator.law_tables(24))
        sums = [enumerated(column, law) for column in scores[rows].T]
        odds = np.array([weights[1] / weights[0] for weights, _ in sums])
        expected = odds / odds.sum() if several else np.array([1, odds[0]]) / (1 + odds[0])
        np.testing.assert_allclose(proba[place], expected, atol=1e-10)
        np.testing.assert_allclose(log_proba[place], np.log(expected), rtol=1e-9, atol=1e-10)
        label = np.flatnonzero(estimator.classes_ == y[rows[0]])[0]
        for column, (weights, instances) in enumerate(sums):
            posteriors = instances / weights[:, None]
            share = expected[column] if several else expected[1]
            np.testing.assert_allclose(free[rows, column], [1 - share, share] @ posteriors, atol=1e-10)
            positive = label == column if several else label
            np.testing.assert_allclose(given[rows, column], posteriors[int(positive)], atol=1e-10)
    assert (estimator.predict(X, BAG) == estimator.classes_[proba.argmax(1)]).all()
    assert estimator.score(X, y, BAG) == (estimator.predict(X, BAG) == of_bags(y)).mean()
    labels = estimator.to_pyro(X, BAG)
    if several:
        assert labels.batch_shape == (3, 80)
        np.testing.assert_allclose((labels.logits[..., 1] - labels.logits[..., 0]).softmax(0).T, proba, atol=1e-10)
    else:
        np.testing.assert_allclose(labels.probs, proba, atol=1e-12)


@pytest.mark.parametrize("kind", ["callable", "tensor", "array"])
def test_laws_with_a_table_for_each_class(kind):
    law = curve if kind == "callable" else curve(6) if kind == "tensor" else curve(6).numpy()
    estimator = MultipleInstanceClassifier(law=law).fit(X, THREE, BAG)
    scores = scores_of(estimator, X)
    assert scores.shape == (len(X), 1)
    proba, instances = estimator.predict_proba(X, BAG), estimator.predict_instance_proba(X, BAG)
    for place, bag in enumerate(NAMES):
        rows = np.flatnonzero(bag == BAG)
        table = curve(len(rows) if kind == "callable" else 6)[:, : len(rows) + 1]
        weights, positive = enumerated(scores[rows, 0], table.numpy())
        np.testing.assert_allclose(proba[place], weights / weights.sum(), atol=1e-7)
        np.testing.assert_allclose(instances[rows], positive.sum(0) / weights.sum(), atol=1e-7)
    assert estimator.to_pyro(X, BAG).probs.shape == (80, 3)


def test_noisy_or_has_a_closed_form():
    estimator = MultipleInstanceClassifier(strength=0.7, leak=0.02).fit(X, ANY, BAG)
    failed = np.log1p(-0.7 / (1 + np.exp(-scores_of(estimator, X)[:, 0])))
    expected = math.log1p(-0.02) + np.array([failed[bag == BAG].sum() for bag in NAMES])
    np.testing.assert_allclose(estimator.predict_log_proba(X, BAG)[:, 0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("y", [ANY, THREE], ids=["two classes", "three classes"])
def test_single_rows_are_logistic_regression(y):
    identity = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
    found = MultipleInstanceClassifier(law=identity, l2=0.5, tol=1e-8).fit(X, y)
    peer = LogisticRegression(C=2.0, tol=1e-10, max_iter=1000).fit(StandardScaler().fit_transform(X), y)
    expected = peer.predict_proba(StandardScaler().fit_transform(X))
    np.testing.assert_allclose(found.predict_proba(X), expected, atol=1e-5)
    np.testing.assert_allclose(found.coef_, peer.coef_, atol=1e-5)


def test_l1_gives_exact_zeros():
    """Conditions of a minimum: slopes of weights that are zero are at most l1; of others, exactly so."""
    estimator = MultipleInstanceClassifier(l1=4.0, l2=0.0, tol=1e-8).fit(X, ANY, BAG)
    zero = estimator.coef_[0] == 0
    assert zero.tolist() == [False, True, True]
    weights = torch.from_numpy(estimator.coef_[0].copy()).requires_grad_()
    inputs = torch.from_numpy((X - X.mean(0)) / X.std(0))
    off = torch.log1p(-0.9 * (inputs @ weights + float(estimator.intercept_[0])).sigmoid())
    off = math.log(0.99) + torch.stack([off[torch.from_numpy(bag == BAG)].sum() for bag in NAMES])
    labels = torch.from_numpy(of_bags(ANY))
    (-torch.where(labels, torch.log(-torch.expm1(off)), off).sum()).backward()
    slopes = weights.grad.numpy()
    np.testing.assert_allclose(slopes[~zero], -4.0 * np.sign(estimator.coef_[0][~zero]), atol=1e-5)
    assert (np.abs(slopes[zero]) < 4.0).all()


def test_positive_instances_are_found():
    estimator = MultipleInstanceClassifier(l2=0.1).fit(X, ANY, BAG)
    found = estimator.predict_instance_proba(X, BAG, ANY) > 0.5
    assert (found == POSITIVE).mean() > 0.95
    assert estimator.score(X, ANY, BAG) > 0.95


def test_a_learned_law_is_the_one_of_the_data():
    """Bags are positive where half of the instances are; the odds of the learned law rise there."""
    rng = np.random.default_rng(1)
    rows, bags = rng.normal(size=(1600, 2)), np.arange(1600) // 8
    y = (rows[:, 0] > 0).reshape(200, 8).mean(1).repeat(8) > 0.5
    learned = MultipleInstanceClassifier(law="learned", fraction=1.0, scale=0.5).fit(rows, y, bags)
    tables = learned.law_tables(8)
    odds = tables[1] - tables[0]
    assert odds[:4].max() < 0 < odds[5:].min()
    start = MultipleInstanceClassifier(law="normal", fraction=1.0, scale=0.5).fit(rows, y, bags)
    gain = learned.predict_log_proba(rows, bags) - start.predict_log_proba(rows, bags)
    assert np.take_along_axis(gain, y[::8, None].astype(int), 1).mean() > 0
    np.testing.assert_allclose(start.law_tables(4)[1], -(np.linspace(-1, 0, 5) ** 2) / (2 * 0.25), atol=1e-12)


def test_results_do_not_depend_on_the_order_of_rows():
    order = np.random.default_rng(1).permutation(len(X))
    first = MultipleInstanceClassifier().fit(X, ANY, BAG)
    second = MultipleInstanceClassifier().fit(X[order], ANY[order], BAG[order].astype(str))
    expected = first.predict_proba(X, BAG)[np.argsort(NAMES.astype(str))]
    np.testing.assert_allclose(second.predict_proba(X, BAG.astype(str)), expected, atol=1e-7)
    np.testing.assert_allclose(
        second.predict_instance_proba(X[order], BAG[order]), first.predict_instance_proba(X, BAG)[order], atol=1e-7
    )


def test_bags_are_padded_with_those_of_similar_size(monkeypatch):
    expected = MultipleInstanceClassifier(law="learned").fit(X, ANY, BAG)
    monkeypatch.setattr("pyro_structured.counts.models.bags.MANY_PLACES", 0)
    blocks = list(Bags(BAG, len(BAG)).blocks())
    assert [np.unique(Bags(BAG, len(BAG)).sizes[block]).tolist() for block in blocks] == [[1], [2], [3, 4], [5, 6]]
    found = MultipleInstanceClassifier(law="learned").fit(X, ANY, BAG)
    np.testing.assert_allclose(found.predict_proba(X, BAG), expected.predict_proba(X, BAG), atol=1e-6)
    np.testing.assert_allclose(found.predict_instance_proba(X, BAG), expected.predict_instance_proba(X, BAG), atol=1e-6)


def test_weights_are_those_of_bags():
    times = np.random.default_rng(2).integers(3, size=len(NAMES))
    weights = times[np.searchsorted(NAMES, BAG)]
    copies = [np.flatnonzero(weights > number) for number in range(2)]
    rows = np.concatenate(copies)
    bags = np.concatenate([BAG[part] + 1000 * number for number, part in enumerate(copies)])
    expected = MultipleInstanceClassifier(tol=1e-7).fit(X[rows], ANY[rows], bags)
    found = MultipleInstanceClassifier(tol=1e-7).fit(X, ANY, BAG, sample_weight=weights)
    np.testing.assert_allclose(found.predict_proba(X, BAG), expected.predict_proba(X, BAG), atol=1e-5)
    right = found.predict(X, BAG) == of_bags(ANY)
    assert found.score(X, ANY, BAG, weights) == pytest.approx(np.average(right, weights=times))


def test_batches_of_bags():
    """Adam nears the minimum that L-BFGS finds; the same seed, the same weights; L1 gives exact zeros."""
    full = MultipleInstanceClassifier(l2=0.5).fit(X, ANY, BAG)
    estimator = MultipleInstanceClassifier(l2=0.5, batch_size=16, learning_rate=0.2, max_iter=20, random_state=0)
    found = clone(estimator).fit(X, ANY, BAG)
    assert found.n_iter_ == 20
    np.testing.assert_allclose(found.predict_proba(X, BAG), full.predict_proba(X, BAG), atol=0.05)
    estimator.set_params(max_iter=2)
    np.testing.assert_array_equal(clone(estimator).fit(X, ANY, BAG).coef_, clone(estimator).fit(X, ANY, BAG).coef_)
    sparse = clone(estimator).set_params(l1=5.0, l2=0.0, max_iter=10).fit(X, ANY, BAG)
    assert sparse.coef_[0, 0] != 0 and (sparse.coef_[0, 1:] == 0).all()
    parts = list(Bags(BAG, len(BAG)).batches(16, np.random.RandomState(0)))
    assert sorted(np.concatenate(parts)) == list(range(80)) and all(len(part) == 16 for part in parts)
    spread = [np.ptp(Bags(BAG, len(BAG)).sizes[part]) for part in parts]
    assert max(spread) <= 2


def test_a_module_is_trained():
    """Positive instances are those far from the middle, which no linear score tells."""
    rng = np.random.default_rng(3)
    rows, bags = rng.normal(size=(300, 2)), np.arange(300) // 3
    far = np.abs(rows[:, 0]) > 1.5
    y = np.isin(bags, bags[far])
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    before = copy.deepcopy(module.state_dict())
    estimator = MultipleInstanceClassifier(module=module, l2=0.02, tol=1e-3).fit(rows, y, bags)
    assert estimator.score(rows, y, bags) > 0.95 > MultipleInstanceClassifier().fit(rows, y, bags).score(rows, y, bags)
    assert ((estimator.predict_instance_proba(rows, bags) > 0.5) == far).mean() > 0.95
    assert all(bool((before[name] == value).all()) for name, value in module.state_dict().items())
    module[0].requires_grad_(False)
    frozen = MultipleInstanceClassifier(module=module, max_iter=3, tol=1.0).fit(rows, y, bags).module_
    torch.testing.assert_close(frozen[0].weight, module[0].weight.double())
    three = MultipleInstanceClassifier(module=torch.nn.Linear(2, 3), law="normal", tol=1e-2)
    assert three.fit(rows, np.arange(100).repeat(3) % 3, bags).predict_proba(rows, bags).shape == (100, 3)


@pytest.mark.parametrize("options", [{}, {"batch_size": 20, "learning_rate": 0.5, "random_state": 0}])
@pytest.mark.filterwarnings("ignore:there is no convergence")
def test_the_best_iteration_for_validation_bags_is_kept(options):
    train, other = BAG % 2 == 0, BAG % 2 == 1
    noisy = of_bags(np.random.default_rng(4).random(len(X)) < 0.5)[np.searchsorted(NAMES, BAG)]
    validation = {"X_val": X[other], "y_val": noisy[other], "groups_val": BAG[other]}
    losses = []
    for max_iter in range(1, 7):
        each = MultipleInstanceClassifier(l2=0.0, max_iter=max_iter, **options).fit(X[train], noisy[train], BAG[train])
        right = np.searchsorted(each.classes_, of_bags(noisy)[NAMES % 2 == 1])
        losses.append(-np.take_along_axis(each.predict_log_proba(X[other], BAG[other]), right[:, None], 1).mean())
    kept = MultipleInstanceClassifier(l2=0.0, max_iter=6, **options).fit(
        X[train], noisy[train], BAG[train], **validation
    )
    found = -np.take_along_axis(kept.predict_log_proba(X[other], BAG[other]), right[:, None], 1).mean()
    assert found == pytest.approx(min(losses), abs=1e-9) and found < losses[-1]


def test_metadata_routing():
    """Bags stay together in folds, and reach fit and score."""
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = MultipleInstanceClassifier(max_iter=20, tol=1e-2)
        estimator = estimator.set_fit_request(groups=True).set_score_request(groups=True)
        search = GridSearchCV(estimator, {"l2": [0.1, 1e4]}, cv=GroupKFold(3), error_score="raise")
        search.fit(X, ANY, groups=BAG)
    assert search.best_params_ == {"l2": 0.1} and search.best_score_ > 0.9


def test_copies_and_representations():
    estimator = MultipleInstanceClassifier(law="normal").fit(X, ANY, BAG)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(again.predict_proba(X, BAG), estimator.predict_proba(X, BAG))
    with torch.inference_mode():
        np.testing.assert_array_equal(clone(estimator).fit(X, ANY, BAG).coef_, estimator.coef_)


@pytest.mark.parametrize("options", [{}, {"batch_size": 8}])
def test_interrupts_keep_the_last_iteration(options, monkeypatch):
    calls = []

    def interrupt(self, vector):
        calls.append(vector)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("pyro_structured.counts.models.multiple_instance_classifier._Best.__call__", interrupt)
    with pytest.warns(ConvergenceWarning, match="it was interrupted after 3"):
        estimator = MultipleInstanceClassifier(**options).fit(X, ANY, BAG)
    assert estimator.n_iter_ == 3 and np.isfinite(estimator.predict_proba(X, BAG)).all()


FIRST = np.arange(len(X)) == np.flatnonzero(BAG == NAMES[7])[0]
TABLE = torch.tensor([[0.0] * 7, [-math.inf] * 7])


@pytest.mark.parametrize(
    "options, arguments, message",
    [
        ({}, {"y": ANY ^ FIRST}, f"y: expected one value for all rows of a bag, got several in the bag {NAMES[7]}$"),
        ({}, {"sample_weight": 1.0 + FIRST}, f"sample_weight: expected one value .* several in the bag {NAMES[7]}$"),
        ({}, {"y": ANY & False}, "y: expected labels of at least two classes, got one class, False"),
        ({}, {"groups": BAG[1:]}, r"groups: expected shape \(\d+,\), one label a row, got"),
        ({}, {"groups": np.where(FIRST, np.nan, BAG)}, "groups: expected labels, got missing ones"),
        ({}, {"groups": np.where(FIRST, "a", BAG.astype(object))}, "groups: .* got labels of several types"),
        ({}, {"X_val": X}, "y_val: expected labels of the validation rows, got None"),
        ({}, {"y_val": X}, "X_val: expected validation rows, got None"),
        ({}, {"X_val": X, "y_val": BAG, "groups_val": BAG}, r"y_val: expected labels among \[False, True\], got "),
        ({"law": "or"}, {}, "law: expected one of .*'noisy_or'.* got 'or'"),
        ({"law": None}, {}, "law: expected one of .* got None"),
        ({"law": torch.zeros(2, 3)}, {}, "law: expected tables of at least 4 counts, got 3"),
        ({"law": torch.zeros(3, 9)}, {}, "law: expected 2 tables, or 2, one for each class, got 3"),
        ({"law": torch.zeros(9)}, {}, r"law: expected floating point tables of shape \(T, D \+ 1\), got .*\(9,\)"),
        ({"law": lambda n: n}, {}, "law: expected a tensor of shape .* got int"),
        ({"law": lambda n: torch.zeros(n + 1)}, {}, r"law: expected tables of shape \(T, n \+ 1\), got \(7,\)"),
        ({"law": lambda n: torch.full((2, n + 1), math.nan)}, {}, r"law: expected log-potentials less than \+inf"),
        ({"law": TABLE}, {}, "law: expected a positive probability of each bag's label, got none for the bag"),
        ({"law": TABLE}, {"y": THREE}, "law: expected a possible positive label of some class"),
        ({"batch_size": 9, "learning_rate": 1e300}, {}, "learning_rate: expected steps with finite losses, got"),
        ({"law": "exactly", "count": 2}, {}, "count: expected at most the size of each bag, got 2 for a bag of 1"),
        ({"count": 0}, {}, "count: expected an integer of at least 1"),
        ({"strength": 1.0}, {}, "strength: expected a number of more than 0 and less than 1, got 1.0"),
        ({"leak": -0.1}, {}, "leak: expected a number of at least 0 and less than 1, got -0.1"),
        ({"fraction": "a"}, {}, "fraction: expected a number of more than 0 and at most 1, got 'a'"),
        ({"scale": 0}, {}, "scale: expected a number of more than 0, got 0"),
        ({"batch_size": 0}, {}, "batch_size: expected an integer of at least 1"),
        ({"module": len}, {}, "module: expected a torch.nn.Module or None, got"),
        ({"module": torch.nn.Linear(3, 2)}, {}, r"module: expected scores in float64 of shape \(2, 1\), got"),
        (
            {"module": torch.nn.Linear(2, 1)},
            {},
            r"module: expected one for inputs of shape \(N, 3\), got one that fails",
        ),
    ],
)
def test_refusals(options, arguments, message):
    with pytest.raises(ValueError, match=message):
        MultipleInstanceClassifier(**options).fit(**{"X": X, "y": ANY, "groups": BAG, **arguments})


@pytest.mark.parametrize("offset, scale", [(1e9, 1.0), (-1e10, 1.0), (0.0, 1e160), (0.0, 1e-170)])
def test_columns_in_any_unit(offset, scale):
    expected = MultipleInstanceClassifier().fit(X, ANY, BAG)
    found = MultipleInstanceClassifier().fit(X * scale + offset, ANY, BAG)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-3)
    constant = np.where(np.arange(len(X)) % 2 == 0, 0.1 + 0.2, 0.3)[:, None]
    assert MultipleInstanceClassifier().fit(np.hstack([X, constant]), ANY, BAG).coef_[0, 3] == 0


def test_large_weights_and_numbers():
    weights = np.full(len(X), 1e290)
    small = MultipleInstanceClassifier(l2=0.0).fit(X, ANY, BAG)
    large = MultipleInstanceClassifier(l2=0.0).fit(X * 1e20, ANY, BAG, weights)
    np.testing.assert_allclose(large.coef_, small.coef_, rtol=1e-3)


def test_parameters_of_a_law_are_not_learned():
    level = torch.zeros((), requires_grad=True)
    law = lambda n: torch.stack([-torch.arange(n + 1.0), level + torch.arange(n + 1.0)])  # noqa: E731
    estimator = MultipleInstanceClassifier(law=law).fit(X, ANY, BAG)
    assert level.grad is None and estimator.law_tables(3).shape == (2, 4)


def test_bags_for_which_a_law_has_no_count():
    def law(n):
        return torch.zeros(2, n + 1) if n < 7 else torch.full((2, n + 1), -math.inf)

    estimator = MultipleInstanceClassifier(law=law).fit(X, ANY, BAG)
    with pytest.raises(ValueError, match="law: expected a possible count of some label, got none for a bag of 7"):
        estimator.predict(X[:10], np.repeat([0, 1], [3, 7]))


def test_labels_that_cannot_be_given():
    law = torch.tensor([[0.0, 0.0, -math.inf], [-math.inf, 0.0, 0.0]])
    rows, bags = np.eye(4), np.array([0, 0, 1, 1])
    estimator = MultipleInstanceClassifier(law=law).fit(rows, [0, 0, 1, 1], bags)
    never = MultipleInstanceClassifier(law=torch.tensor([[0.0, 0.0, 0.0], [-math.inf, -math.inf, 0.0]]))
    never = never.fit(rows, [0, 0, 1, 1], bags)
    assert estimator.predict_instance_proba(rows, bags, [0, 0, 1, 1]).shape == (4,)
    with pytest.raises(ValueError, match="y: expected labels of positive probability, got another for the bag 5"):
        never.predict_instance_proba(rows[:1], [5], [1])
