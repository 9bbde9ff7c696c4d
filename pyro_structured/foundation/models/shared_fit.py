"""Fits of estimators in programs of several processes: together, or each by itself."""

__all__ = ["SharedFit", "lone_fit"]

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from pyro_structured.foundation.inference.peer_processes import apart, present_peers, rank_and_size
from pyro_structured.foundation.models.argument_checks import plain_array
from pyro_structured.foundation.models.random_states import checked_generator
from pyro_structured.foundation.ops.process_sums import gathered, summed, sums_over
from pyro_structured.foundation.ops.progress import verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
# Hyperparameters that may differ between processes.
OWN = {"verbose", "n_jobs"}
# Largest number of characters of a hyperparameter that a message shows.
MOST_SHOWN = 60


class SharedFit:
    """Context of a fit in which each of several processes has some of the rows; in a single process, and without
    numbers of rows, of a fit of its own.

    Inside, sums of :mod:`process_sums` are over the rows of all. An error of one process is an error in all, as in
    :class:`PeerProcesses`; if it is one of the :meth:`checks`, nothing else has happened, and all may go on. Without
    numbers of rows, a warning says that each process learns by itself, and it does.

    :param estimator: The estimator.
    :param rows: Numbers of this process' rows, or ``None``.
    :ivar int rank: Number of this process among those that learn together.
    :ivar int size: Their number.
    """

    def __init__(self, estimator: Any, rows: Any) -> None:
        self._estimator, self._rows = estimator, rows
        self._peers = None if rows is None else present_peers()
        self.rank, self.size = (0, 1) if self._peers is None else (self._peers.rank, self._peers.size)
        self._is_checking, self._stack = False, ExitStack()
        self._numbers, self._total = np.zeros(0, dtype=np.int64), 0

    def __enter__(self) -> "SharedFit":
        if self._rows is None:
            _warn_of_lone_fit(self._estimator, "with rows=shard_rows(n) in fit all learn together")
            self._stack.enter_context(apart())
        elif self._peers is not None:
            self._stack.enter_context(self._peers.exchange())
            self._stack.enter_context(sums_over(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @contextmanager
    def checks(self, **given: Any) -> Iterator[None]:
        """Context of checks of what each process is given, at the end of which all have passed.

        :param given: Descriptions of arguments that have to be the same in all processes, as hyperparameters have to
            be.
        """
        if self._peers is None:
            yield
            return
        self._is_checking = True
        try:
            self._check_alike(self._parameters() | {name: repr(value) for name, value in given.items()})
            yield
        except BaseException as error:
            if error is not self._peers.shared:
                self._peers.agree("a fit", error)
            raise
        else:
            self._peers.agree("a fit")
        finally:
            self._is_checking = False

    def check_result(self, **results: Any) -> None:
        """Raises an error unless all processes have learned the same.

        :param results: Descriptions of what they have learned.
        """
        with self.checks(**results):
            pass

    def summed(self, array: np.ndarray) -> np.ndarray:
        """Sum of the arrays of all processes."""
        assert self._peers is not None
        if self._is_checking:
            self._peers.agree("a fit")
        tensor = torch.from_numpy(np.array(array)).to(self._peers.device)
        self._peers.sum(tensor)
        total: np.ndarray = tensor.cpu().numpy()
        return total

    def gathered(self, value: Any) -> list[Any]:
        """What all processes have, in their order."""
        assert self._peers is not None
        self._peers.agree("a fit")
        return self._peers.gather(value)

    def quiet(self) -> AbstractContextManager[None]:
        """Context in which one of the processes shows its progress."""
        return verbosity(False) if self.rank else nullcontext()

    def place(self, weights: np.ndarray) -> np.ndarray:
        """Finds this process' rows among those of all.

        :param np.ndarray weights: Weights of the rows of X, shape ``(N,)``.
        :return: Numbers of the rows of positive weight; among those of the process where it learns by itself.
        :raises ValueError: unless each row is in one process, or if columns of X differ.
        """
        if self._rows is None:
            return np.flatnonzero(weights)
        rows = _checked_rows(self._rows, len(weights))
        self._check_alike({"X": f"columns {self._columns()}"})
        self._total = sum(gathered(len(rows)))
        if rows[-1] >= self._total:
            raise ValueError(
                f"rows: expected numbers below that of the rows of all processes, {self._total}, got {rows[-1]}"
            )
        times: np.ndarray = np.zeros(self._total, dtype=np.int32)
        times[rows] = 1
        times = summed(times)
        if (times != 1).any():
            row = int((times != 1).argmax())
            raise ValueError(f"rows: expected each row in one process, got row {row} in {times[row] or 'none'}")
        self._numbers = rows[weights > 0]
        return self._numbers

    def all_weights(self, weights: np.ndarray) -> np.ndarray:
        """Weights of the rows of all processes, 0 where they are left out.

        :param np.ndarray weights: Weights of this process' rows that are not left out.
        """
        if self._peers is None:
            return weights
        every = np.zeros(self._total)
        every[self._numbers] = weights
        return summed(every)

    def own_places(self, places: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Which of some places among repeated rows of all processes are this process', as places among its repeated
        rows.

        :param np.ndarray times: How many times each row of all processes is repeated.
        """
        if self._peers is None:
            return places
        own: np.ndarray = np.zeros(self._total, dtype=bool)
        own[self._numbers] = True
        repeated = own.repeat(times)
        found: np.ndarray = (repeated.cumsum() - 1)[places[repeated[places]]]
        return found

    def generator(self, random_state: Any) -> np.random.RandomState:
        """Random number generator of a ``random_state``, the same in all processes."""
        generator = checked_generator(random_state)
        if self._peers is None:
            return generator
        if random_state is None:
            generator = np.random.RandomState(generator.randint(2**31))
        generator.set_state(self.gathered(generator.get_state())[0])
        return generator

    def _parameters(self) -> dict[str, str]:
        given = self._estimator.get_params(deep=False)
        state = given.pop("random_state", None)
        # Of generators, the state of process 0 is taken.
        shown = type(state).__name__ if isinstance(state, np.random.RandomState) else repr(state)
        parameters = {name: repr(value) for name, value in given.items() if name not in OWN}
        return {"estimator": type(self._estimator).__name__, "random_state": shown, **parameters}

    def _columns(self) -> Any:
        return list(getattr(self._estimator, "feature_names_in_", range(self._estimator.n_features_in_)))

    def _check_alike(self, own: dict[str, str]) -> None:
        """Raises a ValueError, which names the first that differs, unless descriptions are alike in all processes."""
        said = gathered(own)
        for name, first in said[0].items():
            for rank, other in enumerate(said):
                if other.get(name) != first:
                    shown = [str(each)[:MOST_SHOWN] for each in (first, other.get(name))]
                    raise ValueError(
                        f"{name}: expected the same in all processes, got {shown[0]} in rank 0 and {shown[1]} in rank "
                        f"{rank}"
                    )


def lone_fit(fit: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator of methods by which an estimator learns, if processes cannot learn it together: in a program of several
    processes a warning says that each learns by itself, and it does.
    """

    @wraps(fit)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        _warn_of_lone_fit(args[0], "this method has no rows=, by which all would learn together")
        with apart():
            return fit(*args, **kwargs)

    return call


def _warn_of_lone_fit(estimator: Any, remedy: str) -> None:
    size = rank_and_size()[1]
    if size > 1:
        warnings.warn(
            f"{type(estimator).__name__}: each of {size} processes learns by itself, from the rows that it is given; "
            f"{remedy}",
            stacklevel=frames_below_user(),
        )


def _checked_rows(rows: Any, number: int) -> np.ndarray:
    """Numbers of as many rows, increasing, or a ValueError."""
    numbers = np.asarray(plain_array(rows, "rows"))
    is_right = numbers.shape == (number,) and numbers.dtype.kind in "iu"
    if not is_right or numbers[0] < 0 or (np.diff(numbers.astype(np.int64)) <= 0).any():
        got = f"{numbers.dtype} of shape {numbers.shape}" if not is_right else f"others, from {numbers[0]}"
        raise ValueError(
            f"rows: expected the numbers of the {number} rows of X among those of all processes, increasing integers, "
            f"as shard_rows(n) returns them, got {got}"
        )
    return numbers.astype(np.int64)
