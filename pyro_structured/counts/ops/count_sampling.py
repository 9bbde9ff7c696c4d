"""Exact joint samples, and a most probable vector, by descending a tree of counts (Tarlow et al. 2012, Section 5.3)."""

__all__ = ["CountDraws", "most_probable", "sample_counts"]

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops import convolution_tree, count_tree
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_potential import attempts
from pyro_structured.counts.ops.count_tree import CountTree
from pyro_structured.counts.ops.count_windows import EXTREME, Windows, extreme_counts
from pyro_structured.counts.ops.coupled_counts import CoupledChoice
from pyro_structured.counts.ops.coupled_forest import AnyForest, CoupledForest
from pyro_structured.counts.ops.direct_counts import (
    DirectDraws,
    is_compiled,
    largest_possible_count,
    solve_directly,
)
from pyro_structured.counts.ops.log_convolution import max_convolve
from pyro_structured.counts.ops.nested_counts import upward_messages
from pyro_structured.foundation.ops.draws import Draws, draw, draw_log

CHUNK_ELEMENTS = 2**22
# Splits of a count less likely than this are not offered: the uniform numbers of double precision cannot draw them.
NEGLIGIBLE = 1e-30


def sample_counts(logits: Tensor, count_logits: Tensor, forest: AnyForest, num_samples: int) -> Tensor:
    r"""Draws independent exact samples.

    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64.
    :param Tensor count_logits: Log-potentials of all tables, shape ``(rows, forest.table_size)``.
    :param CountForest forest: The counts that the tables weigh.
    :param int num_samples: Number of samples for each row.
    :return: Zeros and ones of shape ``(num_samples, rows, num_variables)``. Cost :math:`O(D \log D)` a sample for one
        potential; :math:`O(\sum_v n_v)` for nested ones.
    """
    return CountDraws(logits, count_logits, forest=forest)(num_samples)


class CountDraws:
    """Exact samples, for which the passes over the counts are made once; arguments as for :func:`sample_counts`.

    :param Tensor tilts: Tilts of rows whose log-odds were already summed directly, NaN in others, shape ``(rows,)``;
        with the probabilities ``counts`` of their counts, shape ``(rows, num_variables + 1)``.
    """

    def __init__(
        self,
        logits: Tensor,
        count_logits: Tensor,
        tilts: Tensor | None = None,
        counts: Tensor | None = None,
        *,
        forest: AnyForest,
    ) -> None:
        self._shape, self._device = logits.shape, logits.device
        every = torch.arange(len(logits), device=logits.device)
        # Pairs of rows and of the draws for them.
        self._parts: list[tuple[Tensor, Draws]] = []
        if isinstance(forest, CoupledForest):
            self._parts.append((every, CoupledChoice(forest, logits, count_logits, draw_log)))
            return
        failed = every
        if forest.is_single and forest.num_variables > 0 and is_compiled(logits):
            largest = largest_possible_count(count_logits)
            if tilts is None or counts is None:
                tilts, counts = torch.full_like(logits[:, 0], math.nan), torch.zeros_like(count_logits)
            unknown = tilts.isnan().nonzero().squeeze(-1)
            if len(unknown):
                direct = solve_directly(logits[unknown], count_logits[unknown], largest, marginals=False)
                tilts = tilts.index_copy(0, unknown, direct.tilts.masked_fill(~direct.certified, math.nan))
                counts = counts.index_copy(0, unknown, direct.count_marginals)
            failed, rows = (kind.nonzero().squeeze(-1) for kind in (tilts.isnan(), ~tilts.isnan()))
            if not len(failed):
                self._parts.append((rows, DirectDraws(logits, tilts, counts, largest)))
                return
            if len(rows):
                self._parts.append((rows, DirectDraws(logits[rows], tilts[rows], counts[rows], largest)))
        unsolved = failed
        is_tried = forest.is_single and len(failed)
        tried = attempts(logits[failed], count_logits[failed], marginals=True) if is_tried else ()
        for places, windows, sums in tried:
            rows, certified = unsolved[places], sums.certified
            failed = rows[~certified]
            if bool(certified.any()):
                found = windows.rows(certified.nonzero().squeeze(-1)), sums.log_posterior[certified]
                self._parts.append((rows[certified], _WindowDraws(logits[rows[certified]], *found)))
        if len(failed) or not forest.is_single:
            self._parts.append((failed, _TreeDraws(forest, logits[failed], count_logits[failed])))

    @property
    def possible(self) -> bool:
        """Whether all rows have a vector of positive probability."""
        return all(draws.possible for _, draws in self._parts)

    def __call__(self, num_samples: int) -> Tensor:
        """Zeros and ones of shape ``(num_samples, rows, num_variables)``."""
        if len(self._parts) == 1:
            return self._parts[0][1](num_samples)
        samples = torch.empty(num_samples, *self._shape, dtype=torch.double, device=self._device)
        for rows, draws in self._parts:
            samples[:, rows] = draws(num_samples)
        return samples


