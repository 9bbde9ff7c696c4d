"""Bounds of the cuts of subgraphs from flows of a graph, against linear programs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.junction_trees.solvers.edge_cut import SeparatorProgram
from pyro_structured.junction_trees.solvers.separator_flow import FlowBounds, SeparatorFlow

SEEDS = st.integers(0, 10**9)


def random_weights(rng, number):
    weights = rng.gamma(0.3, size=(number, number)) * (rng.random((number, number)) < rng.choice([0.4, 1.0]))
    weights = np.triu(weights, 1)
    return weights + weights.T


@settings(max_examples=40)
@given(SEEDS, st.integers(0, 3), st.integers(0, 2))
def test_bounds_and_solutions_of_parts(seed, size, smaller):
    rng = np.random.default_rng(seed)
    number = int(rng.integers(4, 10))
    weights = random_weights(rng, number)
    flow = SeparatorFlow(weights, size)
    for pair in itertools.combinations(range(number), 2):
        value = flow.solve(*pair).value
        assert flow.bound(*pair) == pytest.approx(value, abs=1e-7) and flow.bound(*pair[::-1]) == flow.bound(*pair)
    nodes, size = np.arange(number), max(size - smaller, 0)
    for count in (1, 2):
        kept = np.sort(rng.permutation(len(nodes))[count:])
        nodes = nodes[kept]
        # Heavier edges leave the bounds valid, too.
        weights = weights[np.ix_(kept, kept)] + random_weights(rng, len(nodes)) * (rng.random() < 0.5)
        flow = flow.within(weights, size, kept)
        bounds = {pair: flow.bound(*pair) for pair in itertools.permutations(range(len(nodes)), 2)}
        for (source, sink), bound in bounds.items():
            wanted = SeparatorProgram(weights, size, source).solve(sink).value
            found = flow.solve(source, sink)
            assert bound <= wanted + 1e-6
            assert found.value == pytest.approx(wanted, abs=1e-6)
            assert found.length.sum() <= size + 1e-9 or found.value == weights[source, sink]


def test_what_passes_through_a_node_is_taken_away():
    bounds = FlowBounds()
    bounds.add(3, 0, 5.0, 0.5, np.array([0.0, 1.5, 2.0, 0.0]))
    assert bounds.bound(0, 3, 2) == bounds.bound(3, 0, 2) == 4.0
    assert bounds.within(np.array([0, 2, 3])).bound(0, 2, 2) == 2.5
    assert bounds.within(np.array([0, 3])).bound(1, 0, 2) == 0.5
    assert bounds.within(np.array([0, 3])).bound(1, 0, 5) == 0.0
    assert bounds.within(np.array([0, 1, 2])).bound(0, 1, 0) == 0.0
