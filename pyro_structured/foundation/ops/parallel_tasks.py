"""Independent tasks in several processes."""

__all__ = ["in_parallel"]

import warnings
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any, TypeVar

from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, delayed

from pyro_structured.foundation.ops.progress import progress_bar, verbosity

Result = TypeVar("Result")


def in_parallel(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], total: int, n_jobs: Any, **shown: Any
) -> Iterator[Result]:
    """Results of a function for several arguments, in their order, as soon as they are available.

    :param function: A function with a name in its module, so that other processes find it.
    :param tasks: Arguments of each call. They are made one after the other, in this process.
    :param int total: Number of tasks, which is also the largest number of processes.
    :param n_jobs: Number of processes, as for scikit-learn: ``None`` is 1 unless in a ``joblib.parallel_config``; -1
        is one for each processor.
    :param shown: Options of :func:`progress_bar`: ``desc``, ``unit``.
    :raises ValueError: if ``n_jobs`` is not ``None`` or an integer other than 0.

    Example::

        >>> list(in_parallel(pow, [(2, 3), (3, 2)], 2, None, desc="powers"))
        [8, 9]
    """
    if n_jobs is not None and (isinstance(n_jobs, bool) or not isinstance(n_jobs, Integral) or n_jobs == 0):
        raise ValueError(f"n_jobs: expected None or an integer other than 0, got {n_jobs!r}")
    # Bars of several processes would be written over each other; arrays in files could not be written to.
    number = max(1, min(effective_n_jobs(n_jobs), total))
    if number > 1:
        # joblib replaces a process whose memory has grown, and warns. As an error, the warning would end the thread
        # that gives out the tasks, and the results would never come.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor", UserWarning)
    called = delayed(function if number == 1 else _Quiet(function))
    results = Parallel(n_jobs=number, return_as="generator", max_nbytes=None)(called(*task) for task in tasks)
    with progress_bar(total=total, **shown) as bar:
        for result in results:
            yield result
            # Raises an error when time is up, by which no result may be lost.
            bar.update()


class _Quiet:
    """A function without progress bars."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        with verbosity(False):
            return self.function(*arguments)