class _WindowTrees(NamedTuple):
    """Messages of the windows of some rows.

    :ivar list levels: Messages of each level, from the variables, shape ``(nodes, rows * windows, n + 1)``.
    :ivar Tensor peaks: Counts of largest probability, shape ``(rows * windows,)``.
    """

    levels: list[Tensor]
    peaks: Tensor


class _WindowDraws:
    """Samples of rows with a single potential, by windows that are responsible for all of its counts.

    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``.
    :param Windows windows: Windows of these rows.
    :param Tensor log_posterior: Log-probabilities of the counts, shape ``(rows, num_variables + 1)``.
    """

    def __init__(self, logits: Tensor, windows: Windows, log_posterior: Tensor) -> None:
        self._logits, self._windows, self._log_posterior = logits, windows, log_posterior
        few = windows.tilts.numel() * logits.shape[1] <= CHUNK_ELEMENTS
        self._trees = self._upward(torch.arange(len(logits), device=logits.device)) if few else None

    @property
    def possible(self) -> bool:
        """Whether all rows have a vector of positive probability."""
        return bool((self._log_posterior > -math.inf).any(-1).all())

    def __call__(self, num_samples: int) -> Tensor:
        """Zeros and ones of shape ``(num_samples, rows, num_variables)``."""
        rows, size = self._logits.shape
        samples = self._logits.new_empty(num_samples, rows, size)
        step = max(1, CHUNK_ELEMENTS // max(1, num_samples * size))
        for chunk in torch.arange(rows, device=samples.device).split(step):
            if self._trees is None:
                trees, places = self._upward(chunk), torch.arange(len(chunk), device=chunk.device)
            else:
                trees, places = self._trees, chunk
            at_once = max(1, CHUNK_ELEMENTS // max(1, len(chunk) * size))
            for start in range(0, num_samples, at_once):
                number = min(at_once, num_samples - start)
                samples[start : start + number, chunk] = self._descend(chunk, trees, places, number)
        return samples

    def _upward(self, chunk: Tensor) -> _WindowTrees:
        """Trees of some rows, whose numbers are given."""
        windows = self._windows.rows(chunk)
        tilted = (self._logits[chunk].unsqueeze(1) + windows.tilts.unsqueeze(-1)).flatten(0, 1)
        limit = windows.assignment.shape[-1] - 1
        tree = convolution_tree.upward(torch.sigmoid(tilted), torch.sigmoid(-tilted), limit)
        levels = [m.permute(1, 2, 0) for m in tree.direct[:-1]] + tree.messages[:-1]
        return _WindowTrees(levels, tree.root.argmax(-1))

    def _descend(self, chunk: Tensor, trees: _WindowTrees, places: Tensor, num_samples: int) -> Tensor:
        """Samples of some rows, whose trees have given places among all trees."""
        windows, logits = self._windows.rows(chunk), self._logits[chunk]
        lowest, highest = extreme_counts(logits).unsqueeze(-1).unbind(1)
        total = draw_log(self._log_posterior[chunk].expand(num_samples, -1, -1)).unsqueeze(-1)
        # The tree of the window that is responsible for the drawn count.
        window = windows.assignment.expand(num_samples, -1, -1).gather(-1, total)
        table = places * windows.tilts.shape[1] + window.squeeze(-1).clamp(min=0)
        # Extreme counts belong to no tree: another count is split in their place, and not used.
        counts = torch.where(window == EXTREME, trees.peaks[table].unsqueeze(-1), total).transpose(1, 2)
        for level in reversed(trees.levels):
            counts = _split_counts(level, counts, table)
        drawn = counts.transpose(1, 2)[..., : logits.shape[1]]
        for extreme, sure in ((lowest, logits == math.inf), (highest, logits != -math.inf)):
            drawn = torch.where((window == EXTREME) & (total == extreme), sure.long(), drawn)
        return drawn.to(logits.dtype)


def _split_counts(level: Tensor, counts: Tensor, table: Tensor) -> Tensor:
    """Splits counts of shape ``(samples, nodes, rows)`` among children: ``(samples, 2 * nodes, rows)``."""
    left, right = level.chunk(2)
    last = right.shape[-1] - 1
    low, high = _offered(left)
    # Window number s of the reversed and padded right message holds right[z - i] for i = low ... high.
    reversed_right = torch.nn.functional.pad(right.flip(-1), (2 * last, 2 * last))
    windows = reversed_right.unfold(-1, high - low + 1, 1)
    nodes = torch.arange(left.shape[0], device=level.device).unsqueeze(-1)
    rows = table.unsqueeze(1)
    offered = left[..., low : high + 1]
    if table.shape[-1] == 1 and left.shape[1] == 1:
        weights = windows[:, 0][nodes, 3 * last - counts + low] * offered[:, 0].unsqueeze(1)
    else:
        weights = windows[nodes, rows, 3 * last - counts + low] * offered[nodes, rows]
    to_left = draw(weights) + low
    return torch.cat([to_left, counts - to_left], 1)


def _offered(left: Tensor) -> tuple[int, int]:
    width = left.shape[-1]
    if width <= 64:
        return 0, width - 1
    likely = (left > NEGLIGIBLE).flatten(0, -2).any(0).nonzero()
    return int(likely.min()), int(likely.max())


class _TreeDraws:
    """Samples of rows with nested potentials, or with one that no windows are good enough for; arguments as for
    :func:`sample_counts`.
    """

    def __init__(self, forest: CountForest, logits: Tensor, count_logits: Tensor) -> None:
        self._tree = forest.tree(count_logits)
        self._messages = upward_messages(self._tree, logits, count_logits)
        # Tables of empty subsets.
        self._constants = count_logits[:, self._tree.table_cells == self._tree.num_cells + 1]

    @property
    def possible(self) -> bool:
        """Whether all rows have a vector of positive probability."""
        weights = [self._constants.unsqueeze(-1)]
        weights += [count_tree.gather(self._messages, cells) for cells in self._tree.roots]
        return all(bool((each > -math.inf).any(-1).all()) for each in weights)

    def __call__(self, num_samples: int) -> Tensor:
        """Zeros and ones of shape ``(num_samples, rows, num_variables)``."""
        rows = len(self._messages)
        samples = self._messages.new_empty(num_samples, rows, self._tree.num_variables)
        widest = max([m.nodes * m.left.shape[1] for m in self._tree.merges], default=1)
        for chunk in samples.split(max(1, CHUNK_ELEMENTS // max(1, rows * widest))):
            chunk.copy_(_descend(self._tree, self._messages, len(chunk), draw_log))
        return samples


def most_probable(logits: Tensor, count_logits: Tensor, forest: AnyForest) -> Tensor:
    r"""Finds a vector of largest probability; arguments as in :func:`sample_counts`.

    :return: Zeros and ones of shape ``(rows, num_variables)``. Cost :math:`O(D\log D)` for one potential, by sorting;
        :math:`O(\sum_v n_{l(v)} n_{r(v)})` for nested ones, by maximum-sum message passing.
    """
    if isinstance(forest, CoupledForest):
        return CoupledChoice(forest, logits, count_logits, None)(1).squeeze(0)
    if forest.is_single:
        return _sort_mode(logits, count_logits)
    tree = forest.tree(count_logits)
    messages, _, _ = count_tree.upward(tree, logits, count_logits, max_convolve)
    return _descend(tree, messages, 1, lambda log_weights: log_weights.argmax(-1)).squeeze(0)


def _sort_mode(logits: Tensor, count_logits: Tensor) -> Tensor:
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    clamped = ordered == math.inf
    prefix = torch.nn.functional.pad(ordered.masked_fill(clamped, 0.0).cumsum(-1), (1, 0))
    # Counts that would leave out a variable clamped to 1 are impossible.
    missing = torch.nn.functional.pad(clamped, (0, 1))
    best = (prefix + count_logits).masked_fill(missing, -math.inf).argmax(-1, keepdim=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    return torch.zeros_like(logits).scatter_(-1, order, (rank < best).to(logits.dtype))


def _descend(tree: CountTree, messages: Tensor, num_samples: int, choose: Callable[[Tensor], Tensor]) -> Tensor:
    """Chooses the roots' counts, then from the roots to the leaves how every count is split between two children."""
    rows = messages.shape[0]
    counts = torch.zeros(num_samples, rows, tree.num_nodes, dtype=torch.long, device=messages.device)
    for cells, ids in zip(tree.roots, tree.root_ids, strict=True):
        counts[..., ids] = choose(messages[:, cells].expand(num_samples, -1, -1, -1))
    for merge in reversed(tree.merges):
        left, right = count_tree.gather(messages, merge.left), count_tree.gather(messages, merge.right)
        total = counts[..., merge.node_ids].unsqueeze(-1)
        rest = total - torch.arange(left.shape[-1], device=messages.device)
        possible = (rest >= 0) & (rest < right.shape[-1])
        right_weights = right.expand(num_samples, -1, -1, -1).gather(-1, rest.clamp(0, right.shape[-1] - 1))
        to_left = choose((left + right_weights).masked_fill(~possible, -math.inf))
        counts[..., merge.left_ids] = to_left
        counts[..., merge.right_ids] = total.squeeze(-1) - to_left
    return counts[..., : tree.num_variables].to(messages.dtype)
