r"""Sum-product message passing for counts in nested subsets of variables that a forest of edges couples.

Messages are logarithms of weights, of every count and of the states of at most two vertices. Long ones are convolved by
transforms, and bounds on their absolute errors travel with them, as further rows: all steps but products and links are
linear, the same for errors as for messages. Where the bounds are too large, tilts change, and in the end the nodes that
cause them are convolved directly (:mod:`~pyro_structured.counts.ops.fourier_passes` has the argument).
"""

__all__ = ["CoupledChoice", "CoupledSolution", "solve_coupled"]

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.counts.ops.count_tree import RARE_DOUBT, RARE_DROP, UNIT_ROUNDOFF, leaf_weights
from pyro_structured.counts.ops.coupled_forest import CoupledForest, CoupledTree, Link, Mix, Product, Release, Step
from pyro_structured.counts.ops.direct_counts import log_odds_tolerance, log_partition_tolerance
from pyro_structured.counts.ops.fourier_passes import (
    NodePlan,
    convolve_bounded,
    smallest_magnification,
)
from pyro_structured.counts.ops.log_convolution import log_convolve, log_correlate, max_convolve
from pyro_structured.foundation.ops.evidence import log_odds
from pyro_structured.foundation.ops.log_space import logsumexp

# Attempts: with the first tilts, twice with better ones, with exceptions, and without transforms.
RETILTED_ATTEMPTS = 2
LAST_ATTEMPT = RETILTED_ATTEMPTS + 2
NEWTON_STEPS = 4
SHIFT_DIFFERENCE = 1e-3
# Counts whose weights are less than this many nats below the largest are reached without tilts.
FAR = 5.0
# Narrower messages are convolved directly: that is as fast, and has no absolute errors. Among very many variables,
# whose bounds add up, more of them are.
FOURIER_WIDTH = 24
MANY_VARIABLES, WIDER = 2**15, 3
# A node whose transforms may have changed Z by more than this, relatively, is convolved directly in the next attempt.
NODE_TOLERANCE = 1e-12


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


class _Upward(NamedTuple):
    """Messages to the roots, potentials of the cells, tables with a zero behind them, one row for each message and then
    one for each bound on its error; the sum of what was subtracted from messages, whose largest entries are 0; and the
    logarithms of the errors of transforms at the count 0, shape ``(rows, nodes, channels)``.
    """

    messages: Tensor
    potentials: Tensor
    tables: Tensor
    log_scale: Tensor
    rounding: list[Tensor | None]


class _Downward(NamedTuple):
    """Messages from outside of every node, with their errors; probabilities of the entries of the tables of edges and
    links; errors of transforms for the left and the right nodes of a step.
    """

    outside: Tensor
    posterior: Tensor
    rounding: list[tuple[Tensor, Tensor] | None]


_Plans = list[NodePlan | None]


class _Bounded(NamedTuple):
    """How a step with errors convolves: by transforms, or directly."""

    plan: NodePlan | None


def _gather(buffer: Tensor, cells: Tensor) -> Tensor:
    return buffer[:, cells.flatten()].view(len(buffer), *cells.shape)


def _upward(
    tree: CoupledTree, logits: Tensor, tables: Tensor, sums: _Sums = _TOTAL, plans: _Plans | None = None
) -> _Upward:
    rows, log_scale = len(logits), tables[:, tree.constants].sum(-1)
    tables = torch.nn.functional.pad(tables, (0, 1))
    # A variable's state is its count.
    off, on = leaf_weights(logits).unflatten(-1, (tree.num_variables, 2)).unbind(-1)
    never = torch.full_like(off, -math.inf)
    own = torch.stack([off, never, never, on], -1).flatten(1)
    if plans is not None:
        tables, own = torch.cat([tables, tables]), torch.cat([own, torch.full_like(own, -math.inf)])
    potentials = own.new_zeros(len(own), tree.num_cells + 1)
    potentials = potentials.index_add(1, tree.potential_cells, tables[:, tree.potential_entries])
    messages = torch.full_like(potentials, -math.inf)
    leaves = slice(0, 4 * tree.num_variables)
    messages[:, leaves] = own + potentials[:, leaves]
    rounding: list[Tensor | None] = []
    for index, step in enumerate(tree.steps):
        bounded = None if plans is None else _Bounded(plans[index])
        merged, constant = _ascend(step, messages, tables, sums, bounded)
        merged = merged + _of_nodes(step, potentials)
        peak = _peak(merged, rows)
        messages[:, step.cells] = (merged - _stacked(peak, merged)).flatten(1)
        log_scale = log_scale + peak.sum(-1)
        rounding.append(None if constant is None else constant - peak.unsqueeze(-1))
    return _Upward(messages, potentials, tables, log_scale, rounding)


