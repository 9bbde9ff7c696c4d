"""Costs inside the inverse sets of observed optima, to start with."""

__all__ = ["check_feasible", "dense_costs", "feasible_costs"]

from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.inference.latent_state import log_densities
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sites import CostSite, optima_of
from pyro_structured.optima.inference.cost_sweep import interior_point, sweep
from pyro_structured.optima.inference.observed_optima import observed_optima

# Length of a value in an error.
MOST_LETTERS = 80
# Number of updates without a gain after which no costs of positive density are looked for, and of lines of each.
PATIENCE = 10
NUM_LINES = 10


def feasible_costs(site: CostSite, trace: Any, places: tuple[Tensor, ...] | None = None) -> Tensor:
    """Costs near those of a trace, drawn from their distribution, for which all their observed values are optimal.

    :param trace: Trace of a model.
    :param places: Numbers of the rows along every axis of the batch, for messages.
    :return: Double precision, shape ``(..., *cost_shape)``.
    :raises ValueError: if the observed values are infeasible, or the costs are NaN; with the first row's number.
    """
    check_feasible(site, trace, places)
    costs, optima = trace.nodes[site.costs], optima_of(trace, site.costs)
    drawn, (problem, value) = costs["value"].double(), observed_optima(trace, site.costs)
    if bool(drawn.isnan().any()):
        known = ~drawn.flatten(drawn.dim() - len(problem.cost_shape)).isnan().any(-1)
        raise ValueError(
            f"{site.costs}: expected a distribution whose draws are numbers, got {_wrong(drawn, known, places)}"
        )
    try:
        interior, inside = interior_point(problem, value, drawn, *support_bounds(costs["fn"]))
    except ValueError as error:
        finite = drawn.flatten(drawn.dim() - len(problem.cost_shape)).isfinite().all(-1)
        if bool(finite.all()):
            raise
        raise ValueError(
            f"{site.costs}: expected a distribution whose draws are finite, got {_wrong(drawn, finite, places)}"
        ) from error
    if not bool(inside.all()):
        raise ValueError(
            f"{', '.join(optima)}: expected values that some costs in the support of {site.costs!r} make optimal, got "
            f"{_wrong(value.expand(inside.shape + problem.event_shape), inside, places)}"
        )
    return interior


def dense_costs(site: CostSite, trace: Any, costs: Tensor) -> Tensor:
    """Costs of positive density in the precision of the model, if updates lead from feasible ones to some: far in a
    tail, densities underflow.

    :param Tensor costs: Costs in their inverse sets, double precision.
    """
    node, (problem, value) = trace.nodes[site.costs], observed_optima(trace, site.costs)
    least, patience = torch.inf, PATIENCE
    while patience:
        number = int((~log_densities(node, costs).isfinite()).sum())
        if not number:
            break
        patience = PATIENCE if number < least else patience - 1
        least = min(number, least)
        family = cost_conditionals(node["fn"], len(problem.cost_shape))
        costs, _ = sweep(costs, value, problem, family, NUM_LINES)
    return costs


def check_feasible(site: CostSite, trace: Any, places: tuple[Tensor, ...] | None = None) -> None:
    """Raises a ValueError as :func:`feasible_costs`, unless the observed values are feasible."""
    for name in optima_of(trace, site.costs):
        fn, value = trace.nodes[name]["fn"], trace.nodes[name]["value"]
        feasible = fn.problem.is_feasible(value).expand(fn.batch_shape)
        if not bool(feasible.all()):
            raise ValueError(
                f"{name}: expected values that are feasible for {type(fn.problem).__name__}, got "
                f"{_wrong(value.expand(feasible.shape + fn.event_shape), feasible, places)}"
            )


def _wrong(value: Tensor, good: Tensor, places: tuple[Tensor, ...] | None) -> str:
    """Text that shows the first value whose row is not ``good``, and the number of this row."""
    got = shorten(str(value[~good][0].tolist()), MOST_LETTERS)
    if not good.dim():
        return got
    first = (~good).nonzero()[0].tolist()
    # Rows that share costs have no places of their own.
    if places is not None and len(places) == len(first):
        first = [int(place.flatten()[number]) for place, number in zip(places, first, strict=True)]
    return f"{got} in {int((~good).sum())} of {good.numel()} rows, the first of which is number {str(first)[1:-1]}"
