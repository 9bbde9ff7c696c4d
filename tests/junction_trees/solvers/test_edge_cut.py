"""Cuts that leave nodes out: against a linear program, and brute force over all separators and sides."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.junction_trees.solvers.edge_cut import SeparatorProgram, minimum_edge_cut, round_cuts
from pyro_structured.junction_trees.solvers.separator_flow import SeparatorFlow

SEEDS = st.integers(0, 10**9)


def random_weights(seed, most):
    """Random weights, some of them zero, many small; once in a while all alike."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(2, most + 1))
    weights = rng.gamma(0.3, size=(number, number)) if rng.random() < 0.8 else np.ones((number, number))
    weights = np.triu(weights * (rng.random(weights.shape) < rng.choice([0.3, 0.7, 1.0])), 1)
    return rng, weights + weights.T


def weight_between(weights, one, other):
    return weights[np.ix_(list(one), list(other))].sum()


def best_cuts(weights, size, bonus=None):
    """For all pairs of nodes the least that a cut costs between them, over all separators and sides."""
    number = len(weights)
    least = np.full((number, number), np.inf)
    for count in range(min(size, number - 2) + 1):
        for separator in itertools.combinations(range(number), count):
            others = [d for d in range(number) if d not in separator]
            worth = 0.0 if bonus is None else sum(bonus[pair] for pair in itertools.combinations(separator, 2))
            for pattern in range(1, 2 ** len(others) - 1):
                side = [d for place, d in enumerate(others) if pattern >> place & 1]
                rest = [d for d in others if d not in side]
                cost = weight_between(weights, side, rest) - worth
                box = np.ix_(side, rest)
                least[box] = np.minimum(least[box], cost)
    return np.minimum(least, least.T)


def check_rounding(weights, solution, source, sink, size):
    """Integrates over the radius: expected weights and sizes; every rounded cut is one."""
    entry, leave = solution.entry, solution.entry + solution.length
    limits = np.unique(np.concatenate([entry, leave, [0.0, 1.0]]).clip(0, 1).round(9))
    weight = count = 0.0
    for low, high in itertools.pairwise(limits):
        side, touched = leave <= (low + high) / 2, entry <= (low + high) / 2
        assert side[source] and not touched[sink]
        weight += (high - low) * weight_between(weights, side.nonzero()[0], (~touched).nonzero()[0])
        count += (high - low) * (touched & ~side).sum()
    assert count <= size + 1e-7 and solution.length.sum() <= size + 1e-7
    cuts = round_cuts(weights, [solution], [(source, sink)], size)
    for separator, side, found in zip(*cuts, strict=True):
        assert separator.sum() <= size and not (separator & side).any()
        assert side[source] and not (side | separator)[sink]
        expected = weight_between(weights, side.nonzero()[0], (~side & ~separator).nonzero()[0])
        assert found == pytest.approx(expected, abs=1e-9)
    return weight, cuts


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 4))
def test_flows_solve_the_linear_program(seed, size):
    rng, weights = random_weights(seed, 12)
    source = int(rng.integers(len(weights)))
    flow, program = SeparatorFlow(weights, size), SeparatorProgram(weights, size, source)
    for sink in range(len(weights)):
        if sink != source:
            ours, theirs = flow.solve(source, sink), program.solve(sink)
            assert ours.value == pytest.approx(theirs.value, abs=1e-6)
            for solution in (ours, theirs):
                weight, cuts = check_rounding(weights, solution, source, sink, size)
                assert weight <= solution.value + 1e-6
                assert cuts.weights.min() >= solution.value - 1e-6


@pytest.mark.slow
@settings(max_examples=100)
@given(SEEDS, st.integers(0, 3), st.booleans())
def test_bound_and_best_cut(seed, size, with_bonus):
    rng, weights = random_weights(seed, 8)
    bonus = weights * rng.random() if with_bonus else None
    best = best_cuts(weights, size, bonus)
    for source, sink in itertools.permutations(range(len(weights)), 2):
        cut, bound = minimum_edge_cut(weights, size, source, sink, bonus)
        worth = 0.0 if bonus is None else bonus[np.ix_(cut.separators, cut.separators)].sum() / 2
        assert bound <= best[source, sink] + 1e-7
        assert cut.weights - worth >= best[source, sink] - 1e-7
        assert cut.separators.sum() <= size


@pytest.mark.slow
@settings(max_examples=40)
@given(SEEDS, st.integers(1, 3))
def test_integers_and_enough_sources_find_the_optimum(seed, size):
    _, weights = random_weights(seed, 8)
    sources = range(min(size + 1, len(weights)))
    found = [
        minimum_edge_cut(weights, size, source, sink, integer=True)[1]
        for source in sources
        for sink in range(len(weights))
        if sink != source
    ]
    assert min(found) == pytest.approx(best_cuts(weights, size).min(), abs=1e-7)


def test_one_source_is_not_enough():
    # The only good separator is the source.
    weights = np.array([[0, 5, 5], [5, 0, 1], [5, 1, 0]], dtype=float)
    found = [minimum_edge_cut(weights, 1, 0, sink, integer=True)[1] for sink in (1, 2)]
    assert min(found) == 5.0
    assert minimum_edge_cut(weights, 1, 1, 2, integer=True)[1] == 1.0


def test_bad_input():
    weights = np.ones((3, 3))
    for arguments, message in [
        ((np.ones(3), 1, 0, 1), r"weights: expected a square matrix, got shape \(3,\)"),
        ((weights, 1, 0, 1, -weights), "bonus: expected a symmetric matrix of finite numbers of at least 0"),
        ((weights, -1, 0, 1), "size: expected at least 0, got -1"),
        ((weights, 1, 0, 0), r"source: expected two different nodes in range\(3\), got 0 and 0"),
        ((weights, 1, 0, 3), r"sink: expected two different nodes in range\(3\), got 0 and 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            minimum_edge_cut(*arguments)
