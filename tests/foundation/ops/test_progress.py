"""Bars on terminals, lines elsewhere, or nothing."""

import io
import sys

import pytest

from pyro_structured.foundation.ops import progress
from pyro_structured.foundation.ops.parallel_tasks import in_parallel
from pyro_structured.foundation.ops.progress import TimeIsUp, progress_bar, time_limit, verbosity


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


class Clock:
    """A clock that a second goes by on whenever it is read."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", self.read)

    def read(self):
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("verbose", [None, True, False])
def test_time_limit(monkeypatch, verbose):
    Clock(monkeypatch)
    reached = []
    with verbosity(verbose), time_limit(4.5):
        with pytest.raises(TimeIsUp), time_limit(100.0):
            for step in progress_bar(range(10), desc="steps"):
                reached.append(step)
        # Time stays up, for everything inside.
        with pytest.raises(TimeIsUp):
            next(iter(progress_bar(range(10), desc="steps")))
    assert reached == [0, 1]
    assert list(progress_bar(range(3), desc="steps")) == [0, 1, 2]


def test_nothing_finished_is_lost_when_time_is_up(monkeypatch):
    Clock(monkeypatch)
    tasks, results = [(2, 3), (3, 2), (5, 2)], []
    with pytest.raises(TimeIsUp), time_limit(0.5):
        for result in in_parallel(pow, tasks, 3, None, desc="powers"):
            results.append(result)
    assert results == [8]
    with time_limit(2.5):
        # All is done when time is up.
        assert list(in_parallel(pow, tasks, 3, None, desc="powers")) == [8, 9, 25]
