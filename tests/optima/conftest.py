"""Compiled loops, and what replaces them."""

import sys

import pytest

from pyro_structured.optima.ops.optional_numba import compiled_function


@pytest.fixture
def hide_numba(monkeypatch):
    """Call it to go on as if numba were not installed."""

    def hide():
        monkeypatch.setitem(sys.modules, "numba", None)
        for name in ("compiled", "compiled_draw", "matching_sweep", "path_sweep"):
            monkeypatch.delitem(sys.modules, f"pyro_structured.optima.ops.{name}", raising=False)
        compiled_function.cache_clear()

    yield hide
    compiled_function.cache_clear()
