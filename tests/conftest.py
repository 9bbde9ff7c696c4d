"""Slow tests; checks that hold for all distributions of exchangeable vectors given evidence; life without numba."""

import math
import sys
from collections import defaultdict
from zlib import crc32

import pytest
import torch

from pyro_structured.foundation.ops.optional_numba import compiled_function

# Modules that import numba.
COMPILED = [
    "compiled",
    "compiled_cells",
    "compiled_counts",
    "compiled_draw",
    "compiled_exponentials",
    "compiled_gamma",
    "compiled_interval",
    "compiled_mass",
    "compiled_noise",
    "compiled_normal_mass",
    "compiled_pieces",
    "compiled_quantile",
    "compiled_slopes",
    "compiled_student",
    "compiled_transport",
    "compiled_walk",
    "cut_sweep",
    "matching_chord",
    "matching_sweep",
    "maximum_flow",
    "path_sweep",
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of the cases of a test that is marked ``slow(keep=n)``, n are quick: drawn, but always the same."""
    cases = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("slow")
        if marker is not None and marker.kwargs:
            cases[item.nodeid.partition("[")[0], marker.kwargs["keep"]].append(item)
    for (_, keep), group in cases.items():
        for item in sorted(group, key=lambda item: crc32(item.nodeid.encode()))[:keep]:
            item.own_markers.remove(item.get_closest_marker("slow"))


@pytest.fixture
def hide_numba(monkeypatch):
    """Call it to go on as if numba were not installed."""

    def hide():
        monkeypatch.setitem(sys.modules, "numba", None)
        for name in COMPILED:
            for wing in ("foundation", "counts", "junction_trees", "optima"):
                monkeypatch.delitem(sys.modules, f"pyro_structured.{wing}.ops.{name}", raising=False)
        compiled_function.cache_clear()

    yield hide
    compiled_function.cache_clear()


@pytest.fixture(scope="session")
def check_evidence():
    """A function that compares all queries given random evidence, added in two steps, with enumeration.

    It returns the values, where they are observed, and the distribution given them; ``None`` if they are impossible.
    """
    return _check_evidence


def _check_evidence(d, generator, tolerance=1e-9):
    def assert_close(found, expected, factor=1.0, smallest=1.0):
        torch.testing.assert_close(found, expected, rtol=factor * tolerance, atol=smallest * factor * tolerance)

    values = d.enumerate_support()
    log_p = d.log_prob(values).unsqueeze(1)
    assert_close(log_p.logsumexp(0), torch.zeros_like(log_p[0]), 10)
    categories = int(values.max()) + 1
    shape = (3, *[1] * len(d.batch_shape), *d.event_shape)
    value = torch.randint(categories, shape, generator=generator).to(values)
    first, second = (torch.rand(shape, generator=generator) < 0.3 for _ in range(2))
    observed = first | second
    agrees = ((values.unsqueeze(1) == value) | ~observed).all(-1)
    joint = log_p.masked_fill(~agrees, -math.inf)
    expected = joint.logsumexp(0)
    assert_close(d.marginal_log_prob(value, observed), expected)
    both = d.condition(value, first).condition(value, second)
    assert both.batch_shape == (3, *d.batch_shape)
    for name, constraint in d.arg_constraints.items():
        tensor = getattr(both, name)
        assert tensor.shape[: tensor.dim() - constraint.event_dim] == both.batch_shape
    if not (expected > -math.inf).all():
        for query in (lambda: both.marginals, lambda: both.sample(), lambda: both.mode, lambda: both.entropy()):
            with pytest.raises(ValueError, match="value: expected evidence of positive probability"):
                query()
        return value, observed, None
    assert_close(both.log_partition_function - d.log_partition_function, expected)
    log_given = joint - expected
    probs = log_given.exp()
    assert_close(both.log_prob(values.unsqueeze(1)), log_given)
    on = (values.unsqueeze(1).unsqueeze(-1) == torch.arange(categories)).double()
    marginals = torch.einsum("v...,v...nc->...nc", probs, on)
    assert_close(both.marginals, marginals[..., 1] if categories == 2 else marginals, smallest=1e-3)
    assert_close(both.entropy(), -(probs * log_given.masked_fill(probs == 0, 0.0)).sum(0), 10)
    assert_close(both.log_prob(both.mode), log_given.amax(0))
    assert (both.log_prob(both.sample((5,))) > -math.inf).all()
    return value, observed, both
