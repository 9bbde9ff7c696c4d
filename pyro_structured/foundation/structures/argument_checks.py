"""Checks of arguments, with errors that name the argument, the expected value and the given one."""

__all__ = [
    "INTEGERS",
    "MAX_LEVELS",
    "check_choice",
    "check_dense",
    "check_flag",
    "check_last_axis",
    "check_levels",
    "check_positive",
    "check_size",
    "checked_batch",
    "checked_broadcast",
    "checked_edges",
    "checked_groups",
    "checked_indices",
    "checked_parents",
    "checked_partition",
    "checked_path",
    "checked_sequence",
    "checked_tensor",
    "checked_undirected_edges",
]

import math
import operator
from collections.abc import Iterable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_structured.foundation.ops.ancestral_order import ancestral_order
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

# A statistic has a weight, and a size, for every level.
MAX_LEVELS = 2**22
INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def check_size(name: str, size: object, least: int = 1) -> None:
    """Raises a ValueError, with the argument's name, unless it is an integer from ``least`` to 2 ** 31 - 1."""
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < least:
        raise ValueError(f"{name}: expected an integer of at least {least}, got {size!r}")
    if size >= 2**31:
        raise ValueError(f"{name}: expected an integer below 2 ** 31, got {size!r}")


def check_positive(name: str, number: object) -> None:
    """Raises a ValueError unless a number is finite and above 0."""
    if isinstance(number, bool) or not isinstance(number, Real) or not 0 < float(number) < math.inf:
        raise ValueError(f"{name}: expected a number above 0, got {number!r}")


def check_flag(name: str, flag: object) -> None:
    """Raises a ValueError, with the argument's name, unless it is True or False, of Python or numpy."""
    if not isinstance(flag, (bool, np.bool_)):
        raise ValueError(f"{name}: expected True or False, got {flag!r}")


def checked_path(name: str, path: object) -> Path:
    """A path, or a ValueError with the argument's name."""
    try:
        return Path(path)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name}: expected a path, got {path!r}") from None


def check_dense(name: str, tensor: Tensor) -> None:
    """Raises a ValueError, with the argument's name, if a tensor is sparse or complex."""
    if tensor.layout != torch.strided or tensor.is_complex():
        raise ValueError(f"{name}: expected a dense tensor of real numbers, got {tensor.dtype}, {tensor.layout}")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raises a ValueError, with the argument's name, unless it is one of the known words."""
    words = tuple(known)
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name}: expected one of {words}, got {value!r}")


def checked_tensor(name: str, expected: str, given: object, dtype: torch.dtype | None = None) -> Tensor:
    """Tensor of a number or a sequence of numbers, or a ValueError with the argument's name."""
    try:
        tensor = torch.as_tensor(given, dtype=dtype)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name}: expected {expected}, got {given!r}") from None
    check_dense(name, tensor)
    return tensor


def checked_batch(**shapes: torch.Size) -> torch.Size:
    """Shape to which the batch shapes of some arguments broadcast, or a ValueError with the first that does not."""
    batch = torch.Size()
    for name, shape in shapes.items():
        try:
            batch = broadcast_shapes(batch, shape)
        except RuntimeError:
            raise ValueError(
                f"{name}: expected a batch shape that broadcasts with {tuple(batch)}, that of the other arguments, got "
                f"{tuple(shape)}"
            ) from None
    return batch


def checked_broadcast(name: str, shapes: Sequence[torch.Size]) -> torch.Size:
    """Shape to which the batch shapes of the tensors of one argument broadcast, or a ValueError with its name."""
    try:
        return broadcast_shapes(*shapes)
    except RuntimeError:
        raise ValueError(
            f"{name}: expected batch shapes that broadcast, got {[tuple(shape) for shape in shapes]}"
        ) from None


def check_last_axis(name: str, tensor: Tensor, size: int) -> None:
    """Raises a ValueError, with the argument's name, unless it is a tensor whose last axis has a given length."""
    shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else None
    if shape is None or shape[-1:] != (size,):
        got = type(tensor).__name__ if shape is None else f"shape {shape}"
        raise ValueError(f"{name}: expected a tensor with a last axis of {size} numbers, got {got}")


