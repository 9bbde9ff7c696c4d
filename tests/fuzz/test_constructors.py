"""A small share of what `python tests/fuzz/constructors.py` calls."""

import importlib
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def fuzz():
    sys.path.insert(0, str(Path(__file__).parent))
    yield importlib.import_module("constructors")
    sys.path.pop(0)


def test_everything_public_has_an_example(fuzz):
    assert set(fuzz.EXAMPLES) == fuzz.public_names()


def test_examples_are_valid(fuzz):
    for name, examples in fuzz.EXAMPLES.items():
        for example in examples:
            assert fuzz.outcome(fuzz.public(name), example(), fuzz.FIRST_SECONDS) == "result", name


def test_mutated_calls(fuzz):
    found, failures = fuzz.make_all(range(1000, 1600))
    assert not failures
    assert set(found) >= {"ValueError", "TypeError", "result"}


def test_unnamed_errors_are_reported(fuzz):
    def make(number):
        return [1, 2][number]

    assert fuzz.outcome(make, {}) == "TypeError"
    with pytest.raises(IndexError):
        fuzz.outcome(make, {"number": 2})
    with pytest.raises(TypeError):
        fuzz.outcome(make, {"number": "some"})


def test_wrong_answers_are_reported(fuzz):
    class Improper(fuzz.dist.Normal):
        def log_prob(self, value):
            return torch.full_like(value, torch.nan)

    with pytest.raises(AssertionError, match="log_prob"):
        fuzz.outcome(Improper, {"loc": 0.0, "scale": 1.0})
