"""Functions of tensors that a CUDA device replays in one launch."""

__all__ = ["RecordedFunction"]

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Number of recordings, of different shapes, that are kept.
MOST_RECORDINGS = 4


class _Recording(NamedTuple):
    """A recorded call.

    :ivar graph: What is replayed.
    :ivar arguments: Tensors that it reads.
    :ivar results: Tensors that it writes.
    """

    graph: torch.cuda.CUDAGraph
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


class RecordedFunction:
    """A function of tensors; on CUDA devices, launches are recorded from the second call of the same shapes on.

    Many small operations take a CUDA device less time than Python needs to launch them; a recording takes one launch.
    On other devices, the function is called as it is.

    :param function: Function of tensors of one device that returns a tuple of new tensors. It must not look at values,
        nor move tensors between devices. Other tensors that it reads or writes must stay where they are. It is pickled
        and copied without recordings.

    Example::

        >>> RecordedFunction(lambda x, y: (x + y, x * y))(torch.tensor(2.0), torch.tensor(3.0))
        (tensor(5.), tensor(6.))
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self._function = function
        self._recordings: dict[tuple[tuple[torch.Size, torch.dtype], ...], _Recording | None] = {}

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Results of the function, which are the caller's."""
        # Of tensors without elements, there may be nothing to record.
        if arguments[0].device.type != "cuda" or not all(tensor.numel() for tensor in arguments):
            return self._function(*arguments)
        key = tuple((tensor.shape, tensor.dtype) for tensor in arguments)
        recording = None
        if key in self._recordings:
            recording = self._recordings.pop(key) or self._record(arguments)
        # The latest one comes last, the first ones are given up.
        self._recordings[key] = recording
        while len(self._recordings) > MOST_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]
        if recording is None:
            # The first call makes what libraries of the device make once.
            return self._function(*arguments)
        for static, tensor in zip(recording.arguments, arguments, strict=True):
            static.copy_(tensor)
        recording.graph.replay()
        return tuple(tensor.clone() for tensor in recording.results)

    def _record(self, arguments: tuple[Tensor, ...]) -> _Recording:
        static, graph = tuple(tensor.clone() for tensor in arguments), torch.cuda.CUDAGraph()
        with torch.cuda.device(arguments[0].device), torch.no_grad(), torch.cuda.graph(graph):
            results = self._function(*static)
        return _Recording(graph, static, results)

    def __reduce__(self) -> tuple[type["RecordedFunction"], tuple[Callable[..., tuple[Tensor, ...]]]]:
        return RecordedFunction, (self._function,)
