"""Mixtures of junction trees: an objective that never falls, exact queries, gaps, scikit-learn's conventions."""

import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.distributions import JunctionTree
from pyro_structured.junction_trees.models import tree_fitting
from pyro_structured.junction_trees.models.tree_fitting import (
    TreeRows,
    fit_tree_tables,
    log_probs_of_codes,
    pseudo_counts,
)
from pyro_structured.junction_trees.models.tree_mixture_em import (
    SharedTreeMixtureEM,
    TreeMixtureEM,
    near_random_rows,
)
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.models import JunctionTreeMixture, ThinJunctionTree
from pyro_structured.structures import CliqueTree


def random_data(seed, size=5, number=120, missing=0.0):
    """Two kinds of rows: every column is a noisy function of an earlier one, which depends on the kind."""
    rng = np.random.default_rng(seed)
    cardinalities = rng.integers(2, 4, size)
    values, kind = rng.integers(cardinalities, size=(number, size)), rng.integers(2, size=number)
    for d in range(1, size):
        for each in range(2):
            copied = (rng.random(number) < 0.8) & (kind == each)
            values[copied, d] = (values[copied, int(rng.integers(d))] + each) % cardinalities[d]
    values[rng.random(values.shape) < missing] = -1
    values[0] = 0
    return values, cardinalities.tolist()


def independent(values, states):
    """Probabilities of states if the columns were independent, with their frequencies, and one more row of each."""
    found = np.ones(len(states))
    for column, each in zip(values.T, states.T, strict=True):
        counts = np.bincount(column[column >= 0], minlength=each.max() + 1) + 1.0
        found *= (counts / counts.sum())[each]
    return found


# The check also changes the order of rows; those that validate are drawn by their places.
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "validation rows depend on the order of rows",
    "check_sample_weight_equivalence_on_sparse_data": "validation rows depend on the order of rows",
    # Of what has predict_proba and takes sparse data, these ask for the tags of a classifier.
    "check_estimator_sparse_array": "a mixture is no classifier",
    "check_estimator_sparse_matrix": "a mixture is no classifier",
}


@parametrize_with_checks(
    [
        JunctionTreeMixture(n_components=2, treewidth=1, max_iter=10),
        JunctionTreeMixture(n_components=2, shared_tree=True, max_iter=5),
    ],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_scikit_learn(estimator, check):
    check(estimator)


@settings(max_examples=6)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.1, 10.0]),
    st.sampled_from([TreeMixtureEM, SharedTreeMixtureEM]),
)
def test_objective_never_falls(seed, missing, smoothing, kind):
    values, cardinalities = random_data(seed, missing=missing)
    rows = CategoricalRows(values, cardinalities)
    learner = kind(rows, rows, 2, 0.1, smoothing, 1e-7, 14)
    start = near_random_rows(rows, 3, np.random.RandomState(seed % 100))
    assert start.sum(1) == pytest.approx(1.0)
    with pytest.MonkeyPatch.context() as patch:
        # Beliefs about gaps come in several parts.
        patch.setattr(tree_fitting, "HELD_AT_ONCE", 2_000)
        phases = list(learner.run(start))
    assert (np.diff([phase.objective for phase in phases]) > -1e-12).all() and len(phases) > 2
    mixture, objective, score = phases[-1]
    assert max(each.tree.treewidth for each in mixture.components) <= 2
    assert kind is TreeMixtureEM or len({each.tree for each in mixture.components}) == 1
    # From the definition, without what the learner remembers.
    joint = mixture.log_joint(rows.values.T)
    assert score == pytest.approx(np.average(np.logaddexp.reduce(joint, 1), weights=rows.weights))
    expected = rows.total * score
    states = torch.tensor(list(itertools.product(*map(range, cardinalities))))
    prior = torch.from_numpy(independent(values, states.numpy()))
    for each in mixture.components:
        sizes = [[np.prod([cardinalities[d] for d in s]) for s in g] for g in (each.tree.cliques, each.tree.separators)]
        expected += smoothing * (prior @ each.log_prob(states)).item()
        expected -= 0.05 * np.log(rows.total) * (sum(sizes[0]) - sum(sizes[1]))
    assert objective == pytest.approx(expected / rows.total)


