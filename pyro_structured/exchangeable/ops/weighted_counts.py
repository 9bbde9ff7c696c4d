"""Numbers of ones in blocks of binary variables with weights of their own, from sums over binary trees of the blocks.

Cells stand for the numbers of ones of all blocks, as in :class:`~pyro_structured.structures.Partition`.
"""

__all__ = [
    "PairTree",
    "block_log_marginals",
    "block_log_mass",
    "block_peak_tables",
    "block_tables",
    "pair_tree",
    "split_counts",
]

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.log_convolution import log_convolve, log_correlate, max_convolve
from pyro_structured.exchangeable.ops.level_sets import normalize
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.vmap_rows import broadcast_rows, broadcast_shapes


class PairTree(NamedTuple):
    """Nodes that are single variables, pairs of variables of a block, pairs of pairs and so on, up to whole blocks.

    :ivar pairs: For each level above the variables, the two nodes of the level below that each node joins, shape
        ``(..., nodes, 2)``; the number of nodes below where there is none.
    :ivar tops: Whole blocks among the nodes of all levels, at the blocks' smallest variables, shape ``(..., n)``; the
        number of all nodes elsewhere.
    :ivar cells: Counts of whole blocks among those of all nodes, shape ``(..., 2 n)``; the number of all counts in
        unused cells.
    """

    pairs: tuple[Tensor, ...]
    tops: Tensor
    cells: Tensor

    def to(self, device: torch.device) -> "PairTree":
        """The tree on a device."""
        return PairTree(tuple(pairs.to(device) for pairs in self.pairs), self.tops.to(device), self.cells.to(device))


def pair_tree(labels: Tensor, sizes: Tensor, cell_blocks: Tensor, cell_counts: Tensor) -> PairTree:
    """Builds the trees of a partition, or of a batch of different ones.

    :param Tensor labels: Blocks of the variables, named by their smallest ones, shape ``(..., n)``.
    :param Tensor sizes: Sizes of the blocks, at their smallest variables, 0 elsewhere, shape ``(..., n)``.
    :param Tensor cell_blocks: Blocks of the cells, shape ``(..., 2 n)``.
    :param Tensor cell_counts: Numbers of ones that the cells stand for, shape ``(..., 2 n)``.
    """
    number = labels.shape[-1]
    places = torch.arange(number, device=labels.device)
    # Blocks stand one after the other.
    order = labels.argsort(dim=-1, stable=True)
    ordered = labels.gather(-1, order)
    size, first = sizes.gather(-1, ordered), (sizes.cumsum(-1) - sizes).gather(-1, ordered)
    rank = places - first
    # Of the nodes of a level that begin at the places, their numbers; and whole blocks, as far as these are complete.
    node, num_nodes = order, number
    top, start, all_nodes, all_cells = order, 2 * order, number, 2 * number
    pairs, width = [], 1
    largest = int(sizes.amax()) if sizes.numel() else 0
    while width < largest:
        begins = (rank % (2 * width) == 0) & (size > width)
        count = int(begins.sum(-1).amax())
        left = places.masked_fill(~begins, number).sort(-1).values[..., :count]
        is_alone = (begins & (rank + width >= size)).gather(-1, left.clamp(max=number - 1))
        right = (left + width).masked_fill(is_alone, number)
        known = torch.nn.functional.pad(node, (0, 1), value=num_nodes)
        pairs.append(torch.stack([known.gather(-1, side.clamp(max=number)) for side in (left, right)], -1))
        node, num_nodes, width = begins.cumsum(-1) - 1, count, 2 * width
        is_whole = begins & (size <= width)
        top = torch.where(is_whole, all_nodes + node, top)
        start = torch.where(is_whole, all_cells + node * (width + 1), start)
        all_nodes, all_cells = all_nodes + count, all_cells + count * (width + 1)
    place_of = order.argsort(-1)
    tops, starts = top.gather(-1, place_of).masked_fill(sizes == 0, all_nodes), start.gather(-1, place_of)
    unused = cell_counts > sizes.gather(-1, cell_blocks)
    cells = (starts.gather(-1, cell_blocks) + cell_counts).masked_fill(unused, all_cells)
    return PairTree(tuple(pairs), tops, cells)


def block_tables(tree: PairTree, log_weights: Tensor) -> list[Tensor]:
    """Logarithms of the summed weights of all vectors with each number of ones in a node, level by level.

    :param PairTree tree: The blocks.
    :param Tensor log_weights: Log-weights of zeros and of ones, float64, shape ``(..., n, 2)``, less than +inf.
    :return: Shapes ``(..., nodes, width + 1)``. Cost :math:`O(n m)` for blocks of up to m variables, in O(log m) steps
        that wait for each other.
    """
    return _tables(tree, log_weights, log_convolve)


def block_peak_tables(tree: PairTree, log_weights: Tensor) -> list[Tensor]:
    """Largest log-weights in place of sums; arguments and shapes as for :func:`block_tables`."""
    return _tables(tree, log_weights, max_convolve)


