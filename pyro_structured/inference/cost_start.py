"""Costs inside the inverse sets of observed optima, to start with."""

__all__ = ["check_feasible", "feasible_costs"]

from typing import Any

from torch import Tensor

from pyro_structured.distributions.support_bounds import support_bounds
from pyro_structured.inference.cost_sites import CostSite
from pyro_structured.inference.cost_sweep import interior_point


def feasible_costs(site: CostSite, trace: Any, places: tuple[Tensor, ...] | None = None) -> Tensor:
    """Costs near those of a trace, drawn from their distribution, for which the observed values are optimal.

    :param trace: Of a model.
    :param places: Numbers of the rows along every axis of the batch, for messages.
    :return: Double precision, shape ``(..., *cost_shape)``.
    :raises ValueError: if the observed values have another shape or are infeasible; with the first row's number.
    """
    check_feasible(site, trace, places)
    costs, optimum = trace.nodes[site.costs], trace.nodes[site.optimum]
    problem, value = optimum["fn"].problem, optimum["value"]
    drawn = costs["value"].double()
    found, inside = interior_point(problem, value, drawn, *support_bounds(costs["fn"]))
    if not bool(inside.all()):
        raise ValueError(
            f"{site.optimum}: expected values that some costs in the support of {site.costs!r} make optimal, got others"
            f"{_rows(inside, places)}"
        )
    return found


def check_feasible(site: CostSite, trace: Any, places: tuple[Tensor, ...] | None = None) -> None:
    """Raises a ValueError as :func:`feasible_costs`, unless the observed values are feasible."""
    optimum = trace.nodes[site.optimum]
    problem, value = optimum["fn"].problem, optimum["value"]
    _check_shape(site.optimum, value, optimum["fn"])
    feasible = problem.is_feasible(value).expand(optimum["fn"].batch_shape)
    if not bool(feasible.all()):
        raise ValueError(
            f"{site.optimum}: expected values that are feasible for {type(problem).__name__}, got others"
            f"{_rows(feasible, places)}"
        )


def _check_shape(name: str, value: Tensor, fn: Any) -> None:
    """Pyro does not look at shapes of observed values before it computes their density."""
    expected, shape = fn.batch_shape + fn.event_shape, tuple(value.shape)
    fits = len(shape) <= len(expected) and all(
        size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(expected), strict=False)
    )
    if not fits or shape[len(shape) - len(fn.event_shape) :] != fn.event_shape:
        raise ValueError(f"{name}: expected observed values of shape {tuple(expected)}, got {shape}")


def _rows(good: Tensor, places: tuple[Tensor, ...] | None) -> str:
    if not good.dim():
        return ""
    first = (~good).nonzero()[0].tolist()
    if places is not None:
        first = [int(place.flatten()[number]) for place, number in zip(places, first, strict=True)]
    return f" in {int((~good).sum())} of {good.numel()} rows, the first of which is number {str(first)[1:-1]}"
