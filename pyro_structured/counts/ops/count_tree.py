"""Sum-product message passing for potentials on the counts of nested subsets, with messages in log space."""

__all__ = ["CountTree", "Merge", "downward", "posterior", "root_log_partition", "rounding_errors", "upward"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_structured.counts.ops.log_convolution import log_convolve, log_correlate
from pyro_structured.foundation.ops.evidence import log_odds
from pyro_structured.foundation.ops.log_space import logsumexp

UNIT_ROUNDOFF = 2.0**-53
# An entry RARE_DROP nats, and RARE_DOUBT of its potential, below others of its node has no weight in log Z.
RARE_DROP = 100.0
RARE_DOUBT = 2.0**-40


@dataclass(frozen=True)
class Merge:
    """Nodes that are computed together: each is the sum of a left count and a right count.

    ``left`` and ``right`` hold the cells of the children, shapes ``(nodes, width)``; ``start`` is the first of the
    ``nodes * width`` cells of the results. Narrower messages are padded with the tree's dummy cell, which holds
    -inf. The ``..._ids``, shape ``(nodes,)``, number the nodes themselves.
    """

    left: Tensor
    right: Tensor
    start: int
    nodes: int
    width: int
    node_ids: Tensor
    left_ids: Tensor
    right_ids: Tensor

    @property
    def stop(self) -> int:
        """The first cell behind the results."""
        return self.start + self.nodes * self.width


@dataclass(frozen=True)
class CountTree:
    """A schedule for message passing in a forest of binary additions of counts.

    All messages of a forest lie in one flat buffer of ``num_cells`` cells and a dummy cell. Variable ``d`` owns the
    cells ``2 d`` and ``2 d + 1``, the log weights of its values. ``table_cells`` maps every entry of the count
    potentials to the cell it adds to (the dummy's successor for the one entry of an empty subset, and the dummy
    itself for counts that were truncated). ``roots`` holds the cells of the roots, grouped by width, shapes
    ``(nodes, width)``, ``root_ids`` their numbers.
    """

    num_variables: int
    num_nodes: int
    num_cells: int
    merges: tuple[Merge, ...]
    roots: tuple[Tensor, ...]
    root_ids: tuple[Tensor, ...]
    table_cells: Tensor

    @staticmethod
    def build(
        num_variables: int, merges: np.ndarray, tables: Sequence[tuple[int, int]], max_counts: np.ndarray
    ) -> "CountTree":
        """Plans the passes for a forest.

        :param int num_variables: Nodes ``0 ... num_variables - 1`` are the variables.
        :param numpy.ndarray merges: Node ``num_variables + i`` adds the counts of the nodes ``merges[i]``, shape
            ``(num_merges, 2)``; children come before parents.
        :param tables: For every subset its node (-1 for the empty subset) and its size.
        :param numpy.ndarray max_counts: Largest count of every node whose probability may be positive; messages are
            truncated to it, which is the O(Dk) case of the paper.
        :return: The schedule; nodes of one height and similar widths are computed together.
        """
        num_nodes = num_variables + len(merges)
        widths = max_counts + 1
        starts = np.zeros(num_nodes, dtype=np.int64)
        starts[:num_variables] = 2 * np.arange(num_variables)
        groups = _group_merges(num_variables, merges, widths)
        position, planned = 2 * num_variables, []
        for group in groups:
            width = int(widths[num_variables + group].max())
            starts[num_variables + group] = position + width * np.arange(len(group))
            planned.append((group, position, width))
            position += width * len(group)
        dummy = position
        steps = tuple(
            Merge(
                _cells(starts[merges[group, 0]], widths[merges[group, 0]], dummy),
                _cells(starts[merges[group, 1]], widths[merges[group, 1]], dummy),
                start,
                len(group),
                width,
                torch.from_numpy(num_variables + group),
                torch.from_numpy(merges[group, 0]),
                torch.from_numpy(merges[group, 1]),
            )
            for group, start, width in planned
        )
        is_root = np.ones(num_nodes, dtype=bool)
        is_root[merges.ravel()] = False
        root_groups = _by_width(np.flatnonzero(is_root), widths)
        roots = tuple(_cells(starts[nodes], widths[nodes], dummy) for nodes in root_groups)
        root_ids = tuple(torch.from_numpy(nodes) for nodes in root_groups)
        table_cells = [_table_cells(node, size, starts, widths, dummy) for node, size in tables]
        cells = np.concatenate(table_cells) if table_cells else np.zeros(0, dtype=np.int64)
        return CountTree(num_variables, num_nodes, dummy, steps, roots, root_ids, torch.from_numpy(cells))

    def to(self, device: torch.device) -> "CountTree":
        """Copies the indices to a device."""

        def move(record: Any) -> Any:
            tensors = {k: v.to(device) for k, v in vars(record).items() if isinstance(v, Tensor)}
            return replace(record, **tensors)

        moved: CountTree = replace(
            move(self),
            merges=tuple(move(merge) for merge in self.merges),
            roots=tuple(cells.to(device) for cells in self.roots),
            root_ids=tuple(ids.to(device) for ids in self.root_ids),
        )
        return moved


def _group_merges(num_variables: int, merges: np.ndarray, widths: np.ndarray) -> list[np.ndarray]:
    height = np.zeros(num_variables + len(merges), dtype=np.int64)
    for i, (left, right) in enumerate(merges.tolist()):
        height[num_variables + i] = 1 + max(height[left], height[right])
    # Widths of one group differ by less than a factor of two, so that padding wastes little.
    scale = np.ceil(np.log2(widths[merges])).astype(np.int64) if len(merges) else np.zeros((0, 2), np.int64)
    keys = np.stack([height[num_variables:], scale[:, 0], scale[:, 1]], 1)
    if not len(keys):
        return []
    _, inverse = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    return np.split(order, np.flatnonzero(np.diff(inverse.ravel()[order])) + 1)


def _by_width(nodes: np.ndarray, widths: np.ndarray) -> list[np.ndarray]:
    return [nodes[widths[nodes] == width] for width in np.unique(widths[nodes])]


def _cells(starts: np.ndarray, widths: np.ndarray, dummy: int) -> Tensor:
    counts = np.arange(int(widths.max()))
    return torch.from_numpy(np.where(counts < widths[:, None], starts[:, None] + counts, dummy))


def _table_cells(node: int, size: int, starts: np.ndarray, widths: np.ndarray, dummy: int) -> np.ndarray:
    if node < 0:
        return np.array([dummy + 1])
    counts = np.arange(size + 1)
    return np.where(counts < widths[node], starts[node] + counts, dummy)


def leaf_weights(logits: Tensor) -> Tensor:
    """Log weights of 0 and 1, relative to the larger one: sums of huge log-odds would lose the small ones."""
    positive = logits > 0
    on, off = torch.where(positive, 0.0, logits), torch.where(positive, -logits, 0.0)
    return torch.stack([off, on], -1).flatten(-2)


def upward(
    tree: CountTree,
    logits: Tensor,
    count_logits: Tensor,
    convolve: Callable[[Tensor, Tensor], Tensor] = log_convolve,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Passes messages from the variables to the roots.

    :param CountTree tree: The schedule.
    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64; an infinite one clamps its variable.
    :param Tensor count_logits: Log-potentials, shape ``(rows, table_size)``; -inf is allowed.
    :param convolve: :func:`log_convolve` sums over the counts, :func:`max_convolve` maximises.
    :return: ``(messages, potentials, log_scale)``: messages and potentials of shape ``(rows, num_cells + 2)``. Every
        message includes its node's potential and is scaled so that its largest entry is 0; ``log_scale``, shape
        ``(rows,)``, holds the sum of all subtracted peaks, relative to the heaviest vector without tables.
        Cost :math:`O(\sum_v n_{l(v)} n_{r(v)})`.
    """
    rows = logits.shape[0]
    potentials = logits.new_zeros(rows, tree.num_cells + 2)
    potentials = potentials.index_add(1, tree.table_cells, count_logits)
    messages = torch.full_like(potentials, -math.inf)
    leaves = slice(0, 2 * tree.num_variables)
    messages[:, leaves] = leaf_weights(logits) + potentials[:, leaves]
    log_scale = potentials[:, -1]
    for merge in tree.merges:
        left, right = gather(messages, merge.left), gather(messages, merge.right)
        merged = convolve(left, right)[..., : merge.width]
        merged = merged + potentials[:, merge.start : merge.stop].view(rows, merge.nodes, merge.width)
        peak = finite_peak(merged)
        messages[:, merge.start : merge.stop] = (merged - peak).flatten(1)
        log_scale = log_scale + peak.sum((1, 2))
    return messages, potentials, log_scale


def gather(buffer: Tensor, cells: Tensor) -> Tensor:
    """Reads cells of shape ``(nodes, width)`` from a buffer: shape ``(rows, nodes, width)``."""
    return buffer[:, cells.view(-1)].view(buffer.shape[0], *cells.shape)


def set_roots(tree: CountTree, messages: Tensor) -> Tensor:
    """A buffer like ``messages`` for the messages from outside: that of a root is constant."""
    outside = torch.full_like(messages, -math.inf)
    for cells in tree.roots:
        outside[:, cells.view(-1)] = 0.0
    return outside


def finite_peak(messages: Tensor) -> Tensor:
    """Largest entries along the last axis, which is kept; 0 where all are -inf. Without a gradient."""
    peak = messages.detach().amax(-1, keepdim=True)
    return peak.masked_fill(peak == -math.inf, 0.0)


def root_log_partition(tree: CountTree, messages: Tensor, log_scale: Tensor) -> Tensor:
    """Sums over the counts of all roots: the excess of log Z over the heaviest vector without tables, shape
    ``(rows,)``.
    """
    for cells in tree.roots:
        log_scale = log_scale + logsumexp(messages[:, cells]).sum(-1)
    return log_scale


def downward(tree: CountTree, messages: Tensor, potentials: Tensor) -> Tensor:
    """Passes messages from the roots to the variables.

    :param CountTree tree: The schedule.
    :param Tensor messages: Upward messages, shape ``(rows, num_cells + 2)``.
    :param Tensor potentials: The potentials of the cells, of the same shape.
    :return: For every cell the log weight of everything outside the node, scaled so that its largest entry is 0; of the
        same shape. Cost as for :func:`upward`.
    """
    rows = messages.shape[0]
    outside = set_roots(tree, messages)
    for merge in reversed(tree.merges):
        total = outside[:, merge.start : merge.stop] + potentials[:, merge.start : merge.stop]
        left, right = gather(messages, merge.left), gather(messages, merge.right)
        truncated = left.shape[-1] + right.shape[-1] - 1 - merge.width
        total = torch.nn.functional.pad(total.view(rows, merge.nodes, merge.width), (0, truncated), value=-math.inf)
        to_left, to_right = log_correlate(total, right), log_correlate(total, left)
        outside[:, merge.left.view(-1)] = (to_left - finite_peak(to_left)).flatten(1)
        outside[:, merge.right.view(-1)] = (to_right - finite_peak(to_right)).flatten(1)
    return outside


def posterior(tree: CountTree, messages: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Combines the messages from inside and outside of every node.

    :return: ``(marginal_logits, log_posterior)``: the posterior log-odds of the variables, shape
        ``(rows, num_variables)``, and the log-probabilities of the counts in all cells, shape ``(rows, num_cells +
        2)``.
    """
    rows = messages.shape[0]
    joint = messages + outside
    leaves = joint[:, : 2 * tree.num_variables].view(rows, tree.num_variables, 2)
    parts = [_normalise(leaves).flatten(1)]
    for merge in tree.merges:
        parts.append(_normalise(joint[:, merge.start : merge.stop].view(rows, merge.nodes, merge.width)).flatten(1))
    # The dummy's counts are impossible; the empty subset's one count is certain.
    unused = torch.tensor([-math.inf, 0.0], dtype=joint.dtype, device=joint.device).expand(rows, 2)
    return log_odds(*leaves.unbind(-1)), torch.cat([*parts, unused], -1)


def _normalise(log_weights: Tensor) -> Tensor:
    return log_weights - logsumexp(log_weights).unsqueeze(-1)


def rounding_errors(
    tree: CountTree, messages: Tensor, count_logits: Tensor, outside: Tensor, log_scale: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Bounds the errors of the log partition function and of the log-odds, after a pass in log space.

    An entry of a convolution of n terms whose logarithms are at most R in size is computed with a relative error below
    :math:`(n + 16 + 6R + 2F)\,u`, F being the size of the node's tables, which may cancel one another. Relative errors
    of non-negative sums do not grow, so those of all the nodes that an entry depends on add up.

    Only entries that are not much rarer than others matter to log Z; and to the log-odds of a variable, those that are
    not much rarer than its rarer value. So bounds are also computed for these, and the smaller ones count.

    :return: Shapes ``(rows,)`` and ``(rows, num_variables)``.
    """
    sizes = count_logits.masked_fill(count_logits.isinf(), 0.0).abs()
    sizes = torch.zeros_like(messages).index_add(1, tree.table_cells, sizes)
    joint = messages + outside
    odds = log_odds(*joint[:, : 2 * tree.num_variables].unflatten(-1, (-1, 2)).unbind(-1))
    rare = _rare_cells(tree, joint, sizes)
    relevant = [buffer.masked_fill(rare, 0.0) for buffer in (messages, sizes, outside)]
    depth = len(tree.merges) + 2
    all_errors, relevant_errors = _largest_errors(tree, messages, sizes, outside), _largest_errors(tree, *relevant)
    log_z_errors = (
        all_errors[0] + depth * log_scale.abs(),
        relevant_errors[0]
        + depth * (log_scale.abs() + relevant[0].masked_fill(rare | relevant[0].isinf(), 0.0).abs().sum(-1)),
    )
    per_odds = 24 * tree.num_nodes * odds.masked_fill(~odds.isfinite(), 0.0).abs()
    odds_errors = (
        (all_errors[0] + all_errors[1]).unsqueeze(-1).expand_as(odds),
        (relevant_errors[0] + relevant_errors[1]).unsqueeze(-1) + per_odds,
    )
    return UNIT_ROUNDOFF * (torch.minimum(*log_z_errors) + 64), UNIT_ROUNDOFF * 2 * torch.minimum(*odds_errors)


def _rare_cells(tree: CountTree, joint: Tensor, sizes: Tensor) -> Tensor:
    """Booleans that mark entries whose weight, with all outside of their node, is far below that of others."""
    rare = torch.ones_like(joint, dtype=torch.bool)
    groups = [(slice(0, 2 * tree.num_variables), 2)]
    groups += [(slice(merge.start, merge.stop), merge.width) for merge in tree.merges]
    for cells, width in groups:
        near, own = (buffer[:, cells].unflatten(-1, (-1, width)) for buffer in (joint, sizes))
        doubt = RARE_DROP + RARE_DOUBT * own
        rare[:, cells] = (near < near.amax(-1, keepdim=True) - doubt).flatten(1)
    return rare


def _largest_errors(tree: CountTree, messages: Tensor, sizes: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of log Z, and errors that the downward pass adds, in units of rounding; both of shape ``(rows,)``."""
    rows = messages.shape[0]

    def size(tensor: Tensor) -> Tensor:
        return tensor.masked_fill(tensor.isinf(), 0.0).abs().amax(-1)

    upward_error, downward_error = messages.new_zeros(rows), messages.new_zeros(rows)
    for merge in tree.merges:
        nodes = slice(merge.start, merge.stop)
        left, right = gather(messages, merge.left), gather(messages, merge.right)
        inside = size(left) + size(right)
        here = size(sizes[:, nodes].view(rows, merge.nodes, merge.width))
        above = size(outside[:, nodes].view(rows, merge.nodes, merge.width))
        terms = min(left.shape[-1], right.shape[-1])
        upward_error = upward_error + (terms + 16 + 6 * inside + 2 * here).sum(-1)
        downward_error = downward_error + 2 * (2 * merge.width + 16 + 6 * (inside + above + 2 * here)).sum(-1)
    leaves = slice(0, 2 * tree.num_variables)
    inside = messages[:, leaves].masked_fill(messages[:, leaves].isinf(), 0.0).abs()
    upward_error = upward_error + (6 * inside + 2 * sizes[:, leaves]).sum(-1)
    return upward_error, downward_error
