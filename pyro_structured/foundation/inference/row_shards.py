"""Rows of plates that a process has, when several learn together."""

__all__ = ["shard_rows"]

import torch
from torch import Tensor

from pyro_structured.foundation.inference.peer_processes import rank_and_size
from pyro_structured.foundation.structures.argument_checks import check_size


def shard_rows(n: int) -> Tensor:
    """Numbers of the rows of a plate that this process has, of those that learn together; all in a single process.

    Process r of R has rows r, r + R, r + 2 R, ...: numbers of rows differ by at most one. They are given to the plate,
    ``pyro.plate("rows", n, subsample=rows)``, and to :class:`DistributedOptim`; or to an estimator, as
    ``ThinJunctionTree().fit(X[rows], rows=rows)``.

    :param int n: Number of rows of all processes together, at least that of processes.
    :return: Increasing numbers below n, shape ``(m,)``.
    :raises ValueError: if there are fewer rows than processes.

    Example::

        >>> shard_rows(5)
        tensor([0, 1, 2, 3, 4])
    """
    check_size("n", n)
    rank, size = rank_and_size()
    if n < size:
        raise ValueError(f"n: expected at least one row for each of {size} processes, got {n}")
    return torch.arange(rank, n, size)