@settings(max_examples=4)
@given(st.integers(0, 10**6))
def test_queries_are_those_of_brute_force(seed):
    values, cardinalities = random_data(seed, missing=0.2)
    data = np.where(values < 0, np.nan, values)
    names = [list(range(size)) for size in cardinalities]
    model = JunctionTreeMixture(n_components=2, penalty=0.1, categories=names, max_iter=6, random_state=seed % 100).fit(
        data
    )
    states = np.array(list(itertools.product(*map(range, cardinalities))))
    parts = model.weights_ * np.stack([each.log_prob(torch.from_numpy(states)).exp() for each in model.components_], 1)
    assert parts.sum() == pytest.approx(1.0)
    rows = np.concatenate([data[:8], [[np.nan] * len(cardinalities)]])
    log_probs, posteriors = model.score_samples(rows), model.predict_proba(rows)
    for row, log_prob, posterior in zip(rows, log_probs, posteriors, strict=True):
        known = ~np.isnan(row)
        agreeing = parts[(states[:, known] == row[known]).all(1)].sum(0)
        assert log_prob == pytest.approx(np.log(agreeing.sum()))
        assert posterior == pytest.approx(agreeing / agreeing.sum())
    assert (model.predict(rows) == posteriors.argmax(1)).all()
    assert model.to_pyro().log_prob(torch.from_numpy(states)).exp().numpy() == pytest.approx(parts.sum(1))


def test_one_component_is_a_thin_junction_tree():
    """One component is a thin junction tree, with pseudo-observations of independent columns as further rows."""
    values, cardinalities = random_data(1, 6, 400)
    states = np.array(list(itertools.product(*map(range, cardinalities))))
    for missing in (False, True):
        data, smoothing = values.astype(float), 7.0
        if missing:
            data[np.random.default_rng(0).random(data.shape) < 0.05] = np.nan
        codes = np.where(np.isnan(data), -1, data).astype(int)
        tree = (
            ThinJunctionTree(treewidth=2, penalty=0.5, handle_unknown="error").fit(data[:300], X_val=data[300:]).tree_
        )
        model = JunctionTreeMixture(
            n_components=1, smoothing=smoothing, tol=1e-9, n_iter_no_change=100, handle_unknown="error"
        )
        model.fit(data[:300], X_val=data[300:])
        assert model.trees_ == [tree] and model.weights_ == pytest.approx(1.0)
        weights = np.concatenate([np.ones(300), smoothing * independent(codes[:300], states)])
        rows = CategoricalRows(np.concatenate([codes[:300], states]), cardinalities, weights)
        expected, _ = fit_tree_tables(TreeRows(rows, tree), 0.0, tol=1e-12)
        found = log_probs_of_codes(expected, codes)
        assert model.score_samples(data) == pytest.approx(found, abs=1e-2 if missing else 1e-12)


def test_kinds_are_found():
    rng = np.random.default_rng(0)
    kind, a, b, c = rng.integers(2, size=(4, 2000))
    data = np.stack([a, np.where(kind, a, b), np.where(kind, b, a), c, np.where(kind, c, 1 - c), b], 1)
    model = JunctionTreeMixture(n_components=2, treewidth=1, smoothing=1.0, n_init=3, random_state=0)
    model.fit(data[:1500], X_val=data[1500:])
    single = JunctionTreeMixture(n_components=1, treewidth=1, smoothing=1.0).fit(data[:1500], X_val=data[1500:])
    assert model.score(data[1500:]) > single.score(data[1500:]) + 0.3
    certain = model.predict_proba(data).max(1) > 0.99
    agreement = (model.predict(data) == kind)[certain].mean()
    assert certain.mean() > 0.5 and max(agreement, 1 - agreement) > 0.99
    assert model.trees_[0] != model.trees_[1]


def test_components_have_their_weights():
    rng = np.random.default_rng(0)
    rare = rng.random(3000) < 0.2
    data = rng.random((3000, 12)) < np.where(rare, 0.9, 0.1)[:, None]
    model = JunctionTreeMixture(n_components=2, treewidth=1, n_init=5, random_state=0).fit(data)
    assert np.sort(model.weights_) == pytest.approx([0.2, 0.8], abs=0.02)


def test_starts_are_at_random_rows():
    values, cardinalities = random_data(2, missing=0.2)
    rows = CategoricalRows(values, cardinalities)
    number = len(rows.weights)
    start = near_random_rows(rows, number, np.random.RandomState(0))
    chosen = np.random.RandomState(0).choice(number, number, replace=False)
    one, other = rows.values[:, :, None], rows.values[:, None, chosen]
    different = ((one != other) & (one >= 0) & (other >= 0)).sum(0)
    weights = np.exp(-different)  # five columns
    assert start == pytest.approx(weights / weights.sum(1, keepdims=True))


