"""Results come in the order of the tasks, whatever the number of processes."""

import os

import pytest

from pyro_structured.foundation.ops.parallel_tasks import in_parallel
from pyro_structured.foundation.ops.progress import verbosity


def squared(number, log):
    log.append(number)
    return number**2, os.getpid()


@pytest.mark.parametrize("n_jobs", [None, 1, 2, -1])
def test_results_come_in_order(n_jobs):
    found = list(in_parallel(squared, ((number, []) for number in range(6)), 6, n_jobs))
    assert [square for square, _ in found] == [0, 1, 4, 9, 16, 25]
    assert n_jobs not in (None, 1) or {process for _, process in found} == {os.getpid()}
    assert n_jobs != 2 or os.getpid() not in {process for _, process in found}


def test_one_process_computes_what_is_asked_for():
    """So that what is finished can be kept."""
    log = []
    results = in_parallel(squared, ((number, log) for number in range(6)), 6, 1)
    assert next(results)[0] == 0 and log == [0] and next(results)[0] == 1


def grown(number):
    """Makes joblib believe that the memory of the process has grown."""
    from joblib.externals.loky import process_executor

    process_executor._MEMORY_LEAK_CHECK_DELAY, process_executor._MAX_MEMORY_LEAK_SIZE = 0.0, -(2**50)
    return number, os.getpid()


def test_processes_that_are_replaced():
    """Where warnings are errors, as in these tests, one of the thread that replaces them must not be lost."""
    found = list(in_parallel(grown, ((number,) for number in range(8)), 8, 2))
    assert [number for number, _ in found] == list(range(8)) and len({process for _, process in found}) > 2


def test_errors_come_through():
    with pytest.raises(ZeroDivisionError):
        list(in_parallel(divmod, [(1, 0), (1, 0)], 2, 2))


def test_lines_of_several_processes(capfd):
    with verbosity(True):
        list(in_parallel(squared, ((number, []) for number in range(2)), 2, 2**70, desc="squares"))
    out, lines = capfd.readouterr()
    assert out == "" and lines.splitlines()[-1].startswith("squares: 2/2")
