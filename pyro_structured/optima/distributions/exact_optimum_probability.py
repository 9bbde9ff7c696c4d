"""Exact log-probabilities of random optima, in closed form or by integrals over the real line."""

__all__ = ["EXCHANGE", "ExactLogProb", "exact_log_prob", "pair_moments"]

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.optima.distributions.cost_entries import CostEntries, cost_entries
from pyro_structured.optima.distributions.plackett_luce import ordered_costs, plackett_luce
from pyro_structured.optima.ops.line_probability import LineVariables
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.order_probability import log_chain, log_separation
from pyro_structured.optima.ops.reliability import log_components
from pyro_structured.optima.ops.truncated_normal import log_normal_tails
from pyro_structured.optima.structures.connected_components import ConnectedComponents
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.optima.structures.problem import Problem
from pyro_structured.optima.structures.ranking import Ranking
from pyro_structured.optima.structures.top_k import TopK

# Coefficients of the cost of the identity, less those of the other matching of two rows and columns.
EXCHANGE = ((1.0, -1.0), (-1.0, 1.0))


class ExactLogProb(NamedTuple):
    """Log-probability function of values, in double precision, and a parameter that tells dtype and device."""

    log_prob: Callable[[Tensor], Tensor]
    like: Tensor


def exact_log_prob(base: Any, problem: Problem) -> ExactLogProb | None:
    """Exact log-probability function of optima, or ``None`` where there is no exact method.

    :param base: Distribution of the costs.
    :param Problem problem: The optimisation problem.
    :return: Function from values to their log-probabilities in double precision, -inf where they are not feasible.
    """
    exact: ExactLogProb | None = _exact(problem, base)
    certain = problem.has_one_value
    if not any_true(certain) or (exact is None and any_true(~certain)):
        return exact
    return _partly_certain(base, problem, certain, exact)


def _partly_certain(base: Any, problem: Problem, certain: Tensor, others: ExactLogProb | None) -> ExactLogProb:
    """Log-probability 0 for the only feasible values of ``certain`` rows, and that of ``others`` for all other rows."""
    if others is None:
        with torch.random.fork_rng(devices=[]):
            drawn = base.sample()
        # Zeros with derivatives with respect to all parameters, which are zero.
        others = ExactLogProb(lambda value: base.log_prob(drawn).double() * 0.0, drawn)

    def log_prob(value: Tensor) -> Tensor:
        log_probs = others.log_prob(value).masked_fill(certain.to(value.device), 0.0)
        return log_probs.masked_fill(~problem.is_feasible(value), -torch.inf)

    return ExactLogProb(log_prob, others.like)


@singledispatch
def _exact(problem: Problem, base: Any) -> ExactLogProb | None:
    return None


@_exact.register
def _top_k(problem: TopK, base: Any) -> ExactLogProb | None:
    single = bool((problem.k == 1).all())
    return _choice(problem, base, single, torch.ones(problem.cost_shape, dtype=torch.bool))


@_exact.register
def _matching(problem: Matching, base: Any) -> ExactLogProb | None:
    if problem.num_rows == 1:
        return _choice(problem, base, True, problem.allowed.squeeze(-2))
    return _two_by_two(problem, base) if problem.cost_shape == (2, 2) else None


@_exact.register
def _ranking(problem: Ranking, base: Any) -> ExactLogProb | None:
    entry, maximize, _ = costs = ordered_costs(problem, base)
    closed, entries = plackett_luce(costs, 1), cost_entries(entry)
    if entries is None:
        return None

    def log_prob(value: Tensor) -> Tensor:
        feasible = problem.is_feasible(value)
        items = torch.arange(problem.num_items, device=value.device)
        first = value.where(feasible.unsqueeze(-1), items).long()
        ascending = first.flip(-1) if maximize else first
        if closed is not None:
            log_probs = closed.log_order(first if closed.first_is_best else first.flip(-1))
        else:
            variables, rows = _line(problem, entries, ascending.shape[:-1])
            order = _flat(ascending, rows, ascending.shape[-1:])
            ordered = tuple(parameter.gather(-1, order) for parameter in variables.parameters)
            log_probs = log_chain(_centred(variables._replace(parameters=ordered), entries)).reshape(rows)
        return log_probs.masked_fill(~feasible, -torch.inf)

    return ExactLogProb(log_prob, entries.like)


@_exact.register
def _components(problem: ConnectedComponents, base: Any) -> ExactLogProb | None:
    entries = cost_entries(entry_distribution(base))
    if entries is None:
        return None

    def log_prob(value: Tensor) -> Tensor:
        threshold = problem.threshold.to(value.device).unsqueeze(-1)
        _, closed, opened = entries.log_terms(threshold, *entries.parameters)
        number = value.double()
        inside = (number >= 0) & (number < problem.num_nodes) & (number == number.floor())
        log_probs = log_components(problem.edges, opened, closed, number.where(inside, -1.0).long())
        return log_probs.masked_fill(log_probs < IMPOSSIBLE / 2, -torch.inf)

    return ExactLogProb(log_prob, entries.like)


