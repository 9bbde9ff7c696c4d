"""Compiled functions are found where numba is installed."""

import re
from pathlib import Path

import pytest

import pyro_structured
from pyro_structured.foundation.ops.optional_numba import compiled_function

USES = sorted(
    {
        use
        for path in Path(pyro_structured.__file__).parent.rglob("*.py")
        for use in re.findall(r'compiled_function\("([\w.]+)", "(\w+)"\)', path.read_text())
    }
)


@pytest.mark.parametrize("module, name", USES)
def test_functions_exist(module, name):
    pytest.importorskip("numba")
    assert callable(compiled_function(module, name))


def test_all_uses_are_seen():
    assert len(USES) >= 4


def test_nothing_without_numba(hide_numba):
    pytest.importorskip("numba")
    hide_numba()
    assert all(compiled_function(*use) is None for use in USES)


def test_other_modules_are_no_excuse():
    with pytest.raises(ModuleNotFoundError, match="nonsense"):
        compiled_function("nonsense", "nonsense")
