r"""Sum-product message passing for counts in nested subsets of variables that a forest of edges couples.

Messages are logarithms of weights, of every count and of the states of at most two vertices.
"""

__all__ = ["CoupledSolution", "choose_coupled", "solve_coupled"]

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.count_tree import RARE_DOUBT, RARE_DROP, UNIT_ROUNDOFF, leaf_weights
from pyro_structured.counts.ops.coupled_forest import CoupledTree, Link, Mix, Product, Release, Step
from pyro_structured.counts.ops.log_convolution import log_convolve, log_correlate, max_convolve
from pyro_structured.foundation.ops.evidence import log_odds
from pyro_structured.foundation.ops.log_space import logsumexp


class CoupledSolution(NamedTuple):
    """Results for rows, and bounds on their errors.

    ``excess``, log Z less the weight of the heaviest vector without tables, ``excess_error``,
    ``count_marginals_error``, a bound for probabilities, and ``num_fallback_nodes`` have shape ``(rows,)``;
    ``marginal_logits`` and ``marginal_logits_error``, ``(rows, num_variables)``; ``posterior``, the probabilities of
    the entries of all tables, ``(rows, table_size)``.
    """

    excess: Tensor
    marginal_logits: Tensor
    posterior: Tensor
    excess_error: Tensor
    marginal_logits_error: Tensor
    count_marginals_error: Tensor
    num_fallback_nodes: Tensor


class _Sums(NamedTuple):
    """How terms are joined: their sums, or the largest of them."""

    join: Callable[[Tensor, int], Tensor]
    convolve: Callable[[Tensor, Tensor], Tensor]


# Numbers of one batch of samples.
CHUNK_ELEMENTS = 2**22
_TOTAL = _Sums(logsumexp, log_convolve)
_LARGEST = _Sums(lambda terms, dim: terms.amax(dim), max_convolve)


def _gather(buffer: Tensor, cells: Tensor) -> Tensor:
    return buffer[:, cells.flatten()].view(len(buffer), *cells.shape)


def _upward(tree: CoupledTree, logits: Tensor, tables: Tensor, sums: _Sums) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Messages from the variables to the roots, the potentials of the cells, the tables with a zero, and the sum of
    what was subtracted from messages, whose largest entries are 0.
    """
    rows = len(logits)
    potentials = logits.new_zeros(rows, tree.num_cells + 1)
    potentials = potentials.index_add(1, tree.potential_cells, tables[:, tree.potential_entries])
    log_scale = tables[:, tree.constants].sum(-1)
    tables = torch.nn.functional.pad(tables, (0, 1))
    messages = torch.full_like(potentials, -math.inf)
    leaves = slice(0, 4 * tree.num_variables)
    # A variable's state is its count.
    off, on = leaf_weights(logits).view(rows, -1, 2).unbind(-1)
    never = torch.full_like(off, -math.inf)
    messages[:, leaves] = torch.stack([off, never, never, on], -1).flatten(1) + potentials[:, leaves]
    for step in tree.steps:
        merged = _ascend(step, messages, tables, sums) + _of_nodes(step, potentials)
        peak = merged.detach().flatten(2).amax(-1)
        peak = peak.masked_fill(peak == -math.inf, 0.0)
        messages[:, step.cells] = (merged - peak[..., None, None]).flatten(1)
        log_scale = log_scale + peak.sum(-1)
    return messages, potentials, tables, log_scale


def _of_nodes(step: Step, buffer: Tensor) -> Tensor:
    """Cells of a step's results, shape ``(rows, nodes, channels, width)``."""
    return buffer[:, step.cells].view(len(buffer), -1, step.channels, step.width)


def _ascend(step: Step, messages: Tensor, tables: Tensor, sums: _Sums) -> Tensor:
    """Results of a step without potentials, shape ``(rows, nodes, channels, width)``."""
    left = _gather(messages, step.left)
    if isinstance(step, Product):
        right = _gather(messages, step.right)
        pairs = sums.convolve(left[:, :, step.first], right[:, :, step.second])[..., : step.width]
        return sums.join(pairs.view(*pairs.shape[:2], step.channels, -1, step.width), 3)
    if isinstance(step, Mix):
        return sums.join(_mix_terms(step, left, tables), 3)[..., : step.width]
    if isinstance(step, Link):
        left = left + sums.join(_link_terms(step, messages, tables), 2).unsqueeze(2)
        return left[..., : step.width]
    return sums.join(left, 3).unsqueeze(3)


def _mix_terms(step: Mix, left: Tensor, tables: Tensor) -> Tensor:
    """Terms of a step's results, shape ``(rows, nodes, channels, terms, width)``."""
    terms = left[:, :, step.first].view(*left.shape[:2], *step.weights.shape[1:], -1)
    return terms + _gather(tables, step.weights).unsqueeze(-1)