def block_log_mass(tree: PairTree, tables: list[Tensor]) -> Tensor:
    r"""Log-weights of the numbers of ones in whole blocks: elementary symmetric polynomials.

    :param PairTree tree: The blocks.
    :param tables: Result of :func:`block_tables`.
    :return: Shape ``(..., 2 n)``; -inf in unused cells.

    Example::

        >>> from pyro_structured.structures import Partition
        >>> tree = Partition(torch.tensor([0, 1, 0])).tree
        >>> tables = block_tables(tree, torch.tensor([[1.0, 2.0], [4.0, 1.0], [1.0, 3.0]]).double().log())
        >>> block_log_mass(tree, tables).exp().round()
        tensor([1., 5., 6., 4., 1., 0.], dtype=torch.float64)
    """
    flat = torch.cat(broadcast_rows(*(table.flatten(-2) for table in tables)), -1)
    flat, cells = broadcast_rows(torch.nn.functional.pad(flat, (0, 1), value=-math.inf), tree.cells)
    return flat.gather(-1, cells)


def block_log_marginals(tree: PairTree, tables: list[Tensor], cell_weights: Tensor) -> Tensor:
    """Log-probabilities of zeros and of ones if the blocks' numbers of ones have weights, too.

    :param tables: Result of :func:`block_tables`.
    :param Tensor cell_weights: Log-weights of the cells, float64, shape ``(..., 2 n)``.
    :return: Shape ``(..., n, 2)``.
    """
    shapes = [table.shape[-2:] for table in tables]
    # Log-weights of everything outside of a node, given its number of ones: of whole blocks, then of their parts.
    cells, weights, _ = broadcast_rows(tree.cells, cell_weights, tables[0][..., 0])
    flat = weights.new_full(weights.shape[:-1] + (sum(map(math.prod, shapes)) + 1,), -math.inf)
    parts = flat.scatter(-1, cells, weights)[..., :-1].split([math.prod(shape) for shape in shapes], -1)
    outside = [part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True)]
    for level in reversed(range(len(tree.pairs))):
        sides = tree.pairs[level].unbind(-1)
        batch = flat.shape[:-1] + sides[0].shape[-1:]
        joined = [_nodes(tables[level], side).expand(batch + shapes[level][-1:]) for side in sides]
        for side, sibling in zip(sides, reversed(joined), strict=True):
            outside[level] = _put(outside[level], side, log_correlate(outside[level + 1], sibling))
    return normalize(outside[0] + tables[0])


def split_counts(
    tree: PairTree, tables: list[Tensor], counts: Tensor, choose: Callable[[Tensor], Tensor] = draw_log
) -> Tensor:
    """Draws vectors with given numbers of ones in the blocks in proportion to their weights: the number of ones of
    each node is split among the nodes that it joins, from whole blocks to variables.

    :param tables: Result of :func:`block_tables`.
    :param Tensor counts: Numbers of ones, at the blocks' smallest variables, integers of shape ``(..., n)``; where one
        is impossible, the result is arbitrary.
    :param choose: Chooses indices by log-weights along the last axis; if it takes the largest one, and tables are those
        of :func:`block_peak_tables`, the vectors are ones of largest weight.
    :return: Integers of shape ``(..., n)``.
    """
    tops, counts, _ = broadcast_rows(tree.tops, counts, tables[-1][..., 0, :])
    numbers = [table.shape[-2] for table in tables]
    flat = torch.zeros(counts.shape[:-1] + (sum(numbers) + 1,), dtype=torch.long, device=counts.device)
    levels = list(flat.scatter(-1, tops, counts)[..., :-1].split(numbers, -1))
    for level in reversed(range(len(tree.pairs))):
        total, sides = levels[level + 1], tree.pairs[level].unbind(-1)
        left, right = (_nodes(tables[level], side) for side in sides)
        left, right = (table.expand(total.shape + table.shape[-1:]) for table in (left, right))
        largest = left.shape[-1] - 1
        other = total.unsqueeze(-1) - torch.arange(largest + 1, device=total.device)
        rest = right.gather(-1, other.clamp(0, largest)).masked_fill((other < 0) | (other > largest), -math.inf)
        first = choose(left + rest)
        for side, number in zip(sides, (first, total - first), strict=True):
            levels[level] = _put(levels[level].unsqueeze(-1), side, number.unsqueeze(-1)).squeeze(-1)
    # Impossible numbers have no halves.
    values: Tensor = levels[0].clamp(0, 1)
    return values


def _tables(tree: PairTree, log_weights: Tensor, convolve: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    tables = [log_weights]
    for pairs in tree.pairs:
        tables.append(convolve(*(_nodes(tables[-1], side) for side in pairs.unbind(-1))))
    return tables


def _nodes(table: Tensor, numbers: Tensor) -> Tensor:
    """Rows of a level's table; a number past the last is that of a node without variables, which has no ones."""
    nothing = table.new_full(table.shape[:-2] + (1, table.shape[-1]), -math.inf)
    nothing[..., 0] = 0.0
    padded = torch.cat([table, nothing], -2)
    batch = broadcast_shapes(table.shape[:-2], numbers.shape[:-1])
    index = numbers.unsqueeze(-1).expand(batch + numbers.shape[-1:] + table.shape[-1:])
    return padded.expand(batch + padded.shape[-2:]).gather(-2, index)


def _put(table: Tensor, numbers: Tensor, rows: Tensor) -> Tensor:
    """A level's table with other rows; those with a number past the last are left out."""
    padded = torch.nn.functional.pad(table, (0, 0, 0, 1))
    return padded.scatter(-2, numbers.unsqueeze(-1).expand(rows.shape), rows)[..., :-1, :]
