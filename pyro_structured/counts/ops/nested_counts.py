"""Potentials on the counts of nested subsets: partition function and posterior, certified."""

__all__ = ["NestedSolution", "solve_nested_counts", "upward_messages"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops import count_tree
from pyro_structured.counts.ops.count_tree import UNIT_ROUNDOFF, CountTree
from pyro_structured.counts.ops.count_windows import tilt_windows
from pyro_structured.counts.ops.direct_counts import log_odds_tolerance, log_partition_tolerance
from pyro_structured.counts.ops.fourier_passes import (
    FourierPasses,
    NodePlan,
    best_tilts,
    initial_plan,
    is_fast,
    node_errors,
    run_passes,
)
from pyro_structured.foundation.ops.log_space import logsumexp

# A node whose transforms may have changed Z by more than this, relatively, is convolved directly in the next attempt.
NODE_TOLERANCE = 1e-12
HOPEFUL_ERROR = 1e-3
# Direct convolutions that carry errors along take three times as long as those of a tree without any transform.
PARTIAL_WORK = 1 / 3
RETILTED_ATTEMPTS = 2
LAST_ATTEMPT = RETILTED_ATTEMPTS + 2


class NestedSolution(NamedTuple):
    """Results for every row of a batch, with bounds on their errors.

    ``excess``, log Z less the weight of the heaviest vector, ``excess_error``, ``count_marginals_error`` and
    ``num_fallback_nodes`` (nodes that had to be convolved directly although their messages are long) have shape
    ``(rows,)``; ``marginal_logits`` and ``marginal_logits_error``,
    ``(rows, num_variables)``; ``log_posterior``, the log-probabilities of the entries of the tables, ``(rows,
    table_size)``; ``messages``, the upward messages, ``(rows, num_cells + 2)``.
    """

    excess: Tensor
    marginal_logits: Tensor
    log_posterior: Tensor
    excess_error: Tensor
    marginal_logits_error: Tensor
    count_marginals_error: Tensor
    num_fallback_nodes: Tensor
    messages: Tensor


def solve_nested_counts(tree: CountTree, logits: Tensor, count_logits: Tensor) -> NestedSolution:
    r"""Sums over all binary vectors; see :func:`pyro_structured.counts.ops.certified_counts.log_partition`.

    Long messages are convolved by transforms: first without tilts; where the bounds on the errors are too large,
    with the tilts that the first attempt suggests; then with direct convolutions at the nodes that cause the
    errors, and in the end at all nodes.

    :param CountTree tree: The schedule.
    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64; infinite ones are clamps.
    :param Tensor count_logits: Log-potentials, shape ``(rows, table_size)``.
    :return: Results and error bounds. One synchronisation with the device for each attempt.
    """
    return _attempt(tree, logits, count_logits, initial_plan(tree, logits), 0)


def upward_messages(tree: CountTree, logits: Tensor, count_logits: Tensor) -> Tensor:
    """The messages to the roots, by transforms where these are long; arguments as for :func:`solve_nested_counts`."""
    if any(is_fast(tree, merge) for merge in tree.merges):
        return solve_nested_counts(tree, logits, count_logits).messages
    return count_tree.upward(tree, logits, count_logits)[0]


def _attempt(
    tree: CountTree, logits: Tensor, count_logits: Tensor, plans: list[NodePlan | None], attempt: int
) -> NestedSolution:
    passes = run_passes(tree, logits, count_logits, plans)
    solution, certified = _summarise(tree, logits, count_logits, passes, plans)
    failed = (~certified).nonzero().squeeze(-1)
    if not len(failed) or attempt == LAST_ATTEMPT:
        return solution
    plans = [None if p is None else NodePlan(*(x[failed] for x in p)) for p in plans]
    if attempt == 0 and bool((solution.marginal_logits_error[failed] < HOPEFUL_ERROR).all()):
        # The tilts are right: the remaining errors come from the potentials themselves.
        attempt = RETILTED_ATTEMPTS
    plans = _revise(tree, logits[failed], passes.select(failed), plans, attempt)
    retried = _attempt(tree, logits[failed], count_logits[failed], plans, attempt + 1)
    return NestedSolution(*(old.index_copy(0, failed, new) for old, new in zip(solution, retried, strict=True)))


def _revise(
    tree: CountTree, logits: Tensor, passes: FourierPasses, plans: list[NodePlan | None], attempt: int
) -> list[NodePlan | None]:
    if attempt < RETILTED_ATTEMPTS:
        return _tilt_trees(tree, logits, passes, plans, first=attempt == 0)
    tilted = best_tilts(tree, passes, plans)
    blamed = [None if e is None else ~(e <= NODE_TOLERANCE) for e in node_errors(tree, passes, plans)]
    everywhere = attempt > RETILTED_ATTEMPTS or _share_of_work(tree, blamed) > PARTIAL_WORK
    return [
        p if p is None or b is None else p._replace(direct=b | everywhere) for p, b in zip(tilted, blamed, strict=True)
    ]


def _share_of_work(tree: CountTree, blamed: list[Tensor | None]) -> float:
    """Largest share, over the rows, of the long nodes' direct convolutions that the blamed nodes need."""
    work, total = torch.zeros(()), 0.0
    for merge, nodes in zip(tree.merges, blamed, strict=True):
        if nodes is not None:
            size = float(merge.left.shape[1] * merge.right.shape[1])
            work, total = work.to(nodes.device) + size * nodes.sum(-1), total + size * merge.nodes
    return float(work.max()) / total


def _tilt_trees(
    tree: CountTree, logits: Tensor, passes: FourierPasses, plans: list[NodePlan | None], first: bool
) -> list[NodePlan | None]:
    """Plans with one tilt for all nodes of a tree, which moves the root's count to where the root's potential wants it.

    The tilt that does so without the inner potentials is a start; from there on, the counts' means and variances
    under the tilt, which are accurate although the tails are not, lead to the target as in Newton's method.
    """
    rows = logits.shape[0]
    tilts = logits.new_zeros(rows, tree.num_nodes)
    roots = torch.cat(tree.root_ids)
    for merge, plan in reversed(list(zip(tree.merges, plans, strict=True))):
        if plan is None:
            continue
        potential = passes.potentials[:, merge.start : merge.stop].view(rows, merge.nodes, merge.width)
        children = [count_tree.gather(passes.messages, cells) for cells in (merge.left, merge.right)]
        wanted = _newton_tilt(children, potential, plan.tilt)
        is_root = torch.isin(merge.node_ids, roots)
        tilts[:, merge.node_ids] = torch.where(is_root, wanted, tilts[:, merge.node_ids])
        for child_ids in (merge.left_ids, merge.right_ids):
            tilts[:, child_ids] = tilts[:, merge.node_ids]
    if first and len(tree.roots) == 1 and len(tree.roots[0]) == 1:
        start, _, _ = tilt_windows(logits, passes.potentials[:, tree.roots[0][0]], 1)
        tilts = -start.expand_as(tilts)
    return [p if p is None else p._replace(tilt=tilts[:, m.node_ids]) for m, p in zip(tree.merges, plans, strict=True)]


def _newton_tilt(children: list[Tensor], potential: Tensor, tilt: Tensor) -> Tensor:
    counts = torch.arange(potential.shape[-1], dtype=potential.dtype, device=potential.device)
    mean, variance = torch.zeros_like(tilt).unsqueeze(-1), torch.full_like(tilt, 0.1).unsqueeze(-1)
    for message in children:
        k = counts[: message.shape[-1]]
        weights = torch.softmax(message - tilt.unsqueeze(-1) * k, -1)
        centre = (weights * k).sum(-1, keepdim=True)
        mean, variance = mean + centre, variance + (weights * (k - centre) ** 2).sum(-1, keepdim=True)
    gaussian = tilt.unsqueeze(-1) * counts - (counts - mean) ** 2 / (2 * variance)
    target = (gaussian + potential).argmax(-1, keepdim=True)
    return (tilt.unsqueeze(-1) - (target - mean) / variance).squeeze(-1).nan_to_num(nan=0.0)


def _summarise(
    tree: CountTree, logits: Tensor, count_logits: Tensor, passes: FourierPasses, plans: list[NodePlan | None]
) -> tuple[NestedSolution, Tensor]:
    log_z = count_tree.root_log_partition(tree, passes.messages, passes.log_scale)
    log_z_error = torch.zeros_like(log_z)
    for cells in tree.roots:
        lost = logsumexp(count_tree.gather(passes.message_errors, cells))
        log_z_error = log_z_error + _ratio(lost, logsumexp(count_tree.gather(passes.messages, cells))).sum(-1)
    marginal_logits, log_posterior = count_tree.posterior(tree, passes.messages, passes.outside)
    leaves = slice(0, 2 * tree.num_variables)
    odds_error = _ratio(passes.outside_errors[:, leaves], passes.outside[:, leaves]).unflatten(-1, (-1, 2)).sum(-1)
    odds_error = odds_error.masked_fill(logits.isinf(), 0.0)
    scale = torch.maximum(log_z.abs(), logits.masked_fill(logits.isinf(), 0.0).abs().sum(-1))
    counts_error = _count_error(tree, passes)
    certified = (
        (log_z_error <= log_partition_tolerance(scale))
        & (odds_error.amax(-1) <= log_odds_tolerance(tree.num_variables))
        & (counts_error <= log_odds_tolerance(tree.num_variables))
    )
    rounding = count_tree.rounding_errors(tree, passes.messages, count_logits, passes.outside, passes.log_scale)
    tilting = _tilt_rounding(tree, plans, log_z)
    fallback = torch.zeros_like(log_z, dtype=torch.long)
    for plan in plans:
        fallback = fallback + (0 if plan is None else plan.direct.sum(-1))
    solution = NestedSolution(
        log_z,
        marginal_logits,
        log_posterior[:, tree.table_cells],
        log_z_error + rounding[0] + tilting,
        odds_error + rounding[1] + 4 * tilting.unsqueeze(-1),
        counts_error + rounding[1].amin(-1) + 4 * tilting,
        fallback,
        passes.messages,
    )
    return solution, certified


def _ratio(log_error: Tensor, log_value: Tensor) -> Tensor:
    """Relative error of a value; 0 for an impossible value without an error."""
    exact = log_error == -math.inf
    return (log_error - log_value.masked_fill(exact, 0.0)).exp()


def _count_error(tree: CountTree, passes: FourierPasses) -> Tensor:
    """Largest absolute error of a posterior count probability, shape ``(rows,)``."""
    worst = passes.messages.new_zeros(passes.messages.shape[0])
    for merge in tree.merges:
        here = slice(merge.start, merge.stop)
        inside, outside = passes.messages[:, here], passes.outside[:, here]
        inside_error, outside_error = passes.message_errors[:, here], passes.outside_errors[:, here]
        error = torch.logaddexp(inside_error + torch.logaddexp(outside, outside_error), inside + outside_error)
        shape = (len(worst), merge.nodes, merge.width)
        total = logsumexp((inside + outside).view(shape)).unsqueeze(-1)
        worst = torch.maximum(worst, _ratio(error.view(shape), total).amax((1, 2)))
    return worst


def _tilt_rounding(tree: CountTree, plans: list[NodePlan | None], log_z: Tensor) -> Tensor:
    """Relative errors from adding and subtracting tilts of large counts, shape ``(rows,)``."""
    total = torch.zeros_like(log_z)
    for merge, plan in zip(tree.merges, plans, strict=True):
        if plan is not None:
            total = total + 8 * UNIT_ROUNDOFF * merge.width * plan.tilt.abs().sum(-1)
    return total