def test_iterations_without_improvement_end(monkeypatch):
    values, _ = random_data(0)
    run, iterations = TreeMixtureEM.run, []

    def worse(self, responsibilities):
        for number, phase in enumerate(run(self, responsibilities), 1):
            iterations.append(number)
            yield phase._replace(score=-float(number))

    monkeypatch.setattr(TreeMixtureEM, "run", worse)
    model = JunctionTreeMixture(n_components=2, tol=0.0, n_iter_no_change=4).fit(values)
    assert model.n_iter_ == 1 and iterations == [1, 2, 3, 4, 5]


def test_the_best_candidate_is_taken():
    values, _ = random_data(3, 6, 300)
    model = JunctionTreeMixture(
        n_components=2, penalty=[0.1, 1.0], smoothing=[0.1, 10.0], n_init=2, max_iter=10, random_state=0
    )
    model.fit(values[:200], X_val=values[200:])
    assert [(each.penalty, each.smoothing) for each in model.candidates_] == [
        (penalty, smoothing) for penalty in (0.1, 1.0) for smoothing in (0.1, 10.0) for _ in range(2)
    ]
    best = max(model.candidates_, key=lambda each: each.score)
    assert (model.penalty_, model.smoothing_) == (best.penalty, best.smoothing)
    assert model.score(values[200:]) == pytest.approx(best.score)
    assert len(model.objectives_) == model.n_iter_ <= 10
    again = JunctionTreeMixture(**model.get_params()).fit(values[:200], X_val=values[200:])
    assert again.score(values) == model.score(values)


def test_samples_have_the_mixture_s_frequencies():
    values, cardinalities = random_data(5, 3, 300)
    data = np.array(["x", "y", "z"], dtype=object)[values]
    model = JunctionTreeMixture(n_components=2, random_state=0).fit(data)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = model.sample(20_000)
    states, counts = np.unique(drawn.astype(str), axis=0, return_counts=True)
    assert np.exp(model.score_samples(states.astype(object))) == pytest.approx(counts / len(drawn), abs=0.015)


@given(st.integers(0, 10**6))
@settings(max_examples=6)
def test_remembered_entries_give_the_same_tables(seed):
    values, cardinalities = random_data(seed)
    rng = np.random.default_rng(seed)
    rows = CategoricalRows(values, cardinalities)
    tree = CliqueTree.from_edges([(0, 1), (1, 2), (2, 3), (3, 0)], cardinalities)
    weights = rng.random(len(rows.weights)) * rng.integers(2, size=len(rows.weights))
    entries = TreeRows(rows, tree)
    found = entries.tables(entries.counts(weights), pseudo_counts(tree, 0.5))
    codes = torch.from_numpy(rows.values.T)
    expected = JunctionTree.from_data(codes, tree, 0.5, torch.from_numpy(weights))
    assert torch.allclose(found.clique_marginals, expected.clique_marginals)
    assert entries.log_probs(found) == pytest.approx(expected.log_prob(codes).numpy())


