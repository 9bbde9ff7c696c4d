"""Runs of one function with random numbers of their own, in several processes."""

__all__ = ["seeded_runs"]

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import pyro
import torch

from pyro_structured.foundation.inference.error_text import error_text
from pyro_structured.foundation.inference.random_state import same_random_state
from pyro_structured.foundation.ops.parallel_tasks import in_parallel

Result = TypeVar("Result")
# NumPy takes seeds of 32 bits.
NUM_SEEDS = 2**32


def seeded_runs(
    function: Callable[[int], Result], number: int, n_jobs: Any, name: str, argument: str, **shown: Any
) -> list[Result]:
    """Results of ``function(0)``, ``function(1)``, ...: the same ones whatever the number of processes.

    Each run has random numbers of its own. They depend on PyTorch's generator, which moves on by one draw; all others
    stay as they were. In every process, runs find Pyro's parameters and settings and torch's default dtype and device
    as they are here, and what they change of these is forgotten.

    :param function: Function of the number of a run; with several processes, it and its results have to be picklable.
    :param int number: Number of runs.
    :param n_jobs: Number of processes, as for :func:`in_parallel`.
    :param str name: What a run is called in errors.
    :param str argument: What the function's data are called in errors.
    :param shown: Options of :func:`progress_bar`: ``desc``, ``unit``.
    :raises ValueError: if the function cannot be sent to other processes.
    :raises ValueError: or a NotImplementedError, or a RuntimeError for all other errors, if a run fails; the text
        begins with the run's name and number, and other runs are given up.
    :raises RuntimeError: if a process has ended; of joblib, whose text says more.
    """
    first, here = int(torch.randint(NUM_SEEDS, (), device="cpu")), _Surroundings.present()
    tasks = ((function, run, name, (first + run) % NUM_SEEDS, here) for run in range(number))
    try:
        return list(in_parallel(_run, tasks, number, n_jobs, **shown))
    except pickle.PicklingError as error:
        # joblib quotes the original error.
        reason = str(error.__cause__ or error).strip('"\n ').splitlines()[-1]
        raise ValueError(f"{argument}: expected what can be sent to other processes, got {reason}") from error


class _Surroundings(NamedTuple):
    """What runs depend on besides their function and random numbers.

    :ivar dict parameters: State of Pyro's store.
    :ivar dict settings: Pyro's settings.
    """

    parameters: Any
    settings: dict[str, Any]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def present() -> "_Surroundings":
        parameters = pyro.get_param_store().get_state()
        return _Surroundings(parameters, pyro.settings.get(), torch.get_default_dtype(), torch.get_default_device())

    @contextmanager
    def restored(self) -> Iterator[None]:
        # Runs may change parameters in place.
        copied = {name: value.detach().clone().requires_grad_() for name, value in self.parameters["params"].items()}
        state: Any = {**self.parameters, "params": copied}
        dtype = torch.get_default_dtype()
        try:
            torch.set_default_dtype(self.dtype)
            # Settings of modules that a process has not imported change nothing there.
            known = {name: self.settings[name] for name in self.settings.keys() & pyro.settings.get().keys()}
            # Where a device is set, all operations are slower.
            here = nullcontext() if torch.get_default_device() == self.device else self.device
            with here, pyro.settings.context(**known), pyro.get_param_store().scope(state):
                yield
        finally:
            torch.set_default_dtype(dtype)


def _run(function: Callable[[int], Result], run: int, name: str, seed: int, surroundings: _Surroundings) -> Result:
    with same_random_state(), surroundings.restored():
        pyro.set_rng_seed(seed)
        try:
            return function(run)
        except Exception as error:
            kinds = (ValueError, NotImplementedError)
            kind = next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)
            # Not every error can be sent to another process.
            raise kind(f"{name} {run}: {error_text(error)}") from error
