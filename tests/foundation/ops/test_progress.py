"""Bars on terminals, lines elsewhere, or nothing."""

import io
import sys

import pytest

from pyro_structured.foundation.ops import progress
from pyro_structured.foundation.ops.progress import progress_bar, verbosity


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, verbose, number=3):
    monkeypatch.setattr(sys, "stderr", stream)
    with verbosity(verbose):
        assert list(progress_bar(range(number), desc="starts", unit="start")) == list(range(number))
    return stream.getvalue()


@pytest.mark.parametrize("verbose", [None, True])
def test_a_bar_on_terminals(monkeypatch, verbose):
    assert "starts: " in shown(monkeypatch, Terminal(), verbose) and "\r" in sys.stderr.getvalue()


@pytest.mark.parametrize("verbose", [None, False, 0])
def test_nothing_elsewhere(monkeypatch, verbose):
    assert shown(monkeypatch, io.StringIO(), verbose) == ""


def test_nothing_on_terminals(monkeypatch):
    assert shown(monkeypatch, Terminal(), False) == ""


@pytest.mark.parametrize("verbose", [True, 1])
def test_lines_elsewhere(monkeypatch, verbose):
    lines = shown(monkeypatch, io.StringIO(), verbose).splitlines()
    assert lines == ["starts: 0/3, 00:00", "starts: 3/3, 00:00"]


def test_what_is_inside_has_lines_only_if_it_takes_long(monkeypatch):
    def run():
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with verbosity(True):
            for _ in progress_bar(range(2), desc="starts"):
                with verbosity(None):
                    list(progress_bar(range(2), desc="steps"))
        return stream.getvalue()

    assert "starts: 2/2" in run() and "steps" not in run()
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    assert "steps: 2/2" in run()


def test_what_is_none_of_these_is_refused():
    with pytest.raises(ValueError, match="verbose: expected None, True or False, got 'yes'"), verbosity("yes"):
        pass
