"""Bounds of log partition functions of variables in several families of counts."""

__all__ = ["BoundSolution", "bethe_bound", "holder_bound", "mean_field", "mean_field_choices"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.factor_messages import (
    Extrapolation,
    FactorGraph,
    Schedule,
    differentiable_messages,
    first_order,
    propagate,
)
from pyro_structured.foundation.ops.log_space import safe_log

# Largest absolute value of messages of the bound from above, beside twice that of log-odds: beliefs are as good as
# certain.
LARGEST_MESSAGE = 40.0
# Number of earlier steps of mean-field approximations that are extrapolated from.
MEMORY = 5


class BoundSolution(NamedTuple):
    """A bound of log Z, with the log-odds of variables that belong to it.

    :ivar Tensor bound: Shape ``(rows,)``, differentiable, as the next one.
    :ivar Tensor marginal_logits: Shape ``(rows, n)``.
    :ivar Tensor residual: Largest change of a probability in the last step, shape ``(rows,)``.
    :ivar Tensor error: Estimated distance of the probabilities from those of the best bound of its kind.
    :ivar Tensor num_iterations: Numbers of steps, shape ``(rows,)``.
    """

    bound: Tensor
    marginal_logits: Tensor
    residual: Tensor
    error: Tensor
    num_iterations: Tensor


def holder_bound(graph: FactorGraph, schedule: Schedule) -> BoundSolution:
    r"""An upper bound of log Z by Hölder's inequality.

    .. math::
        \log \sum_y \prod_f e^{s_f^\top y} \psi_f(y) \le \sum_f \tfrac1F \log \sum_y e^{F s_f^\top y}
        \psi_f(y)^F, \qquad \sum_f s_f = x,

    minimised over the split, a convex function: where all factors have the same posterior marginals.

    :param FactorGraph graph: Variables and factors, with a share of 1.
    :param Schedule schedule: How long the split is improved.
    """
    shared = graph.with_share(1.0 / len(graph.factors))
    plain = shared.detach()
    # One family by itself is exact.
    if len(graph.factors) > 1:
        sizes = plain.logits.masked_fill(plain.logits.isinf(), 0.0).abs()
        largest = float(sizes.max()) if sizes.numel() else 0.0
        schedule = schedule._replace(limit=LARGEST_MESSAGE + 2.0 * len(graph.factors) * largest)
    found = propagate(plain, plain.no_messages, schedule)
    with torch.no_grad():
        before, after = (plain.log_partition(messages) for messages in (plain.no_messages, found.messages))
    # Any split bounds log Z.
    messages = found.messages.where((after <= before).unsqueeze(-1), 0.0)
    odds = shared.beliefs(differentiable_messages(shared, found.messages, schedule))
    bound = first_order(shared.log_partition(messages))
    return BoundSolution(bound, odds, found.residual, found.error, found.num_iterations)


def bethe_bound(graph: FactorGraph, schedule: Schedule) -> Tensor:
    """Bethe's log Z of two families whose laws have real roots, a lower bound, shape ``(rows,)``; -inf where messages
    have not converged.

    Arguments are those of :func:`holder_bound`.

    **References**

    Straszak, Vishnoi (2017): Belief propagation, Bethe approximation and polynomials. Allerton. Theorem 1.
    """
    plain = graph.detach()
    found = propagate(plain, plain.no_messages, schedule)
    return first_order(graph.log_partition(found.messages)).masked_fill(~found.converged, -math.inf)


def mean_field_choices(graph: FactorGraph) -> Tensor:
    """Whether :func:`mean_field` can keep each family, booleans of shape ``(F, rows)``."""
    finite = torch.stack([(table > -math.inf).all(-1) for table in graph.tables])
    others = [torch.cat([finite[:kept], finite[kept + 1 :]]).all(0) for kept in range(len(finite))]
    return torch.stack(others) & torch.tensor(graph.crossing, device=finite.device).unsqueeze(-1)


def mean_field(graph: FactorGraph, kept: int, tolerance: float, max_iterations: int) -> BoundSolution:
    r"""The best lower bound of log Z by a distribution q that has the potentials of one family, and log-odds s.

    .. math::
        \log Z \ge \log Z_f(s) + \sum_d q_d (x_d - s_d) + \sum_{g \ne f} E_q \log\psi_g(y).

    The variables of each subset of the other families have to be independent under q: their counts are sums of
    independent variables. Steps are extrapolated from the last ones, and damped where they do not gain.

    :param FactorGraph graph: Variables and factors with a share of 1.
    :param int kept: The family f; tables of the others are finite.
    :param float tolerance: Largest change of a probability in the last step.
    :param int max_iterations: Largest number of steps.
    """
    plain = graph.detach()
    clamped = plain.logits.isinf()
    split = plain.logits.clone()
    best, step = split, torch.ones_like(split[:, :1])
    value = _lower(plain, kept, split)
    residual = value.new_full(value.shape, math.inf)
    num_iterations = torch.zeros_like(value, dtype=torch.long)
    extrapolation, failed = Extrapolation(MEMORY), torch.zeros_like(value, dtype=torch.bool)
    for _ in range(max_iterations):
        with torch.enable_grad():
            probs = plain.factors[kept](best, plain.tables[kept])[1].sigmoid().detach().requires_grad_()
            (message,) = torch.autograd.grad(_expected(plain, kept, probs).sum(), probs)
        goal = torch.where(clamped, plain.logits, plain.logits + message)
        with torch.no_grad():
            change = (plain.factors[kept](goal, plain.tables[kept])[1].sigmoid() - probs).abs().amax(-1)
        residual = torch.minimum(residual, change)
        active = (residual > tolerance) & (step.squeeze(-1) > tolerance)
        if not bool(active.any()):
            break
        num_iterations += active
        # Where an extrapolated step has lost, steps towards the goal become shorter until one gains.
        straight = best + step * (goal - best).masked_fill(clamped, 0.0)
        split = torch.where(failed.unsqueeze(-1), straight, extrapolation(best, goal, failed))
        tried = _lower(plain, kept, split)
        gains = active & (tried >= value)
        best = torch.where(gains.unsqueeze(-1), split, best)
        value = torch.where(gains, tried, value)
        step = torch.where(gains | ~failed, torch.ones_like(value), step.squeeze(-1) / 2).unsqueeze(-1)
        failed = active & ~gains
    odds = plain.factors[kept](best, plain.tables[kept])[1]
    return BoundSolution(first_order(_lower(graph, kept, best)), odds, residual, residual, num_iterations)


def _lower(graph: FactorGraph, kept: int, split: Tensor) -> Tensor:
    """The bound for log-odds of q, shape ``(rows,)``."""
    log_z, odds = graph.factors[kept](split, graph.tables[kept])
    probs = odds.sigmoid()
    gap = (graph.logits - split).masked_fill(split.isinf(), 0.0)
    return log_z + (probs * gap).sum(-1) + _expected(graph, kept, probs)


def _expected(graph: FactorGraph, kept: int, probs: Tensor) -> Tensor:
    """Expected log-potentials of all families but one under independent variables, shape ``(rows,)``."""
    odds = safe_log(probs) - safe_log(1 - probs)
    # With one family alone there is nothing to expect, but a derivative.
    total = 0.0 * probs.sum(-1)
    for number, (factor, table) in enumerate(zip(graph.factors, graph.tables, strict=True)):
        if number == kept:
            continue
        with torch.enable_grad():
            flat = torch.zeros_like(table, requires_grad=True)
            log_z, _ = factor(odds, flat)
            (of_counts,) = torch.autograd.grad(log_z.sum(), flat, create_graph=probs.requires_grad)
        total = total + (of_counts * table).sum(-1)
    return total
