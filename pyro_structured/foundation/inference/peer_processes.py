"""Processes that learn together: what they agree on, and errors of one that are errors of all."""

__all__ = ["PeerProcesses", "apart", "present_peers", "rank_and_size"]

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from pyro_structured.foundation.inference.error_text import error_text
from pyro_structured.foundation.inference.nonfinite_error import NonFiniteError
from pyro_structured.foundation.ops.private_members import group_store

# What processes do together, by number; all of them have to do the same.
DOINGS = ("a step", "a score", "state_dict", "load_state_dict", "a step of the schedule", "a start", "a fit")
# Seconds between two signs of life; between two looks at the notes of other processes; and without a sign of life,
# after a connection has broken, until a process counts as ended.
BEAT, LOOK, SILENCE = 0.5, 0.1, 2.5
# Seconds for which a wait looks again at once, and the pause between looks afterwards.
EAGER, PAUSE = 1e-3, 2e-4
NOTE = "failed"
_APART: ContextVar[bool] = ContextVar("apart", default=False)


@contextmanager
def apart() -> Iterator[None]:
    """Context in which this process learns by itself, whatever others do."""
    token = _APART.set(True)
    try:
        yield
    finally:
        _APART.reset(token)


def rank_and_size() -> tuple[int, int]:
    """Number of this process among those that learn together, and their number; ``(0, 1)`` for one that learns by
    itself.
    """
    if _APART.get() or not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


class Agreement(NamedTuple):
    """What all processes said, in the order of their numbers.

    :ivar Tensor digests: Numbers that are to be compared.
    :ivar Tensor num_rows: Numbers of rows.
    :ivar Tensor numbers: Losses, scores, or whatever else.
    """

    digests: Tensor
    num_rows: Tensor
    numbers: Tensor

    @property
    def is_alike(self) -> bool:
        """Whether all digests are equal."""
        return len(self.digests.unique()) == 1

    @property
    def weights(self) -> Tensor:
        """Shares of the rows."""
        return self.num_rows / self.num_rows.sum()

    @property
    def mean(self) -> float:
        """Mean of the numbers, with these weights."""
        return float((self.weights * self.numbers).sum())


