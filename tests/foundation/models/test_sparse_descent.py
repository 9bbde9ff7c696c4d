"""Minima with an L1 penalty against closed forms."""

import numpy as np

from pyro_structured.foundation.models.sparse_descent import descend

RNG = np.random.default_rng(0)


def quadratic(centre):
    return lambda x: (0.5 * ((x - centre) ** 2).sum(), x - centre)


def test_quadratics_are_shrunk():
    """From any start, also one with zeros and both signs; entries without a price are the centre's."""
    centre, prices = RNG.normal(size=50) * 2, RNG.integers(2, size=50) * RNG.random(50)
    expected = np.sign(centre) * np.maximum(np.abs(centre) - prices, 0)
    for start in (np.zeros(50), RNG.normal(size=50), -centre):
        seen = []
        found = descend(quadratic(centre), start, prices, 1e-10, 100, seen.append)
        np.testing.assert_allclose(found.vector, expected, atol=1e-9)
        assert (found.vector[expected == 0] == 0).all() and (expected == 0).any()
        assert found.slope <= 1e-10 and len(seen) == found.num_iterations
        np.testing.assert_array_equal(seen[-1], found.vector)


def test_the_end_is_told():
    scales = np.logspace(0, 4, 20)

    def steep(x):
        return 0.5 * (scales * (x - 1) ** 2).sum(), scales * (x - 1)

    few = descend(steep, np.zeros(20), np.zeros(20), 1e-10, 2)
    assert few.num_iterations == 2 and few.slope > 1e-10

    def interrupt(vector):
        raise KeyboardInterrupt

    stopped = descend(steep, np.zeros(20), np.zeros(20), 1e-10, 100, interrupt)
    assert stopped.slope is None and stopped.num_iterations == 1 and stopped.vector.any()
    assert descend(steep, np.ones(20), np.zeros(20), 1e-10, 100).num_iterations == 0
