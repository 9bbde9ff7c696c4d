"""Cuts of a graph, the best first: their order, and that those that cannot be best are not sought."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.junction_trees.models.graph_cut_search import RankedCuts
from pyro_structured.junction_trees.solvers.edge_cut import worths
from pyro_structured.junction_trees.solvers.separator_flow import SeparatorFlow

SEEDS = st.integers(0, 10**9)


def random_weights(rng, number):
    """Random weights, some of them zero, many small."""
    weights = rng.gamma(0.3, size=(number, number)) * (rng.random((number, number)) < rng.choice([0.4, 0.8, 1.0]))
    weights = np.triu(weights, 1)
    return weights + weights.T


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 4), st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from([0.0, 0.3]))
def test_order(seed, size, discount, tolerance):
    rng = np.random.default_rng(seed)
    weights = random_weights(rng, int(rng.integers(3, 14)))
    size = min(size, len(weights) - 2)
    bonus = discount * weights * (rng.random() < 0.5 or np.triu(rng.random(weights.shape) < 0.7))
    bonus = np.triu(bonus) + np.triu(bonus).T
    found = list(RankedCuts(SeparatorFlow(weights, size), weights, bonus, size, tolerance))
    for weight, separator, side in found:
        assert separator.sum() <= size and side.any() and not (side & separator).any() and not (side | separator).all()
        assert weight == pytest.approx(side @ weights @ ~(side | separator), abs=1e-9)
    assert len({(separator.tobytes(), side.tobytes()) for _, separator, side in found}) == len(found)
    values = np.array([weight - worths(bonus, separator[None])[0] for weight, separator, _ in found])
    later = np.minimum.accumulate(values[::-1])[::-1]
    # No cut that is found later on, when nothing is left to look at, is better.
    assert (values <= later + tolerance + 1e-9).all()


def test_small_separators_come_first_among_those_about_as_good():
    # A chain: between any two ends, a separator of one node loses nothing.
    weights = np.diag(np.ones(5), 1) + np.diag(np.ones(5), -1)
    found = iter(RankedCuts(SeparatorFlow(weights, 2), weights, 0.01 * weights, 2, 0.1))
    sizes = [separator.sum() for weight, separator, _ in found if weight == 0.0]
    assert set(sizes) == {1, 2} and sizes == sorted(sizes)


def test_pairs_that_cannot_be_best_are_not_solved():
    rng = np.random.default_rng(0)
    weights = np.triu(1 + rng.random((12, 12)), 1)
    weights[:, 11] /= 100
    weights += weights.T
    flow = SeparatorFlow(weights, 2)
    for pair in itertools.permutations(range(12), 2):
        flow.solve(*pair)
    solved = []

    class Counted(SeparatorFlow):
        def solve(self, source, sink):
            solved.append((source, sink))
            return super().solve(source, sink)

    again = flow.within(weights, 2, np.arange(12))
    again.__class__ = Counted
    weight, _, side = next(iter(RankedCuts(again, weights, np.zeros_like(weights), 2, 0.0)))
    assert weight < 0.2 and side.sum() in (1, 9) and len(solved) == 3
    assert {sink for _, sink in solved} == {11}