class PeerProcesses:
    """The processes of PyTorch's default process group.

    Whatever processes do together begins with an agreement, to which every process says whether it has failed. One that
    fails elsewhere, or is interrupted while it waits, leaves a note in the group's store, at which waiting processes
    look. One that ends without a word is known by its broken connection, and by signs of life that others give.

    :ivar rank: Number of this process.
    :ivar size: Number of processes.
    :ivar group: Weak reference to the process group, whose connections end with it.
    :ivar shared: The last error that is one of all processes, so that nobody has to be told.
    :ivar device: Device of tensors that processes can exchange.
    """

    def __init__(self) -> None:
        self.rank, self.size = rank_and_size()
        self.group = weakref.ref(dist.group.WORLD)
        self.shared: BaseException | None = None
        self._store = group_store()
        # NCCL moves tensors of CUDA devices only.
        on_cpu = "gloo" in dist.get_backend_config() or "mpi" in dist.get_backend_config()
        self.device = torch.device("cpu" if on_cpu else "cuda")
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        atexit.register(self._exit)

    def close(self) -> None:
        """Ends the signs of life."""
        self._ends.set()
        # Without a connection it may wait for long.
        self._thread.join(2 * BEAT)
        atexit.unregister(self._exit)

    def _exit(self) -> None:
        """Notes an error that ends the process for others."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and error is not self.shared:
            self._leave_note(f"rank {self.rank}: {error_text(error)}")
        self.close()

    def agree(
        self,
        doing: str,
        error: BaseException | None = None,
        digest: int = 0,
        num_rows: int = 0,
        number: float = 0.0,
    ) -> Agreement:
        """What all processes say; to be called by all of them.

        :param str doing: What comes next, one of ``DOINGS``; of no meaning with an error.
        :param error: An error by which this process has failed.
        :param int digest: Number from 0 to 2^48 - 1, to be compared.
        :param int num_rows: Number of rows of this process.
        :param float number: A number for the others.
        :raises ValueError: if processes do different things.
        :raises BaseException: ``error`` itself; in other processes an error of the same class, if it is a ValueError or
            a NotImplementedError, and otherwise a RuntimeError, with the number of the process that has failed.
        """
        said = (DOINGS.index(doing), error is not None, digest, num_rows, number)
        with self.exchange():
            own = torch.tensor(said, dtype=torch.double, device=self.device)
            rows = [torch.empty_like(own) for _ in range(self.size)]
            self._finish(lambda: dist.all_gather(rows, own, async_op=True))
            table = torch.stack(rows).cpu()
            if bool(table[:, 1].any()):
                self._raise_first(error)
            if len(table[:, 0].unique()) > 1:
                got = ", ".join(f"{DOINGS[int(number)]} in rank {rank}" for rank, number in enumerate(table[:, 0]))
                self.fail(ValueError(f"processes: expected all to do the same, got {got}"))
        return Agreement(*table[:, 2:].unbind(1))

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Context of an agreement and what follows from it: an error inside is a note for the others.

        They are in the middle of it too, so that no other agreement is possible.
        """
        try:
            yield
        except BaseException as error:
            if error is not self.shared:
                self._leave_note(f"rank {self.rank}: {error_text(error)}")
                self.shared = error
            raise

    def gather(self, value: Any) -> list[Any]:
        """What all processes have, in the order of their numbers; needs an agreement before."""
        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value)
        except RuntimeError as error:
            self._raise_lost(error)
        return values

    def sum(self, tensor: Tensor) -> None:
        """Replaces a tensor by its sum over all processes; needs an agreement before."""
        self._finish(lambda: dist.all_reduce(tensor, async_op=True))

    def broadcast(self, tensor: Tensor) -> None:
        """Replaces a tensor by that of process 0; needs an agreement before."""
        self._finish(lambda: dist.broadcast(tensor, 0, async_op=True))

    def fail(self, error: BaseException) -> NoReturn:
        """Raises an error that all processes raise by themselves."""
        self.shared = error
        raise error

    def _finish(self, start: Callable[[], Any]) -> None:
        """Starts work of all processes, and waits for its end.

        :raises RuntimeError: if a process has ended or left a note, with its number.
        """
        started = looked = time.monotonic()
        try:
            work = start()
            while not work.is_completed():
                now = time.monotonic()
                time.sleep(0.0 if now - started < EAGER else PAUSE)
                if now - looked > LOOK:
                    looked = now
                    self._look_around(work)
            work.wait()
        except RuntimeError as error:
            if error is self.shared:
                raise
            self._raise_lost(error)

    def _look_around(self, work: Any) -> None:
        """Raises a RuntimeError if another process has left a note, or the store has ended, in the middle of work."""
        try:
            self._read_note()
        except RuntimeError:
            # Others may be ready with the work, and end.
            if not work.is_completed():
                raise

    def _raise_first(self, own: BaseException | None) -> NoReturn:
        """Raises the error of this process, or that of the first one that has failed.

        Errors of numbers that are not finite come last, as steps may be skipped for them.
        """
        said = self.gather(None if own is None else (_kind(own), error_text(own), getattr(own, "loss", 0.0)))
        failed = [(kind is NonFiniteError, rank) for rank, kind in enumerate(each and each[0] for each in said) if kind]
        is_soft, rank = min(failed)
        if own is not None and isinstance(own, NonFiniteError) == is_soft:
            self.fail(own)
        kind, text, loss = said[rank]
        message = f"rank {rank}: {text}"
        self.fail(NonFiniteError(message, loss) if kind is NonFiniteError else kind(message))

    def _raise_lost(self, error: BaseException) -> NoReturn:
        """Raises an error that says which process has ended."""
        try:
            self._read_note()
            before, deadline = self._signs(), time.monotonic() + SILENCE
            while time.monotonic() < deadline:
                time.sleep(LOOK)
                self._read_note()
            silent = [rank for rank, sign in enumerate(self._signs()) if sign == before[rank] and rank != self.rank]
        except dist.DistError:
            silent = [0]
            lost = "rank 0, or torchrun, which keeps the store of the process group: expected an answer, got none"
        else:
            if not silent:
                self.fail(RuntimeError(f"processes: expected all to go on, got {error}"))
            names = " and ".join(f"rank {rank}" for rank in silent)
            lost = f"{names}: expected a process that goes on, got a broken connection and no sign of life"
        message = f"{lost}: it was killed, or it has ended; go on from the last state that was kept"
        self._leave_note(message)
        self.shared = RuntimeError(message)
        raise self.shared from error

    def _read_note(self) -> None:
        if self._store.check([NOTE]):
            self.fail(RuntimeError(self._store.get(NOTE).decode()))

    def _leave_note(self, text: str) -> None:
        # The store may have ended; connections then break.
        with suppress(dist.DistError):
            self._store.set(NOTE, text)
        # It may end with this process: others look before.
        time.sleep(2 * LOOK)

    def _live(self) -> None:
        """Gives signs of life, until the store has ended."""
        number = 0
        with suppress(dist.DistError):
            while not self._ends.wait(BEAT):
                number += 1
                self._store.set(f"life/{self.rank}", str(number))

    def _signs(self) -> list[bytes]:
        names = [f"life/{rank}" for rank in range(self.size)]
        return [self._store.get(name) if self._store.check([name]) else b"" for name in names]


def _kind(error: BaseException) -> type[Exception]:
    """Class of the error that other processes raise: their callers can do the same about it."""
    kinds = (NonFiniteError, ValueError, NotImplementedError)
    return next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)


_LATEST: list[PeerProcesses] = []


def present_peers() -> PeerProcesses | None:
    """The processes that learn together, or ``None`` for one that learns by itself."""
    if rank_and_size()[1] == 1:
        return None
    if _LATEST and _LATEST[0].group() is not dist.group.WORLD:
        _LATEST.pop().close()
    if not _LATEST:
        _LATEST.append(PeerProcesses())
    return _LATEST[0]
