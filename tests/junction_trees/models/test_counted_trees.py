import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from pyro_structured.distributions import CountedJunctionTree, JunctionTree
from pyro_structured.junction_trees.models.counted_tree_fitting import STIFFNESS, CountedTreeRows, count_rare_states
from pyro_structured.junction_trees.models.tree_fitting import TreeRows, fit_tree_tables
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.models import ThinJunctionTree
from pyro_structured.structures import CliqueTree

RNG = np.random.default_rng(0)
# Rows of which the number of ones is 1, 4 or 7: no small clique can say so.
ODD = np.stack([RNG.permutation(8) < number for number in RNG.choice([1, 4, 7], 600)]).astype(int)


def with_and_without(X, **settings):
    return (ThinJunctionTree(counts=counts, random_state=0, **settings).fit(X) for counts in (True, False))


def test_counts_that_no_clique_can_say():
    counting, plain = with_and_without(ODD[:500], treewidth=2)
    assert plain.counted_ == [] and [(d, 1) for d in range(8)] in counting.counted_
    assert counting.score(ODD[500:]) > plain.score(ODD[500:]) + 0.5
    drawn = counting.sample(300, random_state=0).sum(1)
    assert np.isin(drawn, [1, 4, 7]).mean() > 0.9
    some = ODD[500:].astype(float)
    some[:, 4:] = np.nan
    d = counting.to_pyro()
    given = d.condition(torch.from_numpy(ODD[500:]), torch.arange(8) < 4)
    np.testing.assert_allclose(counting.predict_missing_proba(some), given.marginals.numpy())
    evidence = given.log_partition_function - d.log_partition_function
    np.testing.assert_allclose(counting.score_samples(some), evidence.numpy())


def test_counts_are_kept_only_if_validation_rows_gain():
    X = RNG.integers(2, size=(80, 7))
    counting, plain = with_and_without(X, treewidth=1)
    assert counting.counted_ == [] and isinstance(counting.to_pyro(), JunctionTree)
    np.testing.assert_array_equal(counting.score_samples(X), plain.score_samples(X))


@pytest.mark.slow
def test_digits():
    X = (load_digits().data >= 8).astype(int)[np.random.default_rng(1).permutation(1797)]
    counting, plain = with_and_without(X[:1437], treewidth=1)
    gains = counting.score_samples(X[1437:]) - plain.score_samples(X[1437:])
    assert gains.mean() - 1.96 * gains.std() / len(gains) ** 0.5 > 0.1


@pytest.mark.parametrize("stiffness", STIFFNESS)
@pytest.mark.parametrize("smoothing", [0.0, 3.0])
def test_tables_are_optimal(stiffness, smoothing):
    """Gradient of the objective of the docstring, with weighted rows; without smoothing, with an excluded state."""
    tree = CliqueTree([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]], [2, 3, 2, 2, 2, 1, 2])
    codes = np.stack([RNG.integers(size, size=60) for size in tree.cardinalities], 1)
    codes[codes[:, 0] == 1, 1] = 0
    rows = CategoricalRows(codes, tree.cardinalities, RNG.integers(1, 4, size=60).astype(float))
    values, weights = torch.from_numpy(rows.values.T).long(), torch.from_numpy(rows.weights)
    counted = count_rare_states(tree)
    assert [len(pairs) for pairs in counted] == [7] and (1, 2) in counted[0] and (5, 1) not in counted[0]
    singles = [RNG.dirichlet(np.ones(size)) for size in tree.cardinalities]
    plain, _ = fit_tree_tables(TreeRows(rows, tree), smoothing, singles=singles)
    counting = CountedTreeRows(rows, tree, counted, smoothing, singles)
    start = counting.start(plain)
    found = counting.fit(weights, start, stiffness)
    assert bool((plain.clique_logits == -torch.inf).any()) == (not smoothing)
    assert torch.equal(found.clique_logits == -torch.inf, plain.clique_logits == -torch.inf)
    states = start.enumerate_support()
    pseudo = smoothing * np.prod([own[states[:, d]] for d, own in enumerate(singles)], 0)

    def objective(d):
        # Excluded states have probability 0 in all rows, and in the pseudo-observations.
        table = d.count_logits
        prior = torch.from_numpy(pseudo) @ d.log_prob(states) if smoothing else 0.0
        bends = table.diff(n=2).square().sum() + 0.1 * table.square().sum()
        return weights @ d.log_prob(values) + prior - stiffness * bends

    parameters = [p.clone().requires_grad_() for p in (found.clique_logits, found.count_logits)]
    best = objective(CountedJunctionTree(parameters[0], tree, parameters[1], counted))
    best.backward()
    assert all(p.grad.abs().max() < 2e-3 for p in parameters)
    rest = counting.regularisation(found, stiffness)
    assert float(weights @ found.log_prob(values)) + rest == pytest.approx(best.item())
    # Without tables of counts, the objective's maximum is the plain tree: all of it is gained by them.
    gradient = plain.clique_logits.clone().requires_grad_()
    unchanged = objective(CountedJunctionTree(gradient, tree, start.count_logits, counted))
    unchanged.backward()
    assert gradient.grad.abs().max() < 1e-9 and best > unchanged


def test_columns_that_say_nothing():
    """A constant column is not counted, and no list stands twice."""
    X = np.hstack([ODD, np.zeros((len(ODD), 1), dtype=int)])
    model = ThinJunctionTree(counts=True, treewidth=1, handle_unknown="error", random_state=0).fit(X[:500])
    assert model.counted_ and len({tuple(pairs) for pairs in model.counted_}) == len(model.counted_)
    assert all(d < 8 for pairs in model.counted_ for d, _ in pairs)


def test_missing_values_and_other_kinds_are_refused():
    X = ODD.astype(float)
    X[0, 0] = np.nan
    with pytest.raises(NotImplementedError, match="counts: expected rows without missing values"):
        ThinJunctionTree(counts=True).fit(X)
    with pytest.raises(ValueError, match="counts: expected"):
        ThinJunctionTree(counts="total").fit(ODD)
