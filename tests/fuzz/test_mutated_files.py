"""A small share of what `python tests/fuzz/mutated_files.py` reads."""

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def fuzz():
    sys.path.insert(0, str(Path(__file__).parent))
    yield importlib.import_module("mutated_files")
    sys.path.pop(0)


def test_mutated_networks(fuzz, tmp_path):
    found = fuzz.read_mutated_networks(tmp_path, range(100, 300))
    assert set(found) == {"ValueError", "result"}


def test_mutated_data(fuzz, tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    assert set(fuzz.load_mutated_data(tmp_path, range(100, 200))) == {"ValueError", "result"}


def test_mutated_chains(fuzz, tmp_path):
    assert set(fuzz.read_mutated_chains(tmp_path, range(100, 200))) == {"ValueError", "result"}


def test_unnamed_errors_are_reported(fuzz, tmp_path):
    with pytest.raises(AssertionError, match="some error"):
        fuzz.outcome(lambda: (_ for _ in ()).throw(ValueError("some error")), [tmp_path])
    with pytest.raises(KeyError):
        fuzz.outcome(lambda: {}["name"], [tmp_path])