def _peak(messages: Tensor, rows: int) -> Tensor:
    """Largest entries, in the first rows, of a node, 0 where all are -inf, shape ``(rows, nodes)``."""
    peak = messages[:rows].detach().flatten(2).amax(-1)
    return peak.masked_fill(peak == -math.inf, 0.0)


def _stacked(peak: Tensor, messages: Tensor) -> Tensor:
    """Peaks for messages, and for the errors that stand below them."""
    stacked = peak if len(peak) == len(messages) else torch.cat([peak, peak])
    return stacked[..., None, None]


def _of_nodes(step: Step, buffer: Tensor) -> Tensor:
    """Cells of a step's results, shape ``(rows, nodes, channels, width)``."""
    return buffer[:, step.cells].view(len(buffer), len(step.left), step.channels, step.width)


def _ascend(
    step: Step, messages: Tensor, tables: Tensor, sums: _Sums, bounded: _Bounded | None
) -> tuple[Tensor, Tensor | None]:
    """Results of a step without potentials, shape ``(rows, nodes, channels, width)``, and errors of transforms."""
    left = _gather(messages, step.left)
    if isinstance(step, Product):
        pairs = left[:, :, step.first], _gather(messages, step.right)[:, :, step.second]
        merged, constant = _convolve(*pairs, sums.convolve, bounded)
        merged = merged[..., : step.width]
        shape = (len(left), len(step.left), step.channels, len(step.first) // step.channels)
        if constant is not None:
            constant = logsumexp(constant.view(len(constant), *shape[1:]))
        return sums.join(merged.reshape(*shape, step.width), 3), constant
    if isinstance(step, Mix):
        return sums.join(_mix_terms(step, left, tables), 3)[..., : step.width], None
    if isinstance(step, Link):
        return _times(left, sums.join(_link_terms(step, messages, tables), 2).unsqueeze(2), bounded is not None)[
            ..., : step.width
        ], None
    return sums.join(left, 3).unsqueeze(3), None


def _convolve(
    left: Tensor, right: Tensor, convolve: Callable[[Tensor, Tensor], Tensor], bounded: _Bounded | None
) -> tuple[Tensor, Tensor | None]:
    """Convolutions, or correlations, of pairs of channels, and errors of transforms, shape ``(rows, nodes, pairs)``."""
    if bounded is None:
        return convolve(left, right), None
    shape, plan = left.shape[1:3], bounded.plan
    if plan is not None:
        plan = NodePlan(*(numbers.repeat_interleave(shape[1], 1) for numbers in plan))
    (left, left_error), (right, right_error) = (side.flatten(1, 2).chunk(2) for side in (left, right))
    value, error, constant = convolve_bounded(left, right, left_error, right_error, plan, convolve is log_correlate)
    return torch.cat([value, error]).unflatten(1, shape), None if plan is None else constant.unflatten(1, shape)


def _times(left: Tensor, right: Tensor, bounded: bool) -> Tensor:
    """Products of messages and, if ``bounded``, the errors of these products."""
    if not bounded:
        return left + right
    (left, left_error), (right, right_error) = left.chunk(2), right.chunk(2)
    error = torch.logaddexp(left_error + torch.logaddexp(right, right_error), left + right_error)
    return torch.cat([left + right, error])


def _mix_terms(step: Mix, left: Tensor, tables: Tensor) -> Tensor:
    """Terms of a step's results, shape ``(rows, nodes, channels, terms, width)``."""
    terms = left[:, :, step.first].view(*left.shape[:2], *step.weights.shape[1:], left.shape[-1])
    return terms + _gather(tables, step.weights).unsqueeze(-1)


def _link_terms(step: Link, messages: Tensor, tables: Tensor) -> Tensor:
    """Weights of both counts without those of the left one, shape ``(rows, nodes, right width, left width)``."""
    return _gather(messages, step.right).squeeze(2).unsqueeze(-1) + _gather(tables, step.weights)


def _root_excess(tree: CoupledTree, messages: Tensor, log_scale: Tensor) -> Tensor:
    for cells in tree.roots:
        log_scale = log_scale + logsumexp(_gather(messages, cells).flatten(2)).sum(-1)
    return log_scale


def _downward(tree: CoupledTree, up: _Upward, rows: int, plans: _Plans | None = None) -> _Downward:
    messages, tables = up.messages, up.tables
    outside = torch.full_like(messages, -math.inf)
    posterior = torch.zeros_like(tables[:rows])
    for cells in tree.roots:
        outside[:rows, cells.flatten()] = 0.0
    rounding: list[tuple[Tensor, Tensor] | None] = []
    for index in reversed(range(len(tree.steps))):
        step = tree.steps[index]
        bounded = None if plans is None else _Bounded(plans[index])
        total = _of_nodes(step, outside) + _of_nodes(step, up.potentials)
        left = _gather(messages, step.left)
        width, constants = left.shape[-1], None
        if isinstance(step, Product):
            right = _gather(messages, step.right)
            missing = width + right.shape[-1] - 1 - step.width
            copies = len(step.first) // step.channels
            total = torch.nn.functional.pad(total, (0, missing), value=-math.inf).repeat_interleave(copies, 2)
            sides = []
            for cells, other, terms in (
                (step.left, right[:, :, step.second], step.first_terms),
                (step.right, left[:, :, step.first], step.second_terms),
            ):
                message, constant = _convolve(total, other, log_correlate, bounded)
                peak = _set(outside, cells, logsumexp(message[:, :, terms], 3), rows)
                sides.append(None if constant is None else logsumexp(constant[:, :, terms]) - peak.unsqueeze(-1))
            constants = None if sides[0] is None or sides[1] is None else (sides[0], sides[1])
        elif isinstance(step, Mix):
            # The results may be narrower than what they are made of, where potentials forbid large counts.
            total = torch.nn.functional.pad(total, (0, width - step.width), value=-math.inf).unsqueeze(3)
            weighted = total + _gather(tables, step.weights).unsqueeze(-1)
            _set(outside, step.left, logsumexp(weighted.flatten(2, 3)[:, :, step.first_terms], 3), rows)
            if step.has_edge:
                joint = logsumexp(_mix_terms(step, left[:rows], tables[:rows]) + total[:rows]).flatten(2)
                posterior = posterior.index_add(1, step.weights.flatten(), _normalised(joint).flatten(1))
        elif isinstance(step, Link):
            total = torch.nn.functional.pad(total, (0, width - step.width), value=-math.inf)
            above = _times(total, left, bounded is not None)
            terms = _link_terms(step, messages, tables)
            _set(outside, step.left, _times(total, logsumexp(terms, 2).unsqueeze(2), bounded is not None), rows)
            _set(outside, step.right, logsumexp(above + _gather(tables, step.weights)).unsqueeze(2), rows)
            joint = _normalised((terms + above)[:rows].flatten(2)).flatten(1)
            posterior = posterior.index_add(1, step.weights.flatten(), joint)
        else:
            _set(outside, step.left, total.expand_as(left), rows)
        rounding.append(constants)
    return _Downward(outside, posterior, rounding[::-1])


def _set(outside: Tensor, cells: Tensor, message: Tensor, rows: int) -> Tensor:
    peak = _peak(message, rows)
    outside[:, cells.flatten()] = (message - _stacked(peak, message)).flatten(1)
    return peak


def _normalised(log_weights: Tensor) -> Tensor:
    return (log_weights - logsumexp(log_weights).unsqueeze(-1)).exp()


def solve_coupled(
    forest: CoupledForest, logits: Tensor, tables: Tensor, marginals: bool = True, errors: bool = False
) -> CoupledSolution:
    r"""Sums over all binary vectors.

    :param CoupledForest forest: The counts, edges and links that the tables weigh.
    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64; infinite ones are clamps.
    :param Tensor tables: Log-potentials of counts, edges and links, shape ``(rows, table_size)``; -inf is allowed.
    :param bool marginals: Whether posteriors are wanted.
    :param bool errors: Whether bounds on the errors are wanted; what is not wanted may be zero.
    :return: Differentiable results. Cost :math:`O(\log^2 D)` for each variable and each subset that holds it, where
        transforms are accurate enough; where they are not, or where derivatives are recorded,
        :math:`O(\sum_v n_{l(v)} n_{r(v)})` over the nodes v.
    """
    tree = forest.tree(tables)
    plans = _first_plans(forest, tree, logits, tables)
    if plans is not None:
        return _attempt(tree, logits, tables, plans, 0, errors)[0]
    up = _upward(tree, logits, tables)
    excess = _root_excess(tree, up.messages, up.log_scale)
    none = torch.zeros_like(excess)
    solution = CoupledSolution(
        excess, torch.zeros_like(logits), torch.zeros_like(tables), none, torch.zeros_like(logits), none, none.long()
    )
    if not (marginals or errors):
        return solution
    down = _downward(tree, up, len(logits))
    solution = _with_posterior(tree, solution, up, down)
    if not errors:
        return solution
    excess_error, odds_error = _rounding_errors(tree, up, down, solution)
    # As a log-odds, the logarithm of a probability of a count has the errors of the passes up and down.
    return solution._replace(
        excess_error=excess_error, marginal_logits_error=odds_error, count_marginals_error=odds_error.amin(-1)
    )


def _first_plans(forest: CoupledForest, tree: CoupledTree, logits: Tensor, tables: Tensor) -> _Plans | None:
    """Plans for products of long messages; ``None`` where there are none, or derivatives are recorded."""
    shortest = FOURIER_WIDTH * (WIDER if tree.num_variables > MANY_VARIABLES else 1)
    long = [
        isinstance(step, Product) and min(step.left.shape[-1], step.right.shape[-1]) >= shortest for step in tree.steps
    ]
    if not any(long) or torch.is_grad_enabled():
        return None
    tilts = -_first_shifts(forest, logits, tables)
    direct = [torch.zeros(len(logits), len(step.left), dtype=torch.bool, device=logits.device) for step in tree.steps]
    return [
        NodePlan(tilts[:, tree.members[step.node_ids]], nowhere) if fast else None
        for step, nowhere, fast in zip(tree.steps, direct, long, strict=True)
    ]


def _first_shifts(forest: CoupledForest, logits: Tensor, tables: Tensor) -> Tensor:
    """Numbers to add to the log-odds so that, without potentials of counts, expected counts of the outermost subsets
    are where the potentials want them, shape ``(rows, num_variables)``: Newton's method on the edges alone. Zero where
    that is near anyway.
    """
    rows, start, number = len(logits), forest.edge_start, 4 * len(forest.edges)
    free = forest.free.tree(logits.new_zeros(1, number))
    edges = tables[:, start : start + number].repeat(2, 1)
    owner = torch.from_numpy(forest.outermost).to(logits.device)
    sizes = np.bincount(forest.outermost[forest.outermost >= 0])
    subsets = np.flatnonzero(sizes >= FOURIER_WIDTH).tolist()
    shift = torch.zeros_like(logits)
    far = torch.zeros(rows, dtype=torch.bool, device=logits.device)
    for attempt in range(NEWTON_STEPS):
        shifted = torch.cat([logits + shift, logits + shift + SHIFT_DIFFERENCE])
        up = _upward(free, shifted, edges)
        leaves = (up.messages + _downward(free, up, 2 * rows).outside)[:, : 4 * free.num_variables]
        leaves = leaves.unflatten(1, (free.num_variables, 4))
        before, after = torch.sigmoid(log_odds(leaves[..., 0], leaves[..., 3])).chunk(2)
        for subset in subsets:
            inside = owner == subset
            mean = before[:, inside].sum(-1, keepdim=True)
            variance = ((after - before)[:, inside].sum(-1, keepdim=True) / SHIFT_DIFFERENCE).clamp(min=0.1)
            first = forest.first_entries[subset]
            potential = tables[:, first : first + sizes[subset] + 1]
            counts = torch.arange(potential.shape[-1], dtype=mean.dtype, device=mean.device)
            now = shift[:, inside][:, :1]
            gaussian = -now * counts - (counts - mean) ** 2 / (2 * variance)
            target = (gaussian + potential).argmax(-1, keepdim=True)
            far |= ((target - mean) ** 2 > 2 * FAR * variance).squeeze(-1) & (attempt == 0)
            shift = torch.where(inside, now + ((target - mean) / variance).clamp(-5.0, 5.0), shift)
        if not bool(far.any()):
            break
    return shift.masked_fill(~far.unsqueeze(-1), 0.0)


def _with_posterior(tree: CoupledTree, solution: CoupledSolution, up: _Upward, down: _Downward) -> CoupledSolution:
    rows = len(solution.excess)
    joint = up.messages[:rows] + down.outside[:rows]
    leaves = joint[:, : 4 * tree.num_variables].unflatten(1, (tree.num_variables, 4))
    shares = [_normalised(leaves).flatten(1)]
    shares += [_normalised(_of_nodes(step, joint).flatten(2)).flatten(1) for step in tree.steps]
    counts = torch.cat([*shares, joint.new_zeros(rows, 1)], -1)
    posterior = down.posterior[:, :-1].index_add(1, tree.potential_entries, counts[:, tree.potential_cells])
    odds = log_odds(leaves[..., 0], leaves[..., 3])
    return solution._replace(marginal_logits=odds, posterior=posterior.index_fill(1, tree.constants, 1.0))


def _attempt(
    tree: CoupledTree, logits: Tensor, tables: Tensor, plans: _Plans, attempt: int, errors: bool
) -> tuple[CoupledSolution, Tensor]:
    """Results by transforms, of rows that fail the certificate by better plans, and the messages to the roots, those
    below the bounds on their errors left out; ``errors`` says whether the bounds are to contain the rounding of
    everything else.
    """
    up = _upward(tree, logits, tables, plans=plans)
    down = _downward(tree, up, len(logits), plans)
    solution, certified = _summarise(tree, logits, up, down, plans, errors)
    messages, bounds = up.messages.chunk(2)
    messages = messages.masked_fill(messages <= bounds, -math.inf)
    failed = (~certified).nonzero().squeeze(-1)
    if not len(failed) or attempt == LAST_ATTEMPT:
        return solution, messages
    revised = _revise(tree, up, down, plans, len(logits), attempt)
    revised = [None if plan is None else NodePlan(*(numbers[failed] for numbers in plan)) for plan in revised]
    retried, better = _attempt(tree, logits[failed], tables[failed], revised, attempt + 1, errors)
    merged = CoupledSolution(*(old.index_copy(0, failed, new) for old, new in zip(solution, retried, strict=True)))
    return merged, messages.index_copy(0, failed, better)


def _summarise(
    tree: CoupledTree, logits: Tensor, up: _Upward, down: _Downward, plans: _Plans, errors: bool
) -> tuple[CoupledSolution, Tensor]:
    rows = len(logits)
    (messages, message_errors), (outside, outside_errors) = up.messages.chunk(2), down.outside.chunk(2)
    excess = _root_excess(tree, messages, up.log_scale)
    excess_error = torch.zeros_like(excess)
    for cells in tree.roots:
        lost, whole = (logsumexp(_gather(buffer, cells).flatten(2)) for buffer in (message_errors, messages))
        excess_error = excess_error + _ratio(lost, whole).sum(-1)
    lost, beyond = (
        buffer[:, : 4 * tree.num_variables].unflatten(1, (tree.num_variables, 4))[..., [0, 3]]
        for buffer in (outside_errors, outside)
    )
    odds_error = _ratio(lost, beyond).sum(-1).masked_fill(logits.isinf(), 0.0)
    counts_error = torch.zeros_like(excess)
    for step in tree.steps:
        inside, lost, beyond, missed = (
            _of_nodes(step, buffer).flatten(2) for buffer in (messages, message_errors, outside, outside_errors)
        )
        error = torch.logaddexp(lost + torch.logaddexp(beyond, missed), inside + missed)
        relative = _ratio(error, logsumexp(inside + beyond).unsqueeze(-1))
        counts_error = torch.maximum(counts_error, relative.amax((1, 2)))
    scale = torch.maximum(excess.abs(), logits.masked_fill(logits.isinf(), 0.0).abs().sum(-1))
    tolerance = log_odds_tolerance(tree.num_variables)
    certified = (excess_error <= log_partition_tolerance(scale)) & (counts_error <= tolerance)
    certified = certified & (odds_error.amax(-1) <= tolerance)
    tilting, fallback = torch.zeros_like(excess), torch.zeros(rows, dtype=torch.long, device=logits.device)
    for step, plan in zip(tree.steps, plans, strict=True):
        if plan is not None:
            # Tilts of large counts are added and subtracted again.
            tilting = tilting + 8 * UNIT_ROUNDOFF * step.width * plan.tilt.abs().sum(-1)
            fallback = fallback + plan.direct.sum(-1)
    none = torch.zeros_like(logits)
    solution = CoupledSolution(excess, none, none, excess_error, odds_error, counts_error, fallback)
    solution = _with_posterior(tree, solution, up, down)
    if not errors:
        return solution, certified
    rounding = _rounding_errors(tree, up, down, solution)
    return solution._replace(
        excess_error=excess_error + rounding[0] + tilting,
        marginal_logits_error=odds_error + rounding[1] + 4 * tilting.unsqueeze(-1),
        count_marginals_error=counts_error + rounding[1].amin(-1) + 4 * tilting,
    ), certified


def _ratio(log_error: Tensor, log_value: Tensor) -> Tensor:
    """Relative error of a value; 0 for an impossible value without an error."""
    exact = log_error == -math.inf
    return (log_error - log_value.masked_fill(exact, 0.0)).exp()


def _revise(tree: CoupledTree, up: _Upward, down: _Downward, plans: _Plans, rows: int, attempt: int) -> _Plans:
    """Plans with the tilts that magnify errors least and, after some attempts, with exceptions."""
    inside = torch.logaddexp(*up.messages.chunk(2))
    beyond = torch.logaddexp(*down.outside.chunk(2)) + up.potentials[:rows]
    revised: _Plans = []
    for index, (step, plan) in enumerate(zip(tree.steps, plans, strict=True)):
        if plan is None or not isinstance(step, Product):
            revised.append(None)
            continue
        messages = (_gather(inside, step.left), _gather(inside, step.right), _of_nodes(step, beyond))
        tilt = smallest_magnification(*(logsumexp(message, 2) for message in messages))
        direct = plan.direct
        if attempt >= RETILTED_ATTEMPTS:
            direct = (
                direct | (attempt > RETILTED_ATTEMPTS) | ~(_blame(step, index, plan, up, down, rows) <= NODE_TOLERANCE)
            )
        revised.append(NodePlan(tilt, direct))
    return revised


def _blame(step: Product, index: int, plan: NodePlan, up: _Upward, down: _Downward, rows: int) -> Tensor:
    """Largest relative errors of Z that the transforms of each node may have caused, shape ``(rows, nodes)``."""
    upward, sides = up.rounding[index], down.rounding[index]
    assert upward is not None and sides is not None
    messages, outside = up.messages[:rows], down.outside[:rows]
    own = (_of_nodes(step, messages), _of_nodes(step, outside) + _of_nodes(step, up.potentials[:rows]))
    joint = _of_nodes(step, messages) + _of_nodes(step, outside)
    shares = [_share(upward, plan.tilt, own[1], joint)]
    for constant, cells in zip(sides, (step.left, step.right), strict=True):
        message = _gather(messages, cells)
        shares.append(_share(constant, -plan.tilt, message, message + _gather(outside, cells)))
    return torch.stack(shares).amax(0)


def _share(constant: Tensor, tilt: Tensor, other: Tensor, joint: Tensor) -> Tensor:
    counts = torch.arange(other.shape[-1], dtype=other.dtype, device=other.device)
    errors = constant.unsqueeze(-1) + tilt[..., None, None] * counts + other
    return (
        (torch.logsumexp(errors.flatten(2), -1) - torch.logsumexp(joint.flatten(2), -1)).nan_to_num(nan=math.inf).exp()
    )


def _rounding_errors(
    tree: CoupledTree, up: _Upward, down: _Downward, solution: CoupledSolution
) -> tuple[Tensor, Tensor]:
    r"""Bounds the errors of log Z and of the log-odds by rounding, as :func:`~.count_tree.rounding_errors` does.

    :return: Shapes ``(rows,)`` and ``(rows, num_variables)``.
    """
    rows, odds, log_scale = len(solution.excess), solution.marginal_logits, up.log_scale
    messages, outside = up.messages[:rows], down.outside[:rows]
    tables = up.tables[:rows].masked_fill(up.tables[:rows].isinf(), 0.0).abs()
    sizes = torch.zeros_like(messages).index_add(1, tree.potential_cells, tables[:, tree.potential_entries])
    joint = messages + outside
    rare = torch.ones_like(joint, dtype=torch.bool)
    doubt = RARE_DROP + RARE_DOUBT * tables.sum(-1)[:, None, None]
    groups = [(slice(0, 4 * tree.num_variables), 4)]
    groups += [(step.cells, step.channels * step.width) for step in tree.steps]
    for cells, width in groups:
        near = joint[:, cells]
        near = near.unflatten(-1, (near.shape[-1] // width, width))
        rare[:, cells] = (near < near.amax(-1, keepdim=True) - doubt).flatten(1)
    relevant = [buffer.masked_fill(rare, 0.0) for buffer in (messages, outside)]
    every = _largest_errors(tree, messages, sizes, outside, tables)
    likely = _largest_errors(tree, relevant[0], sizes, relevant[1], tables)
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


class CoupledChoice:
    """Exact joint samples, or most probable vectors, for which the messages to the roots are computed once.

    :param CoupledForest forest: The counts, edges and links that the tables weigh.
    :param Tensor logits: As for :func:`solve_coupled`.
    :param Tensor tables: As for :func:`solve_coupled`.
    :param choose: Draws an index from logarithms of weights along the last axis; ``None`` for a most probable vector.
    """

    def __init__(
        self, forest: CoupledForest, logits: Tensor, tables: Tensor, choose: Callable[[Tensor], Tensor] | None
    ) -> None:
        self._tree, self._tables = forest.tree(tables), torch.nn.functional.pad(tables, (0, 1))
        self._pick = _index_of_largest if choose is None else choose
        with torch.no_grad():
            plans = None if choose is None else _first_plans(forest, self._tree, logits, tables)
            if plans is None:
                self._messages = _upward(self._tree, logits, tables, _LARGEST if choose is None else _TOTAL).messages
            else:
                self._messages = _attempt(self._tree, logits, tables, plans, 0, errors=False)[1]

    @property
    def possible(self) -> bool:
        """Whether all rows have a vector of positive probability."""
        weights = [self._tables[:, self._tree.constants].unsqueeze(-1)]
        weights += [_gather(self._messages, cells).flatten(2) for cells in self._tree.roots]
        return all(bool((each > -math.inf).any(-1).all()) for each in weights)

    def __call__(self, num_samples: int) -> Tensor:
        """Zeros and ones, shape ``(num_samples, rows, num_variables)``. Cost of :func:`solve_coupled` for the messages,
        and O(D log D) for each sample and each level of nested subsets; :math:`O(D^2)` for a most probable vector.
        """
        messages, tables = self._messages, self._tables
        samples = messages.new_empty(num_samples, len(messages), self._tree.num_variables)
        widest = max([step.left.numel() for step in self._tree.steps], default=1)
        for chunk in samples.split(max(1, CHUNK_ELEMENTS // max(1, len(messages) * widest))):
            chunk.copy_(_descend(self._tree, messages, tables, len(chunk), self._pick))
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
    alone = _gather(messages, step.left)
    left, width = alone.expand(len(counts), -1, -1, -1, -1), alone.shape[-1]
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
        weights = _select(_mix_terms(step, alone, tables).expand(len(counts), -1, -1, -1, -1, -1), channel)
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
