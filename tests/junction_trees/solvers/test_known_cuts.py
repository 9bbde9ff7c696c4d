"""Cuts that are known: the cheapest ones, in a graph and in a part of it, against all of them."""

import itertools

import numpy as np
import pytest

from pyro_structured.junction_trees.solvers.separator_flow import KnownCuts, SeparatorCut


def test_known_cuts_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    weights = np.triu(rng.gamma(0.3, size=(6, 6)), 1)
    weights += weights.T
    known, cuts = KnownCuts(weights, np.empty((2, 6, 0), dtype=bool)), []
    for _ in range(40):
        places = rng.integers(3, size=6)
        near, far = places == 0, places == 1
        cuts.append(SeparatorCut(float(near @ weights @ far), int((places == 2).sum()), near, far))
        known.add(cuts[-1])
    nodes = np.array([0, 2, 3, 5])
    box = np.ix_(nodes, nodes)
    parts = [SeparatorCut(0.0, 0, cut.source_side[nodes], cut.sink_side[nodes]) for cut in cuts]
    parts = [
        part._replace(
            weight=float(part.source_side @ weights[box] @ part.sink_side),
            size=int((~(part.source_side | part.sink_side)).sum()),
        )
        for part in parts
    ]
    for found, expected in ((known, cuts), (known.within(weights[box], nodes), parts)):
        for source, sink in itertools.permutations(range(4), 2):
            numbers = found.between(source, sink)
            valid = [cut for cut in expected if cut.source_side[source] and cut.sink_side[sink]]
            assert bool(len(numbers)) == bool(valid)
            for price in (0.0, 0.3, 10.0) if valid else ():
                best = found.cheapest(numbers, price)
                assert best.cost(price) == pytest.approx(min(cut.cost(price) for cut in valid))
                assert best.source_side[source] and best.sink_side[sink]
                assert not (best.source_side & best.sink_side).any()