def _choice(problem: Problem, base: Any, single: bool, allowed: Tensor) -> ExactLogProb | None:
    """Log-probability that all chosen items cost less, or earn more, than all other allowed items."""
    entry, maximize, _ = costs = ordered_costs(problem, base)
    closed = plackett_luce(costs, len(problem.cost_shape)) if single else None
    entries = cost_entries(entry)
    if entries is None:
        return None

    def log_prob(value: Tensor) -> Tensor:
        feasible = problem.is_feasible(value)
        chosen = problem.incidence(value).flatten(-len(problem.cost_shape)) > 0
        others = ~chosen & allowed.to(value.device)
        if closed is not None and closed.first_is_best:
            log_probs = closed.log_first(chosen, others)
        else:
            low, high = (others, chosen) if maximize else (chosen, others)
            variables, rows = _line(problem, entries, low.shape[:-1])
            sides = [_flat(side, rows, side.shape[-1:]) for side in (low, high)]
            log_probs = log_separation(_centred(variables, entries, *sides), *sides).reshape(rows)
        return log_probs.masked_fill(~feasible, -torch.inf)

    return ExactLogProb(log_prob, entries.like)


def _two_by_two(problem: Matching, base: Any) -> ExactLogProb | None:
    """Log-probability of 2 x 2 matchings with normal costs: the difference of the costs of both is normal."""
    moments = pair_moments(base)
    if moments is None:
        return None
    loc, factor = (moment.double() for moment in moments)
    signs = loc.new_tensor(EXCHANGE).flatten()
    # Parts of the noise that both matchings have in common cancel before they are squared.
    mean, scale = (loc * signs).sum(-1), torch.linalg.vector_norm(signs @ factor, dim=-1)

    def log_prob(value: Tensor) -> Tensor:
        is_larger = (value[..., 0] == 0) == problem.maximize
        positive, negative = log_normal_tails(mean / scale)
        certain = ~problem.allowed.to(value.device).all(-1).all(-1)
        log_probs = positive.where(is_larger, negative).masked_fill(certain, 0.0)
        return log_probs.masked_fill(~problem.is_feasible(value), -torch.inf)

    return ExactLogProb(log_prob, moments[0])


def pair_moments(base: Any) -> tuple[Tensor, Tensor] | None:
    """Mean of the entries of normal 2 x 2 matrices, row by row, and a factor F of their covariance matrix F F': shapes
    ``(..., 4)`` and ``(..., 4, 4)``.
    """
    base = entry_distribution(base)
    if isinstance(base, td.Normal):
        return base.loc.flatten(-2), torch.diag_embed(base.scale.flatten(-2).double())
    if isinstance(base, td.TransformedDistribution) and _reshapes(base):
        base = base.base_dist
        return (base.loc, base.scale_tril) if isinstance(base, td.MultivariateNormal) else None
    if isinstance(base, td.MultivariateNormal):  # of every row
        first, second = base.scale_tril.unbind(-3)
        rows = torch.zeros_like(first)
        joint = torch.cat([torch.cat([first, rows], -1), torch.cat([rows, second], -1)], -2)
        return base.loc.flatten(-2), joint
    return None


def _reshapes(base: td.TransformedDistribution) -> bool:
    return all(isinstance(transform, td.ReshapeTransform) for transform in base.transforms)


def _line(problem: Problem, entries: CostEntries, batch: torch.Size) -> tuple[LineVariables, torch.Size]:
    """Costs as variables with parameters of shape ``(N, n)``, and the shape of the N rows."""
    rank = len(problem.cost_shape)
    rows = broadcast_shapes(batch, *(parameter.shape[:-rank] for parameter in entries.parameters))
    parameters = tuple(_flat(parameter, rows, problem.cost_shape) for parameter in entries.parameters)
    return LineVariables(entries.log_terms, entries.points, entries.corners, parameters), rows


def _centred(
    variables: LineVariables, entries: CostEntries, low: Tensor | None = None, high: Tensor | None = None
) -> LineVariables:
    """Variables without a large common part of their locations, which would cost precision.

    Zero becomes a typical number of that of the ``low`` ones which is the largest, next to which the others count; the
    median of all where ``None`` is given. Variables on no side, which may be anywhere, come there.
    """
    if not entries.locations:
        return variables
    parameters = list(variables.parameters)
    typical = variables.points(*parameters).detach().median(0).values
    if low is None or high is None:
        origin = typical.median(-1, keepdim=True).values
    else:
        largest = typical.masked_fill(~low, -torch.inf).amax(-1, keepdim=True)
        origin = largest.where(largest > -torch.inf, typical[:, :1]).where(low | high, typical)
    for index in entries.locations:
        parameters[index] = parameters[index] - origin
    return variables._replace(parameters=tuple(parameters))


def _flat(tensor: Tensor, rows: torch.Size, shape: torch.Size) -> Tensor:
    """Tensor of shape ``(N, n)`` for N rows, from one that broadcasts with ``rows + shape``."""
    return tensor.expand(rows + shape).reshape(math.prod(rows), math.prod(shape))