def test_bad_input():
    data = np.array([[0, 1], [1, 0], [1, 1]])
    for arguments, message in [
        ({"n_components": 0}, "n_components: expected an integer of at least 1, got 0"),
        ({"treewidth": 1.5}, "treewidth: expected"),
        ({"n_init": 0}, "n_init: expected"),
        ({"max_iter": 0}, "max_iter: expected"),
        ({"n_iter_no_change": 0}, "n_iter_no_change: expected"),
        ({"tol": -1.0}, "tol: expected a number of at least 0"),
        ({"tol": [0.1, 0.2]}, r"tol: expected one number, got \[0.1, 0.2\]"),
        ({"penalty": "bic"}, "penalty: expected a number of at least 0, or several, got 'bic'"),
        ({"smoothing": -1}, "smoothing: expected a number of at least 0"),
        ({"smoothing": [0, 1]}, r"smoothing: expected more than 0, got \[0, 1\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            JunctionTreeMixture(**arguments).fit(data)
    with pytest.raises(ValueError, match="n_components: expected at most as many .*, n_samples = 3, got 4"):
        JunctionTreeMixture(n_components=4).fit(data, X_val=data)
    with pytest.raises(ValueError, match="n_components: expected at most as many .*, n_samples = 2, got 3"):
        JunctionTreeMixture(n_components=3).fit(data)
    with pytest.raises(ValueError, match="X: expected at least one value in each column, got only missing"):
        JunctionTreeMixture().fit([[np.nan, 1.0], [np.nan, 0.0]])
    model = JunctionTreeMixture(n_components=1).fit(data)
    with pytest.raises(ValueError, match=re.escape("X: expected categories of column 1 among [0, 1], got")):
        model.predict_proba([[0, 2]])
    with pytest.raises(ValueError, match="X_val: expected categories of column 0"):
        model.fit(data, X_val=[[5, 1]])
    with pytest.raises(ValueError, match="n_samples"):
        model.sample(0)


def test_an_interrupt_keeps_the_best_mixture(monkeypatch):
    values, _ = random_data(0)
    run, allowed = TreeMixtureEM.run, 3

    def interrupted(self, responsibilities):
        for number, phase in enumerate(run(self, responsibilities), 1):
            if number > allowed:
                raise KeyboardInterrupt
            yield phase

    monkeypatch.setattr(TreeMixtureEM, "run", interrupted)
    with pytest.warns(UserWarning, match="fit was interrupted: the best mixture so far is kept"):
        model = JunctionTreeMixture(n_components=2, tol=0.0).fit(values)
    assert 1 <= model.n_iter_ <= 3 and np.isfinite(model.score(values))
    allowed = 0
    with pytest.raises(KeyboardInterrupt):
        JunctionTreeMixture(n_components=2).fit(values)


def reserved():
    """A constant column, one of two and one of three values, and two rows with values that those do not have."""
    rng = np.random.default_rng(0)
    rows = np.stack([np.zeros(200, dtype=int), rng.integers(2, size=200), rng.integers(3, size=200)], 1)
    return rows, np.array([[7, 0, 0], [0, 1, 7]])


def test_unknown_values_have_a_reserve_state():
    rows, other = reserved()
    model = JunctionTreeMixture(n_components=2, smoothing=4.0, random_state=0).fit(rows, X_val=np.vstack([rows, other]))
    assert model.trees_[0].cardinalities == (2, 2, 4)
    states = torch.cartesian_prod(*map(torch.arange, (2, 2, 4)))
    log_probs = model.to_pyro().log_prob(states)
    assert log_probs.exp().sum() == pytest.approx(1.0)
    values = states.numpy().copy()
    values[values[:, 0] == 1, 0] = 7
    np.testing.assert_allclose(model.score_samples(values), log_probs)
    # Components have so many rows of such columns, one in 202 of which has an unknown value.
    sizes = 200 * model.weights_
    expected = model.weights_ @ (4 / 202 / (sizes + 4))
    assert np.exp(model.score_samples([[7, np.nan, np.nan]]))[0] == pytest.approx(expected, rel=1e-3)
    np.testing.assert_allclose(model.predict_proba(other).sum(1), 1.0)


def test_unknown_values_that_are_errors_or_missing():
    rows, other = reserved()
    model = JunctionTreeMixture(n_components=2, handle_unknown="missing", random_state=0).fit(rows, X_val=other)
    np.testing.assert_array_equal(model.score_samples(other), model.score_samples(np.where(other == 7, np.nan, other)))
    model = JunctionTreeMixture(n_components=2, handle_unknown="error", random_state=0).fit(rows)
    with pytest.raises(ValueError, match=r"X: expected categories of column 0 among \[0\], got 7 in row 0"):
        model.score_samples(other)
    assert JunctionTreeMixture(n_components=2, categories=3).fit(rows).trees_[0].cardinalities == (3, 3, 3)


def test_samples_are_of_known_values_and_have_a_seed():
    rows, _ = reserved()
    model = JunctionTreeMixture(n_components=2, smoothing=1000.0, random_state=0).fit(rows[:8], X_val=rows[:8])
    state = torch.random.get_rng_state()
    drawn = model.sample(20_000, random_state=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    states = torch.cartesian_prod(torch.zeros(1, dtype=torch.long), torch.arange(2), torch.arange(3)).numpy()
    expected = np.exp(model.score_samples(states))
    assert expected.sum() < 0.9
    counts = (drawn[:, None] == states).all(2).sum(0)
    assert counts.sum() == len(drawn)
    np.testing.assert_allclose(counts / len(drawn), expected / expected.sum(), atol=0.02)
    np.testing.assert_array_equal(model.sample(20_000, random_state=1), drawn)
    np.testing.assert_array_equal(model.sample(5), model.sample(5, random_state=0))
    with pytest.raises(ValueError, match="random_state: expected None, an integer .*, got -1"):
        model.sample(random_state=-1)