def check_levels(name: str, num_levels: int, instead: str) -> None:
    """Raises a ValueError, with the argument's name and advice, if a statistic has more than ``2 ** 22`` levels."""
    if num_levels > MAX_LEVELS:
        raise ValueError(f"{name}: expected at most {MAX_LEVELS} levels, got {num_levels}; {instead}")


def checked_indices(name: str, indices: Iterable[int]) -> list[int]:
    """The integers of a sequence, or a ValueError with the argument's name."""
    try:
        return [operator.index(d) for d in indices]
    except TypeError:
        raise ValueError(f"{name}: expected a sequence of integers, got {indices!r}") from None


def checked_sequence(name: str, given: Iterable[Any]) -> list[Any]:
    """The members of a sequence, or a ValueError with the argument's name."""
    try:
        return list(given)
    except TypeError:
        raise ValueError(f"{name}: expected a sequence, got {given!r}") from None


def checked_edges(name: str, edges: object, num_nodes: int) -> Tensor:
    """Pairs of nodes in double-width integers, or a ValueError with the argument's name."""
    is_integer = isinstance(edges, Tensor) and edges.dtype in INTEGERS
    if not isinstance(edges, Tensor) or not is_integer or edges.dim() != 2 or edges.shape[1] != 2:
        got = f"{edges.dtype} of shape {tuple(edges.shape)}" if isinstance(edges, Tensor) else type(edges).__name__
        raise ValueError(f"{name}: expected a tensor of integers of shape (E, 2), got {got}")
    check_dense(name, edges)
    if not bool(((edges >= 0) & (edges < num_nodes)).all()):
        raise ValueError(
            f"{name}: expected nodes from 0 to {num_nodes - 1}, got some from {int(edges.min())} to {int(edges.max())}"
        )
    return edges.long()


def checked_undirected_edges(name: str, edges: object, num_nodes: int) -> Tensor:
    """Pairs of different nodes, at least one, on the processor, or a ValueError with the argument's name."""
    pairs = checked_edges(name, edges, num_nodes).cpu()
    loops = (pairs[:, 0] == pairs[:, 1]).nonzero()
    if not len(pairs) or len(loops):
        got = f"a loop, number {int(loops[0])}" if len(loops) else "none"
        raise ValueError(f"{name}: expected at least one edge, and no loops, got {got}")
    return pairs


def checked_groups(name: str, groups: Iterable[Iterable[int]]) -> list[list[int]]:
    """The integers of sequences of sequences, or a ValueError with the argument's name."""
    try:
        listed = groups.tolist() if isinstance(groups, Tensor) else groups
        return [[operator.index(d) for d in group] for group in listed]
    except (TypeError, RuntimeError):
        raise ValueError(f"{name}: expected sequences of integers, got {groups!r}") from None


def checked_parents(parents: Iterable[Iterable[int]]) -> list[list[int]]:
    """Parents of each of n variables, without repetitions and cycles, or a ValueError."""
    groups = checked_groups("parents", parents)
    for d, group in enumerate(groups):
        if len(set(group)) < len(group) or not all(0 <= parent < len(groups) and parent != d for parent in group):
            others = f"different numbers of other variables, below {len(groups)},"
            raise ValueError(f"parents: expected {others} for variable {d}, got {group}")
    rest = sorted(set(range(len(groups))) - set(ancestral_order(groups)))
    if rest:
        raise ValueError(f"parents: expected no variable to be its own ancestor, got a cycle among {rest}")
    return groups


def checked_partition(name: str, groups: Iterable[Iterable[int]]) -> list[list[int]]:
    """The groups of a partition of ``range(n)`` for any n, or a ValueError with the argument's name."""
    sets = checked_groups(name, groups)
    members = sorted(d for group in sets for d in group)
    if not sets or not all(sets) or members != list(range(len(members))):
        raise ValueError(f"{name}: expected a partition of range({len(members)}) into non-empty sets, got {sets}")
    return sets