def _link_terms(step: Link, messages: Tensor, tables: Tensor) -> Tensor:
    """Weights of both counts without those of the left one, shape ``(rows, nodes, right width, left width)``."""
    return _gather(messages, step.right).squeeze(2).unsqueeze(-1) + _gather(tables, step.weights)


def _root_excess(tree: CoupledTree, messages: Tensor, log_scale: Tensor) -> Tensor:
    for cells in tree.roots:
        log_scale = log_scale + logsumexp(_gather(messages, cells).flatten(2)).sum(-1)
    return log_scale


def _downward(tree: CoupledTree, messages: Tensor, potentials: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
    """Messages from outside of every node, and the probabilities of the entries of the tables of edges and links."""
    outside = torch.full_like(messages, -math.inf)
    posterior = torch.zeros_like(tables)
    for cells in tree.roots:
        outside[:, cells.flatten()] = 0.0
    for step in reversed(tree.steps):
        total = _of_nodes(step, outside) + _of_nodes(step, potentials)
        left = _gather(messages, step.left)
        width = left.shape[-1]
        if isinstance(step, Product):
            right = _gather(messages, step.right)
            missing = width + right.shape[-1] - 1 - step.width
            copies = len(step.first) // step.channels
            total = torch.nn.functional.pad(total, (0, missing), value=-math.inf).repeat_interleave(copies, 2)
            to_left = log_correlate(total, right[:, :, step.second])
            to_right = log_correlate(total, left[:, :, step.first])
            _set(outside, step.right, logsumexp(to_right[:, :, step.second_terms], 3))
            _set(outside, step.left, logsumexp(to_left[:, :, step.first_terms], 3))
        elif isinstance(step, Mix):
            # The results may be narrower than what they are made of, where potentials forbid large counts.
            total = torch.nn.functional.pad(total, (0, width - step.width), value=-math.inf).unsqueeze(3)
            weighted = total + _gather(tables, step.weights).unsqueeze(-1)
            _set(outside, step.left, logsumexp(weighted.flatten(2, 3)[:, :, step.first_terms], 3))
            if step.has_edge:
                joint = logsumexp(_mix_terms(step, left, tables) + total).flatten(2)
                posterior = posterior.index_add(1, step.weights.flatten(), _normalised(joint).flatten(1))
        elif isinstance(step, Link):
            total = torch.nn.functional.pad(total, (0, width - step.width), value=-math.inf)
            above = total + left
            terms = _link_terms(step, messages, tables)
            _set(outside, step.left, total + logsumexp(terms, 2).unsqueeze(2))
            _set(outside, step.right, logsumexp(above + _gather(tables, step.weights)).unsqueeze(2))
            posterior = posterior.index_add(
                1, step.weights.flatten(), _normalised((terms + above).flatten(2)).flatten(1)
            )
        else:
            _set(outside, step.left, total.expand_as(left))
    return outside, posterior


def _set(outside: Tensor, cells: Tensor, message: Tensor) -> None:
    peak = message.detach().flatten(2).amax(-1)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    outside[:, cells.flatten()] = (message - peak[..., None, None]).flatten(1)


def _normalised(log_weights: Tensor) -> Tensor:
    return (log_weights - logsumexp(log_weights).unsqueeze(-1)).exp()


def solve_coupled(
    tree: CoupledTree, logits: Tensor, tables: Tensor, marginals: bool = True, errors: bool = False
) -> CoupledSolution:
    r"""Sums over all binary vectors.

    :param CoupledTree tree: The schedule.
    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64; infinite ones are clamps.
    :param Tensor tables: Log-potentials of counts, edges and links, shape ``(rows, table_size)``; -inf is allowed.
    :param bool marginals: Whether posteriors are wanted.
    :param bool errors: Whether bounds on the errors are wanted; what is not wanted is zero.
    :return: Differentiable results. Cost :math:`O(\sum_v n_{l(v)} n_{r(v)})` over the nodes v.
    """
    messages, potentials, padded, log_scale = _upward(tree, logits, tables, _TOTAL)
    excess = _root_excess(tree, messages, log_scale)
    none = torch.zeros_like(excess)
    solution = CoupledSolution(
        excess, torch.zeros_like(logits), torch.zeros_like(tables), none, torch.zeros_like(logits), none, none.long()
    )
    if not (marginals or errors):
        return solution
    outside, posterior = _downward(tree, messages, potentials, padded)
    joint = messages + outside
    leaves = joint[:, : 4 * tree.num_variables].view(len(joint), -1, 4)
    shares = [_normalised(leaves).flatten(1)]
    shares += [_normalised(_of_nodes(step, joint).flatten(2)).flatten(1) for step in tree.steps]
    counts = torch.cat([*shares, joint.new_zeros(len(joint), 1)], -1)
    posterior = posterior[:, :-1].index_add(1, tree.potential_entries, counts[:, tree.potential_cells])
    posterior = posterior.index_fill(1, tree.constants, 1.0)
    odds = log_odds(leaves[..., 0], leaves[..., 3])
    solution = solution._replace(marginal_logits=odds, posterior=posterior)
    if not errors:
        return solution
    excess_error, odds_error = _rounding_errors(tree, messages, padded, outside, log_scale, odds)
    # As a log-odds, the logarithm of a probability of a count has the errors of the passes up and down.
    return solution._replace(
        excess_error=excess_error, marginal_logits_error=odds_error, count_marginals_error=odds_error.amin(-1)
    )


def _rounding_errors(
    tree: CoupledTree, messages: Tensor, tables: Tensor, outside: Tensor, log_scale: Tensor, odds: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Bounds the errors of log Z and of the log-odds, as :func:`~.count_tree.rounding_errors` does.

    :return: Shapes ``(rows,)`` and ``(rows, num_variables)``.
    """
    tables = tables.masked_fill(tables.isinf(), 0.0).abs()
    sizes = torch.zeros_like(messages).index_add(1, tree.potential_cells, tables[:, tree.potential_entries])
    joint = messages + outside
    rare = torch.ones_like(joint, dtype=torch.bool)
    doubt = RARE_DROP + RARE_DOUBT * tables.sum(-1)[:, None, None]
    groups = [(slice(0, 4 * tree.num_variables), 4)]
    groups += [(step.cells, step.channels * step.width) for step in tree.steps]
    for cells, width in groups:
        near = joint[:, cells].unflatten(-1, (-1, width))
        rare[:, cells] = (near < near.amax(-1, keepdim=True) - doubt).flatten(1)
    relevant = [buffer.masked_fill(rare, 0.0) for buffer in (messages, outside)]
    every, likely = (
        _largest_errors(tree, inside, sizes, beyond, tables) for inside, beyond in ((messages, outside), relevant)
    )
    depth = len(tree.steps) + 2
    shifted = relevant[0].masked_fill(relevant[0].isinf(), 0.0).abs().sum(-1)
    excess_error = torch.minimum(every[0] + depth * log_scale.abs(), likely[0] + depth * (log_scale.abs() + shifted))
    per_odds = 24 * tree.num_nodes * odds.masked_fill(~odds.isfinite(), 0.0).abs()
    odds_error = torch.minimum((every[0] + every[1]).unsqueeze(-1), (likely[0] + likely[1]).unsqueeze(-1) + per_odds)
    return UNIT_ROUNDOFF * (excess_error + 64), UNIT_ROUNDOFF * 2 * odds_error


def _largest_errors(
    tree: CoupledTree, messages: Tensor, sizes: Tensor, outside: Tensor, tables: Tensor
) -> tuple[Tensor, Tensor]:
    """Errors of log Z, and errors that the downward pass adds, in units of rounding; both of shape ``(rows,)``."""

    def size(tensor: Tensor) -> Tensor:
        return tensor.masked_fill(tensor.isinf(), 0.0).abs().flatten(2).amax(-1)

    upward_error, downward_error = (messages.new_zeros(len(messages)) for _ in range(2))
    for step in tree.steps:
        left = _gather(messages, step.left)
        inside, terms = size(left), left.shape[-1] if isinstance(step, Release) else 2
        if isinstance(step, (Product, Link)):
            right = _gather(messages, step.right)
            inside, terms = inside + size(right), 2 * min(left.shape[-1], right.shape[-1])
        if isinstance(step, (Mix, Link)):
            inside, terms = inside + size(_gather(tables, step.weights)), max(terms, 4)
        if isinstance(step, Link):
            terms = max(left.shape[-1], step.weights.shape[1])
        here, above = (size(_of_nodes(step, buffer)) for buffer in (sizes, outside))
        upward_error = upward_error + (terms + 16 + 6 * inside + 2 * here).sum(-1)
        downward_error = downward_error + 2 * (4 * step.width + terms + 16 + 6 * (inside + above + 2 * here)).sum(-1)
    leaves = slice(0, 4 * tree.num_variables)
    own = messages[:, leaves].masked_fill(messages[:, leaves].isinf(), 0.0).abs()
    return upward_error + (6 * own + 2 * sizes[:, leaves]).sum(-1), downward_error


def choose_coupled(
    tree: CoupledTree, logits: Tensor, tables: Tensor, num_samples: int, choose: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """Draws exact joint samples, or finds a most probable vector.

    :param CoupledTree tree: The schedule.
    :param Tensor logits: As for :func:`solve_coupled`.
    :param Tensor tables: As for :func:`solve_coupled`.
    :param int num_samples: Number of samples for each row.
    :param choose: Draws an index from logarithms of weights along the last axis; ``None`` for a most probable vector.
    :return: Zeros and ones, shape ``(num_samples, rows, num_variables)``.
    """
    sums = _LARGEST if choose is None else _TOTAL
    messages, _, tables, _ = _upward(tree, logits, tables, sums)
    pick = _index_of_largest if choose is None else choose
    samples = logits.new_empty(num_samples, *logits.shape)
    widest = max([step.left.numel() for step in tree.steps], default=1)
    for chunk in samples.split(max(1, CHUNK_ELEMENTS // max(1, len(logits) * widest))):
        chunk.copy_(_descend(tree, messages, tables, len(chunk), pick))
    return samples


def _index_of_largest(log_weights: Tensor) -> Tensor:
    return log_weights.argmax(-1)


def _descend(
    tree: CoupledTree, messages: Tensor, tables: Tensor, num_samples: int, pick: Callable[[Tensor], Tensor]
) -> Tensor:
    """Chooses counts and channels from the roots to the variables, whose counts are returned."""
    shape = (num_samples, len(messages), tree.num_nodes)
    counts = torch.zeros(shape, dtype=torch.long, device=messages.device)
    channels = torch.zeros_like(counts)
    for cells, ids in zip(tree.roots, tree.root_ids, strict=True):
        weights = _gather(messages, cells).flatten(2)
        chosen = pick(weights.expand(num_samples, *weights.shape))
        counts[..., ids], channels[..., ids] = chosen % cells.shape[-1], chosen // cells.shape[-1]
    for step in reversed(tree.steps):
        _split(step, messages, tables, counts, channels, pick)
    return counts[..., : tree.num_variables]


def _split(
    step: Step,
    messages: Tensor,
    tables: Tensor,
    counts: Tensor,
    channels: Tensor,
    pick: Callable[[Tensor], Tensor],
) -> None:
    """Chooses the counts and channels of the nodes from which a step's results were computed."""
    count, channel = counts[..., step.node_ids], channels[..., step.node_ids]
    left = _gather(messages, step.left).expand(len(counts), -1, -1, -1, -1)
    width = left.shape[-1]
    if isinstance(step, Product):
        right = _gather(messages, step.right).expand(len(counts), -1, -1, -1, -1)
        terms = len(step.first) // step.channels
        pairs = channel.unsqueeze(-1) * terms + torch.arange(terms, device=counts.device)
        rest = count.unsqueeze(-1) - torch.arange(width, device=counts.device)
        possible = (rest >= 0) & (rest < right.shape[-1])
        rest = rest.clamp(0, right.shape[-1] - 1).unsqueeze(3).expand(-1, -1, -1, terms, -1)
        weights = _select(left, step.first[pairs]) + _select(right, step.second[pairs]).gather(-1, rest)
        chosen = pick(weights.masked_fill(~possible.unsqueeze(3), -math.inf).flatten(3))
        pair = pairs.gather(-1, (chosen // width).unsqueeze(-1)).squeeze(-1)
        counts[..., step.left_ids], channels[..., step.left_ids] = chosen % width, step.first[pair]
        counts[..., step.right_ids], channels[..., step.right_ids] = count - chosen % width, step.second[pair]
    elif isinstance(step, Mix):
        terms = step.weights.shape[-1]
        weights = _select(_mix_terms(step, left[0], tables).expand(len(counts), -1, -1, -1, -1, -1), channel)
        chosen = pick(weights.gather(-1, count[..., None, None].expand(-1, -1, -1, terms, 1)).squeeze(-1))
        counts[..., step.left_ids], channels[..., step.left_ids] = count, step.first[channel * terms + chosen]
    elif isinstance(step, Link):
        weights = _link_terms(step, messages, tables).transpose(-1, -2).expand(len(counts), -1, -1, -1, -1)
        counts[..., step.right_ids] = pick(_select(weights, count))
        counts[..., step.left_ids] = count
    else:
        assert isinstance(step, Release)
        counts[..., step.left_ids], channels[..., step.left_ids] = pick(_select(left, channel)), channel


def _select(tensor: Tensor, index: Tensor) -> Tensor:
    """Entries along the fourth axis, one or several for each sample, row and node; further axes are kept."""
    picked = index if index.dim() == 4 else index.unsqueeze(-1)
    trailing = tensor.shape[4:]
    picked = picked.view(picked.shape + (1,) * len(trailing)).expand(picked.shape + trailing)
    found = tensor.gather(3, picked)
    return found if index.dim() == 4 else found.squeeze(3)
