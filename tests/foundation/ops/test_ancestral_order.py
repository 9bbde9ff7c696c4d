"""Orders of variables, parents first."""

import numpy as np
import pytest

from pyro_structured.foundation.ops.ancestral_order import ancestral_order


@pytest.mark.parametrize("seed", range(20))
def test_parents_come_first(seed):
    rng = np.random.default_rng(seed)
    names = rng.permutation(12)
    parents = [[] for _ in names]
    for place, d in enumerate(names):
        parents[d] = [int(e) for e in names[:place] if rng.random() < 0.3]
    order = ancestral_order(parents)
    places = {d: place for place, d in enumerate(order)}
    assert sorted(order) == list(range(12))
    assert all(places[above] < places[d] for d in order for above in parents[d])


def test_cycles_and_what_is_below_them_are_left_out():
    assert ancestral_order([[1], [0], [1], [], [3, 3], [4, 2]]) == [3, 4]
    assert ancestral_order([[0]]) == []


def test_long_chains():
    """The number of steps is that of the edges: with a step for each pair of variables, this would take minutes."""
    assert ancestral_order([[], *([d] for d in range(30_000))]) == list(range(30_001))
