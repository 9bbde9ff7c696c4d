"""Compiled functions where there is no folder to keep them in."""

import pytest


def test_without_a_cache():
    pytest.importorskip("numba")
    from pyro_structured.foundation.ops.compiled import compiled, compiled_in_any_order, compiled_in_place

    # Numba keeps no functions that are in no file.
    space = {}
    exec("def half(x):\n    return x / 2\ndef inverse(x):\n    return 1.0 / x", space)
    for each in (compiled, compiled_in_any_order, compiled_in_place):
        assert each(space["half"])(3.0) == 1.5
    assert compiled(space["inverse"])(0.0) == float("inf")
