"""Mixtures of trees of blocks: an objective that never falls, junction trees as a special case, exact queries."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.densities.models.block_mixture_em import BlockMixtureEM
from pyro_structured.junction_trees.models.tree_mixture_em import near_random_rows
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.models import ExchangeableTreeMixture, JunctionTreeMixture


def random_data(seed, number=150):
    """Two kinds of rows: noisy copies of a hidden state, of the first columns or of the last ones."""
    rng = np.random.default_rng(seed)
    cardinalities = [3, 3, 3, 2, 2]
    values = rng.integers(cardinalities, size=(number, 5))
    kind, state = rng.integers(2, size=(number, 1)), rng.integers(2, size=(number, 1))
    copied = (rng.random((number, 5)) < 0.7) & ((np.arange(5) < 3) == kind)
    values = np.where(copied, state, values)
    values[0] = 0
    return values, cardinalities


EXPECTED = {
    "check_estimators_nan_inf": "queries sum missing entries out, which learning refuses",
    # Of what has predict_proba and takes sparse data, these ask for the tags of a classifier.
    "check_estimator_sparse_array": "a mixture is no classifier",
    "check_estimator_sparse_matrix": "a mixture is no classifier",
}


@pytest.mark.slow(keep=15)
@parametrize_with_checks(
    [ExchangeableTreeMixture(n_components=1, max_iter=2, handle_unknown="missing")],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "seed, treewidth, smoothing, penalty",
    [(0, 0, 0.1, 0.0), (1, 0, 10.0, 0.3), (2, 1, 0.1, 0.3), (3, 1, 10.0, 0.3), (4, 1, 1.0, 1.0), (5, 2, 1.0, 0.3)],
)
def test_objective_never_falls(seed, treewidth, smoothing, penalty):
    values, cardinalities = random_data(seed)
    rows = CategoricalRows(values, cardinalities, np.random.default_rng(seed).random(len(values)) + 0.1)
    learner = BlockMixtureEM(20, rows, rows, treewidth, penalty, smoothing, 1e-7, 14)
    phases = list(learner.run(near_random_rows(rows, 3, np.random.RandomState(seed % 100))))
    assert (np.diff([phase.objective for phase in phases]) > -1e-12).all() and len(phases) > 2
    mixture, objective, score = phases[-1]
    assert max(each.tree.levels.treewidth for each in mixture.components) <= treewidth
    assert max(max(map(len, each.tree.groups)) for each in mixture.components) > 1
    # From the definition, without what the learner remembers.
    joint = mixture.log_joint(rows.values.T)
    assert score == pytest.approx(np.average(np.logaddexp.reduce(joint, 1), weights=rows.weights))
    expected = rows.total * score
    for each in mixture.components:
        tree, frequencies = each.tree, np.zeros(each.tree.num_variables, dtype=object)
        for group in tree.groups:
            mean = np.mean([rows.counts([d]) + 1 for d in group], 0) / (rows.total + cardinalities[group[0]])
            frequencies[list(group)] = [mean] * len(group)
        states = np.array(list(itertools.product(*map(range, cardinalities))))
        prior = np.prod([mean[column] for mean, column in zip(frequencies, states.T, strict=True)], 0)
        expected += smoothing * float(prior @ each.log_prob(torch.from_numpy(states)).numpy())
        sizes = [
            sum(np.prod([tree.levels.cardinalities[b] for b in scope]) for scope in scopes)
            for scopes in (tree.levels.cliques, tree.levels.separators)
        ]
        expected -= 0.5 * penalty * np.log(rows.total) * (sizes[0] - sizes[1])
    assert objective == pytest.approx(expected / rows.total)


@pytest.mark.parametrize("treewidth", [1, 2])
def test_single_columns_are_junction_trees(treewidth):
    """Without mergers, the learner and its iterations are those of mixtures of junction trees."""
    values, _ = random_data(3, 400)
    options = {"n_components": 2, "treewidth": treewidth, "handle_unknown": "error", "random_state": 0}
    expected = JunctionTreeMixture(**options).fit(values)
    found = ExchangeableTreeMixture(max_levels=1, **options).fit(values)
    np.testing.assert_allclose(found.score_samples(values), expected.score_samples(values), rtol=1e-9)
    np.testing.assert_allclose(found.objectives_, expected.objectives_, rtol=1e-9)


def test_blocks_are_found():
    values, _ = random_data(0, 3000)
    scores = []
    for most in (64, 1):
        model = ExchangeableTreeMixture(n_components=2, treewidth=0, max_levels=most, n_init=2, random_state=0)
        model.fit(values[:2000], X_val=values[2000:])
        scores.append(model.score(values[2000:]))
        found = ((0, 1, 2), (3, 4)) if most > 1 else ((0,), (1,), (2,), (3,), (4,))
        assert [tree.groups for tree in model.trees_] == [found] * 2
    assert scores[0] > scores[1] + 0.02


def test_queries_are_those_of_brute_force():
    values, cardinalities = random_data(7)
    names = [[chr(97 + state) for state in range(size)] for size in cardinalities]
    data = np.array(["a", "b", "c"], dtype=object)[values]
    model = ExchangeableTreeMixture(n_components=2, categories=names, max_iter=6, random_state=0).fit(data)
    states = np.array(list(itertools.product(*map(range, cardinalities))))
    parts = model.weights_ * np.stack([each.log_prob(torch.from_numpy(states)).exp() for each in model.components_], 1)
    assert parts.sum() == pytest.approx(1.0)
    rows, codes = data[:8].copy(), values[:8]
    gaps = np.random.default_rng(0).random(rows.shape) < 0.4
    rows[gaps] = None
    for row, gap, code, log_prob, posterior in zip(
        rows, gaps, codes, model.score_samples(rows), model.predict_proba(rows), strict=True
    ):
        agreeing = parts[(states[:, ~gap] == code[~gap]).all(1)].sum(0)
        assert log_prob == pytest.approx(np.log(agreeing.sum())), row
        assert posterior == pytest.approx(agreeing / agreeing.sum())
    assert (model.predict(rows) == model.predict_proba(rows).argmax(1)).all()
    np.testing.assert_allclose(model.to_pyro().log_prob(torch.from_numpy(states)).exp(), parts.sum(1))
    found = model.fit(data[:100], X_val=rows).score(rows)
    assert max(each.score for each in model.candidates_) == pytest.approx(found)


@pytest.mark.statistical
def test_samples_follow_the_density():
    values, cardinalities = random_data(5, 300)
    model = ExchangeableTreeMixture(n_components=2, random_state=0).fit(values)
    drawn = model.sample(20_000, random_state=1)
    np.testing.assert_array_equal(drawn, model.sample(20_000, random_state=1))
    states = np.array(list(itertools.product(*map(range, cardinalities))))
    expected = np.exp(model.score_samples(states))
    shares = (drawn[:, None] == states).all(2).mean(0)
    assert (np.abs(shares - expected) <= 6 * np.sqrt(expected / len(drawn)) + 1e-4).all()


def test_unknown_values():
    values, _ = random_data(0)
    other = values[:5].copy()
    other[:, 0] = 9
    model = ExchangeableTreeMixture(n_components=2, handle_unknown="missing", random_state=0).fit(values, X_val=other)
    gaps = other.astype(float)
    gaps[:, 0] = np.nan
    np.testing.assert_array_equal(model.score_samples(other), model.score_samples(gaps))
    with pytest.raises(ValueError, match="X: expected categories of column 0 among .0, 1, 2., got 9 in row 0"):
        ExchangeableTreeMixture(n_components=2).fit(values).score(other)


def test_bad_input():
    data = np.array([[0, 1], [1, 0], [1, 1]])
    for arguments, message in [
        ({"treewidth": -1}, "treewidth: expected an integer of at least 0, got -1"),
        ({"max_levels": 0}, "max_levels: expected an integer of at least 1, got 0"),
        ({"n_components": 0}, "n_components: expected an integer of at least 1, got 0"),
        ({"handle_unknown": "other"}, "handle_unknown: expected one of .'error', 'missing'., got 'other'"),
        ({"smoothing": 0}, "smoothing: expected more than 0, got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            ExchangeableTreeMixture(**arguments).fit(data)
    with pytest.raises(ValueError, match="X: expected complete rows to learn from, but Input X contains NaN"):
        ExchangeableTreeMixture().fit([[0, 1], [np.nan, 0]])
    with pytest.raises(ValueError, match="X: expected complete rows .* not among the given categories"):
        ExchangeableTreeMixture(categories=2, handle_unknown="missing").fit([[0, 1], [2, 0]])
