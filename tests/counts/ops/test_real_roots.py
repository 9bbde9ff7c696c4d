"""Laws that are said to have real roots have them; lowered laws are below the given ones."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyro_structured.counts.ops.real_roots import has_real_roots, real_rooted_below


def log_binomials(size):
    return np.array([math.log(math.comb(size, k)) for k in range(size + 1)])


def roots_are_real(law):
    """By numerical roots with 80 digits."""
    finite = np.flatnonzero(np.isfinite(law))
    inside = range(finite[0], finite[-1] + 1)
    with mpmath.workdps(80):
        weights = [mpmath.exp(mpmath.mpf(float(law[k]))) if np.isfinite(law[k]) else mpmath.mpf(0) for k in inside]
        coefficients = [weight * math.comb(len(law) - 1, k) for k, weight in zip(inside, weights, strict=True)]
        if len(coefficients) == 1:
            return True
        try:
            roots = mpmath.polyroots(coefficients[::-1], maxsteps=500, extraprec=2000)
        except mpmath.libmp.NoConvergence:
            assume(False)
        return all(abs(mpmath.im(root)) <= abs(root) * mpmath.mpf(10) ** -20 for root in roots)


def random_law(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    kind = seed % 4
    if kind == 0:
        polynomial = np.ones(1)
        for probability in rng.random(size):
            polynomial = np.convolve(polynomial, [1 - probability, probability])
        return np.log(polynomial) - log_binomials(size), rng
    if kind == 1:
        return -3 * rng.random() * (np.arange(size + 1) - rng.random() * size) ** 2, rng
    if kind == 2:
        law = np.where(rng.random(size + 1) < 0.6, 0.0, -np.inf)
        law[rng.integers(size + 1)] = 0.0
        return law, rng
    return rng.normal(size=size + 1), rng


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6))
def test_proofs_and_lowered_laws(seed):
    law, rng = random_law(seed)
    if has_real_roots(law):
        # Products of linear factors may have roots so near to each other that rounded coefficients have none.
        assert seed % 4 == 0 or roots_are_real(law)
    else:
        assert seed % 4 == 2 or not roots_are_real(law)
    centre = int(rng.choice(np.flatnonzero(np.isfinite(law))))
    lowered = real_rooted_below(torch.from_numpy(law), torch.tensor(centre)).numpy()
    assert (lowered <= law).all() and lowered[centre] == pytest.approx(law[centre], abs=1e-12)
    assert has_real_roots(lowered) and (seed % 4 == 0 or roots_are_real(lowered))


def test_known_laws():
    for allowed, expected in (((2,), True), ((2, 3), True), ((0, 1), True), ((0, 1, 2), False), ((0, 3), False)):
        law = np.full(7, -np.inf)
        law[list(allowed)] = 0.0
        assert has_real_roots(law) == expected
    assert has_real_roots(2.0 * np.arange(200))
    # A Poisson-binomial law, by Sturm's chain.
    many = np.ones(1)
    for probability in np.linspace(0.05, 0.95, 20):
        many = np.convolve(many, [1 - probability, probability])
    assert has_real_roots(np.log(many) - log_binomials(20))


def test_batches():
    torch.manual_seed(0)
    tables = torch.randn(3, 5, 8, dtype=torch.double)
    tables[0, 0, 3] = -math.inf
    centres = torch.randint(4, 8, (3, 5))
    lowered = real_rooted_below(tables, centres)
    for place in np.ndindex(3, 5):
        torch.testing.assert_close(lowered[place], real_rooted_below(tables[place], centres[place]))
    assert bool((lowered[0, 0, :4] == -math.inf).all())
