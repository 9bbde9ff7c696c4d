"""Mixtures of junction trees that count: an objective that never falls, what is learned, exact queries, refusals."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.junction_trees.models.counted_mixture_em import CountedMixtureEM
from pyro_structured.junction_trees.models.tree_mixture_em import (
    SharedTreeMixtureEM,
    TreeMixtureEM,
    near_random_rows,
)
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.models import JunctionTreeMixture

RNG = np.random.default_rng(0)
KIND = RNG.integers(2, size=900)
# Two kinds of rows: the numbers of ones are 1, 4 or 7 of eight; or the first column is zero, and they are 0, 3 or 6.
NUMBERS = np.where(KIND == 0, RNG.choice([1, 4, 7], 900), RNG.choice([0, 3, 6], 900))
ODD = np.stack(
    [
        np.concatenate([[0] * kind, RNG.permutation(8 - kind) < number]).astype(int)
        for kind, number in zip(KIND, NUMBERS, strict=True)
    ]
)


@pytest.mark.slow
@settings(max_examples=5)
@given(st.integers(0, 10**6), st.sampled_from([0.5, 10.0]), st.sampled_from([TreeMixtureEM, SharedTreeMixtureEM]))
def test_objective_never_falls(seed, stiffness, kind):
    rng = np.random.default_rng(seed)
    cardinalities = [2, 3, 2, 1, 2, 2, 2]
    values = np.stack([rng.integers(size, size=60) for size in cardinalities], 1)
    values[:, 1] = np.where(rng.random(60) < 0.7, values[:, 0], values[:, 1])
    rows = CategoricalRows(values, cardinalities, rng.integers(1, 4, size=60).astype(float))
    learner = kind(rows, rows, 2, 0.1, 2.0, 1e-6, 12)
    *_, last = learner.run(near_random_rows(rows, 2, np.random.RandomState(seed % 100)))
    joint = last.mixture.log_joint(rows.values.T)
    shares = np.exp(joint - np.logaddexp.reduce(joint, 1)[:, None])
    phases = list(CountedMixtureEM(learner, last.mixture.components, stiffness).run(shares))
    assert (np.diff([phase.objective for phase in phases]) > -1e-9).all() and len(phases) > 1
    # From the definition.
    mixture = phases[-1].mixture
    assert [each.tree for each in mixture.components] == [each.tree for each in last.mixture.components]
    joint = mixture.log_joint(rows.values.T)
    expected = rows.weights @ np.logaddexp.reduce(joint, 1)
    assert phases[-1].score == pytest.approx(expected / rows.total)
    states = torch.tensor(list(itertools.product(*map(range, cardinalities))))
    prior = torch.from_numpy(np.prod([own[states[:, d]] for d, own in enumerate(learner.singles)], 0))
    for each in mixture.components:
        assert [len(pairs) for pairs in each.counted][-1] == 7  # two states of a variable count, none of another
        expected += 2.0 * float(prior @ each.log_prob(states))
        for table in each.count_logits.split([len({d for d, _ in pairs}) + 1 for pairs in each.counted]):
            expected -= stiffness * float(table.diff(n=2).square().sum() + 0.1 * table.square().sum())
    assert phases[-1].objective == pytest.approx(expected / rows.total)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("shared", [False, True])
def test_counts_that_no_clique_can_say(shared):
    settings = {"n_components": 2, "treewidth": 1, "shared_tree": shared, "random_state": 0}
    plain, counting = (JunctionTreeMixture(counts=counts, **settings).fit(ODD[:700]) for counts in (False, True))
    assert plain.counted_ == [] and len(counting.counted_) == 2
    assert all([(d, 1) for d in range(8)] in family for family in counting.counted_)
    assert not shared or counting.trees_[0] == counting.trees_[1]
    assert counting.score(ODD[700:]) > plain.score(ODD[700:]) + 0.3
    assert len(counting.candidates_) == 5 and counting.n_iter_ == len(counting.objectives_)
    d, values = counting.to_pyro(), torch.from_numpy(ODD[700:])
    np.testing.assert_allclose(counting.score_samples(ODD[700:]), d.log_prob(values).numpy())
    np.testing.assert_allclose(counting.predict_proba(ODD[700:]), d.posterior(values).probs.numpy())
    some, observed = ODD[700:].astype(float), torch.arange(8) < 4
    some[:, 4:] = np.nan
    np.testing.assert_allclose(counting.score_samples(some), d.marginal_log_prob(values, observed).numpy())
    drawn = counting.sample(500, random_state=0)
    assert abs(drawn.sum(1).mean() - ODD.sum(1).mean()) < 0.4
    assert abs(np.isin(drawn.sum(1), [1, 4, 7]).mean() - np.isin(ODD.sum(1), [1, 4, 7]).mean()) < 0.15


@pytest.mark.slow
def test_counts_are_kept_only_if_validation_rows_gain():
    X = np.random.default_rng(1).integers(2, size=(120, 7))
    settings = {"n_components": 2, "treewidth": 1, "random_state": 0}
    plain, counting = (JunctionTreeMixture(counts=counts, **settings).fit(X) for counts in (False, True))
    assert counting.counted_ == [] and counting.to_pyro().counted is None
    np.testing.assert_array_equal(counting.score_samples(X), plain.score_samples(X))


def test_nothing_to_count():
    X = np.zeros((20, 3), dtype=int)
    model = JunctionTreeMixture(n_components=2, counts=True, handle_unknown="error").fit(X)
    assert model.counted_ == [] and model.score_samples(X[:2]) == pytest.approx(0.0)


def test_what_is_refused():
    X = ODD.astype(float)
    X[0, 0] = np.nan
    with pytest.raises(NotImplementedError, match="counts: expected rows without missing values"):
        JunctionTreeMixture(counts=True).fit(X)
    for name in ("counts", "shared_tree"):
        with pytest.raises(ValueError, match=f"{name}: expected True or False, got 'total'"):
            JunctionTreeMixture(**{name: "total"}).fit(ODD)
