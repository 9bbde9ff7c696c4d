"""Partitions of variables into blocks."""

__all__ = ["Partition"]

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.weighted_counts import PairTree, pair_tree
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import (
    check_dense,
    check_last_axis,
    check_size,
    checked_broadcast,
    checked_groups,
)
from pyro_structured.foundation.structures.representation import Represented


class Partition(Represented):
    r"""Blocks of variables, one partition or a batch of them.

    Every block is named after its smallest variable, so that equal partitions have equal labels; labels are given in
    any way that is equal inside a block and different between blocks. Every block of s variables owns a table of
    ``s + 1`` numbers, one for each count of its ones; the tables stand one after the other, blocks in the order of
    their names, in a vector of ``table_size = 2 n`` numbers, whose last ones are not used unless all blocks are single
    variables. Partitions of a batch may differ: ``partition[z]`` chooses those of a class z, also of an enumerated one.

    :param Tensor labels: Labels of the variables' blocks, integers of shape ``(..., n)``.
    :raises ValueError: if they are not integers, or there are no variables.

    Example::

        >>> partition = Partition(torch.tensor([[5, 5, 7, 5], [0, 1, 1, 2]]))
        >>> partition.labels.tolist()
        [[0, 0, 2, 0], [0, 1, 1, 3]]
        >>> partition[torch.tensor(1)].blocks()
        [[0], [1, 2], [3]]
    """

    def __init__(self, labels: Tensor) -> None:
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(f"labels: expected a tensor of integers, got {getattr(labels, 'dtype', labels)!r}")
        check_dense("labels", labels)
        if labels.dim() < 1 or not labels.shape[-1]:
            raise ValueError(f"labels: expected shape (..., n) with n of at least 1, got {tuple(labels.shape)}")
        self.labels = _smallest_members(labels)

    @classmethod
    def from_blocks(cls, blocks: Sequence[Sequence[int]], num_variables: int) -> "Partition":
        """Makes a partition from blocks; variables in none of them are blocks of their own.

        :param blocks: Disjoint sets of variables.
        :param int num_variables: Number of variables n.

        Example::

            >>> Partition.from_blocks([[3, 1]], num_variables=4).labels
            tensor([0, 1, 2, 1])
        """
        check_size("num_variables", num_variables)
        labels = torch.arange(int(num_variables))
        seen: set[int] = set()
        for index, members in enumerate(checked_groups("blocks", blocks)):
            wrong = [d for d in members if d in seen or not 0 <= d < num_variables]
            if wrong or len(set(members)) < len(members):
                raise ValueError(
                    f"blocks: expected disjoint subsets of range({num_variables}), got {members} in blocks[{index}]"
                )
            seen.update(members)
            if members:
                labels[members] = min(members)
        return cls(labels)

    @property
    def num_variables(self) -> int:
        """Number of variables n."""
        return self.labels.shape[-1]

    @property
    def table_size(self) -> int:
        """Length of all tables together, padded: ``2 n``."""
        return 2 * self.num_variables

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of partitions."""
        return self.labels.shape[:-1]

    def expand(self, batch_shape: Any) -> "Partition":
        """Partitions of another batch shape, without copying."""
        try:
            return self._like(self.labels.expand(torch.Size(batch_shape) + self.labels.shape[-1:]))
        except RuntimeError:
            raise ValueError(
                f"batch_shape: expected a shape to which {tuple(self.batch_shape)} expands, got {tuple(batch_shape)}"
            ) from None

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("len() of a single partition")
        return self.batch_shape[0]

    def __iter__(self) -> Iterator["Partition"]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> "Partition":
        chosen = self.labels[index]
        if chosen.shape[-1:] != self.labels.shape[-1:]:
            raise ValueError(f"index: expected one into the batch shape {tuple(self.batch_shape)}, got {index!r}")
        return self._like(chosen)

    def _like(self, labels: Tensor) -> "Partition":
        new = Partition.__new__(Partition)
        new.labels = labels
        return new

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and torch.equal(self.labels, other.labels)

    def __hash__(self) -> int:
        return hash(self.labels.shape)

    def __repr__(self) -> str:
        return f"Partition(batch_shape={tuple(self.batch_shape)}, num_variables={self.num_variables})"

    def blocks(self) -> list[list[int]]:
        """The blocks of a single partition."""
        if self.batch_shape:
            raise ValueError(f"blocks: expected a single partition, got a batch of shape {tuple(self.batch_shape)}")
        blocks: dict[int, list[int]] = {}
        for variable, label in enumerate(self.labels.tolist()):
            blocks.setdefault(label, []).append(variable)
        return list(blocks.values())

    def pack(self, tables: Sequence[Tensor]) -> Tensor:
        """Concatenates tables, one for each block of a single partition, in the order of :meth:`blocks`.

        :param tables: Tensors of shape ``batch + (len(block) + 1,)`` whose batch shapes broadcast.
        :return: Shape ``batch + (table_size,)``; zeros where unused.

        Example::

            >>> Partition(torch.tensor([0, 1, 0])).pack([torch.ones(3), torch.tensor([2.0, 3.0])])
            tensor([1., 1., 1., 2., 3., 0.])
        """
        blocks = self.blocks()
        if len(tables) != len(blocks):
            raise ValueError(f"tables: expected {len(blocks)} tables, one for each block, got {len(tables)}")
        for index, (table, block) in enumerate(zip(tables, blocks, strict=True)):
            check_last_axis(f"tables[{index}]", table, len(block) + 1)
        padded = [*tables, tables[0].new_zeros(self.num_variables - len(blocks))]
        batch = checked_broadcast("tables", [table.shape[:-1] for table in tables])
        return torch.cat([table.expand(batch + table.shape[-1:]) for table in padded], -1)

    def split(self, statistic_logits: Tensor) -> tuple[Tensor, ...]:
        """Splits packed tables, as of :meth:`pack` or ``count_marginals``, into views of a single partition's blocks.

        :param Tensor statistic_logits: Packed tables, shape ``(..., table_size)``.
        :return: Tensors of shape ``(..., len(block) + 1)``, in the order of :meth:`blocks`.
        """
        check_last_axis("statistic_logits", statistic_logits, self.table_size)
        widths = [len(block) + 1 for block in self.blocks()]
        parts: tuple[Tensor, ...] = statistic_logits[..., : sum(widths)].split(widths, -1)
        return parts

    def count(self, marked: Tensor) -> Tensor:
        """Counts marked variables in every block.

        :param Tensor marked: Booleans of shape ``(..., n)`` that broadcast with the partitions.
        :return: Integers of the same shape, at the blocks' smallest variables; 0 elsewhere.
        """
        check_last_axis("marked", marked, self.num_variables)
        shape = broadcast_shapes(marked.shape, self.labels.shape)
        empty = torch.zeros(shape, dtype=torch.long, device=self.labels.device)
        return empty.scatter_add(-1, self.labels.expand(shape), marked.expand(shape).long())

    @cached_property
    def sizes(self) -> Tensor:
        """Sizes of the blocks, at their smallest variables; 0 elsewhere; shape ``(..., n)``."""
        return self.count(torch.ones_like(self.labels, dtype=torch.bool))

    @cached_property
    def starts(self) -> Tensor:
        """First cells of the blocks' tables, at their smallest variables, shape ``(..., n)``."""
        widths = (self.sizes + 1) * (self.sizes > 0)
        return widths.cumsum(-1) - widths

    @cached_property
    def cell_blocks(self) -> Tensor:
        """Names of the blocks whose tables the cells are in, shape ``(..., 2 n)``; the last block's where unused."""
        is_first = torch.zeros(
            self.labels.shape[:-1] + (self.table_size + 1,), dtype=torch.long, device=self.labels.device
        )
        named = self.sizes > 0
        is_first.scatter_(-1, self.starts.masked_fill(~named, self.table_size), 1)
        order = is_first[..., :-1].cumsum(-1) - 1
        names = torch.arange(self.num_variables, device=self.labels.device).expand(self.labels.shape)
        names = names.masked_fill(~named, self.num_variables).sort(-1).values
        return names.gather(-1, order)

    @cached_property
    def cell_counts(self) -> Tensor:
        """Counts that the cells stand for, shape ``(..., 2 n)``; larger than the last block where unused."""
        cells = torch.arange(self.table_size, device=self.labels.device)
        return cells - self.starts.gather(-1, self.cell_blocks)

    @cached_property
    def tree(self) -> PairTree:
        """Binary trees of the variables of all blocks, for sums over variables with weights of their own."""
        return pair_tree(self.labels, self.sizes, self.cell_blocks, self.cell_counts)


def _smallest_members(labels: Tensor) -> Tensor:
    """Replaces every label by the first place where it stands."""
    ordered, order = labels.sort(dim=-1, stable=True)
    places = torch.arange(labels.shape[-1], device=labels.device)
    repeated = torch.nn.functional.pad(ordered[..., 1:] == ordered[..., :-1], (1, 0))
    first = places.masked_fill(repeated, 0).cummax(-1).values
    return torch.empty_like(order).scatter_(-1, order, order.gather(-1, first))
