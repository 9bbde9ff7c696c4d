"""Exact draws of random costs given their optimum."""

__all__ = ["exact_costs"]

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.optima.distributions.exact_optimum_probability import EXCHANGE, pair_moments
from pyro_structured.optima.distributions.plackett_luce import OrderedCosts, ordered_costs, plackett_luce
from pyro_structured.optima.ops.truncated_normal import truncated_quantile
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.optima.structures.problem import Problem
from pyro_structured.optima.structures.ranking import Ranking
from pyro_structured.optima.structures.top_k import TopK


def exact_costs(base: Any, problem: Problem) -> Callable[[Tensor], Tensor] | None:
    """Function that draws costs given their optima, or ``None`` where there is none.

    There is one for rankings of exponential costs or Gumbel ones of one scale, for choices of one item and matchings
    with one row, of exponential costs or Gumbel rewards, for monotone functions of these costs, and for 2 x 2 matchings
    with normal costs. O(n) a draw.

    :param base: Distribution of the costs.
    :param Problem problem: The optimisation problem.
    :return: Function from feasible values, shape ``batch_shape + event_shape``, to independent draws of the costs in
        double precision.
    """
    if any_true(problem.has_one_value):
        return None
    draw: Callable[[Tensor], Tensor] | None = _draws(problem, base)
    return draw


@singledispatch
def _draws(problem: Problem, base: Any) -> Callable[[Tensor], Tensor] | None:
    return None


@_draws.register
def _ranking(problem: Ranking, base: Any) -> Callable[[Tensor], Tensor] | None:
    costs = ordered_costs(problem, base)
    closed = plackett_luce(costs, 1)
    if closed is None:
        return None

    def draw(value: Tensor) -> Tensor:
        first = value.long()
        return _transformed(costs, closed.draw_given_order(first if closed.first_is_best else first.flip(-1)))

    return draw


@_draws.register
def _top_k(problem: TopK, base: Any) -> Callable[[Tensor], Tensor] | None:
    single = bool((problem.k == 1).all())
    return _choice(problem, base, torch.ones(problem.cost_shape, dtype=torch.bool)) if single else None


@_draws.register
def _matching(problem: Matching, base: Any) -> Callable[[Tensor], Tensor] | None:
    if problem.num_rows == 1:
        return _choice(problem, base, problem.allowed.squeeze(-2))
    return _two_by_two(problem, base) if problem.cost_shape == (2, 2) else None


def _choice(problem: Problem, base: Any, allowed: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Draws of costs of which a given one is the best of those allowed."""
    rank = len(problem.cost_shape)
    costs = ordered_costs(problem, base)
    closed = plackett_luce(costs, rank)
    if closed is None or not closed.first_is_best:
        return None

    def draw(value: Tensor) -> Tensor:
        chosen = problem.incidence(value).flatten(-rank) > 0
        flat = closed.draw_given_first(chosen, ~chosen & allowed.to(value.device))
        return _transformed(costs, flat.reshape(flat.shape[:-1] + problem.cost_shape))

    return draw


def _transformed(costs: OrderedCosts, drawn: Tensor) -> Tensor:
    for transform in costs.transforms:
        drawn = transform(drawn)
    return drawn


def _two_by_two(problem: Matching, base: Any) -> Callable[[Tensor], Tensor] | None:
    """Draws of normal 2 x 2 matrices: of the difference of the costs of both matchings, and of all else given it."""
    moments = pair_moments(base)
    if moments is None:
        return None
    loc, factor = (moment.detach().double() for moment in moments)
    signs = loc.new_tensor(EXCHANGE).flatten()
    direction = signs @ factor
    mean, scale = loc @ signs, torch.linalg.vector_norm(direction, dim=-1)
    # Covariances of the costs with the difference, in units of its variance.
    shares = (factor @ (direction / scale.unsqueeze(-1)).unsqueeze(-1)).squeeze(-1) / scale.unsqueeze(-1)

    def draw(value: Tensor) -> Tensor:
        is_larger = (value[..., 0] == 0) == problem.maximize
        # Of a draw without a condition, what does not depend on the difference is kept.
        batch = broadcast_shapes(is_larger.shape, base.batch_shape)
        free = base.expand(batch).sample().detach().double().flatten(-2)
        low, high = torch.where(is_larger, 0.0, -torch.inf), torch.where(is_larger, torch.inf, 0.0)
        difference = truncated_quantile(torch.rand_like(low, dtype=mean.dtype), mean, scale, low, high)
        costs: Tensor = free + shares * (difference - free @ signs).unsqueeze(-1)
        return costs.reshape(costs.shape[:-1] + problem.cost_shape)

    return draw
