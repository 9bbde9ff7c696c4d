"""Densities and both tails of random costs, in the log domain."""

__all__ = ["CostEntries", "cost_entries"]

import copy
import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch import distributions as td

from pyro_structured.distributions.truncated_normal import TruncatedNormal
from pyro_structured.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.ops.order_probability import LogTerms
from pyro_structured.ops.truncated_normal import log_interval_mass, log_normal_tails

# Between these places, in units of the scale, a density is a polynomial of low degree, but for rounding; outside of
# them is no more than exp(-40).
BELL = (-9.0, -6.0, -4.0, -2.5, -1.25, 0.0, 1.25, 2.5, 4.0, 6.0, 9.0)
TAIL = (0.25, 0.75, 1.5, 3.0, 5.0, 8.0, 12.0, 17.0, 24.0, 33.0, 45.0)
GUMBEL = (-4.0, -3.0, -2.0, -1.0, 0.0, 1.25, 3.0, 6.0, 10.0, 16.0, 24.0, 34.0, 45.0)
# Inside of the codomains of all transforms that are not onto the real line.
INTERIOR = 0.5
# Near the end of a support, in units of the scale: a power of such a number may have a singularity there.
GRADED = (1e-9, 1e-7, 1e-5, 1e-3, 0.03)


class CostEntries(NamedTuple):
    """Random numbers, one for each element of a batch shape, in double precision.

    ``log_terms`` takes numbers that broadcast with the batch and returns logarithms of the density, of the
    distribution function and of the survival function; ``IMPOSSIBLE`` for that of zero. ``points``, shape
    ``(M,) + batch``, are where the density is not smooth, and ends of panels in which it is; outside of them it does
    not count. ``like`` is a parameter as it was given.
    """

    log_terms: LogTerms
    points: Tensor
    like: Tensor


def cost_entries(base: Any) -> CostEntries | None:
    """What is known about univariate distributions, or ``None`` where their tails are not.

    Relative errors of all three are a few units of rounding for Normal, TruncatedNormal, HalfNormal, Uniform,
    Exponential, Gumbel, Laplace and Logistic, and for monotone transforms of them, such as LogNormal and Weibull.
    """
    found: CostEntries | None = _entries(base)
    return None if found is None else found._replace(log_terms=_bounded(found.log_terms))


def _bounded(log_terms: LogTerms) -> LogTerms:
    def bounded(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        density, below, above = (term.clamp(min=IMPOSSIBLE) for term in log_terms(x))
        return density, below, above

    return bounded


@singledispatch
def _entries(base: Any) -> CostEntries | None:
    return None


def _at(places: tuple[float, ...], like: Tensor) -> Tensor:
    """Numbers along a new first axis."""
    return like.new_tensor(places, dtype=torch.double).reshape((-1,) + (1,) * like.dim())


def _with_support(
    x: Tensor, low: Tensor, high: Tensor, terms: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], inner: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Terms between two ends; ``inner`` is any number there."""
    below, above = x <= low, x >= high
    outside = below | above
    density, left, right = terms(x.where(~outside, inner.detach()))
    return (
        density.masked_fill(outside, IMPOSSIBLE),
        left.masked_fill(below, IMPOSSIBLE).masked_fill(above, 0.0),
        right.masked_fill(above, IMPOSSIBLE).masked_fill(below, 0.0),
    )


def _log1mexp(x: Tensor) -> Tensor:
    """Logarithm of 1 - exp(x) for negative numbers."""
    small = x > -math.log(2)
    return torch.where(small, (-torch.expm1(x.where(small, -0.5))).log(), torch.log1p(-x.where(~small, -1.0).exp()))


@_entries.register(td.Normal)
def _normal(base: td.Normal) -> CostEntries:
    loc, scale = base.loc.double(), base.scale.double()

    def log_terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = (x - loc) / scale
        return -(z**2) / 2 - scale.log() - math.log(2 * math.pi) / 2, *log_normal_tails(z)

    return CostEntries(log_terms, (loc + scale * _at(BELL, loc)).detach(), base.loc)


@_entries.register(TruncatedNormal)
def _truncated_normal(base: TruncatedNormal) -> CostEntries:
    loc, scale, low, high = (t.double() for t in (base.loc, base.scale, base.low, base.high))
    alpha, beta = base._bounds
    log_mass = log_interval_mass(alpha, beta)
    places = (loc + scale * _at(BELL, loc)).detach()
    ends = torch.stack([bound.where(bound.isfinite(), loc.detach()) for bound in (low, high)])
    points = torch.cat([places.maximum(low).minimum(high), ends])

    def inside(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = (x - loc) / scale
        density = -(z**2) / 2 - scale.log() - math.log(2 * math.pi) / 2
        return density - log_mass, log_interval_mass(alpha, z) - log_mass, log_interval_mass(z, beta) - log_mass

    middle = loc.maximum(low + (high - low).clamp(max=1.0) / 2).minimum(high - (high - low).clamp(max=1.0) / 2)
    return CostEntries(lambda x: _with_support(x, low, high, inside, middle), points, base.loc)


@_entries.register(td.HalfNormal)
def _half_normal(base: td.HalfNormal) -> CostEntries:
    return _truncated_normal(TruncatedNormal(torch.zeros_like(base.scale), base.scale, 0.0, torch.inf))


@_entries.register(td.Uniform)
def _uniform(base: td.Uniform) -> CostEntries:
    low, high = base.low.double(), base.high.double()
    width = (high - low).log()

    def inside(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return -width + 0 * x, (x - low).log() - width, (high - x).log() - width

    def log_terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _with_support(x, low, high, inside, (low + high) / 2)

    return CostEntries(log_terms, torch.stack([low, high]), base.low)


@_entries.register(td.Exponential)
def _exponential(base: td.Exponential) -> CostEntries:
    rate = base.rate.double()

    def inside(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return rate.log() - rate * x, _log1mexp(-rate * x), -rate * x

    def log_terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _with_support(x, torch.zeros_like(rate), torch.full_like(rate, torch.inf), inside, 1 / rate)

    points = torch.cat([torch.zeros_like(rate).unsqueeze(0), (_at(GRADED + TAIL, rate) / rate).detach()])
    return CostEntries(log_terms, points, base.rate)


@_entries.register(td.Gumbel)
def _gumbel(base: td.Gumbel) -> CostEntries:
    loc, scale = base.loc.double(), base.scale.double()

    def log_terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = ((x - loc) / scale).clamp(min=-650.0)  # exp(650) is finite
        return -z - (-z).exp() - scale.log(), -(-z).exp(), _log1mexp(-(-z).exp())

    return CostEntries(log_terms, (loc + scale * _at(GUMBEL, loc)).detach(), base.loc)


@_entries.register(td.Laplace)
def _laplace(base: td.Laplace) -> CostEntries:
    loc, scale = base.loc.double(), base.scale.double()
    tail = _at(TAIL, loc) * scale

    def log_terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = (x - loc) / scale
        near, far = -z.abs() - math.log(2), torch.log1p(-(-z.abs()).exp() / 2)
        return near - scale.log(), torch.where(z < 0, near, far), torch.where(z < 0, far, near)

    points = torch.cat([(loc - tail).detach(), loc.unsqueeze(0), (loc + tail).detach()])
    return CostEntries(log_terms, points, base.loc)


@_entries.register(dist.Logistic)
def _logistic(base: Any) -> CostEntries:
    loc, scale = base.loc.double(), base.scale.double()
    tail = (_at(TAIL, loc) * scale).detach()

    def log_terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = (x - loc) / scale
        below, above = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
        return below + above - scale.log(), below, above

    points = torch.cat([loc.detach() - tail, loc.detach().unsqueeze(0), loc.detach() + tail])
    return CostEntries(log_terms, points, base.loc)


@_entries.register(td.TransformedDistribution)
def _transformed(base: td.TransformedDistribution) -> CostEntries | None:
    found: CostEntries | None = _entries(base.base_dist)
    for transform in base.transforms:
        found = found and _through(found, _in_double(transform))
    return found


def _in_double(transform: Any) -> Any:
    new = copy.copy(transform)
    for name, value in vars(transform).items():
        if isinstance(value, Tensor) and value.is_floating_point():
            setattr(new, name, value.double())
    return new


def _through(entries: CostEntries, transform: Any) -> CostEntries | None:
    """After a monotone transform of every number."""
    is_monotone = isinstance(transform, MONOTONE)
    if not is_monotone or transform.domain.event_dim:
        return None
    rising = torch.as_tensor(transform.sign) > 0

    def log_terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outside = ~transform.codomain.check(x)
        inside = x.masked_fill(outside, INTERIOR)
        before = transform.inv(inside)
        density, left, right = entries.log_terms(before)
        below, above = torch.where(rising, left, right), torch.where(rising, right, left)
        low, high = outside & (x < INTERIOR), outside & (x > INTERIOR)
        return (
            (density - transform.log_abs_det_jacobian(before, inside)).masked_fill(outside, IMPOSSIBLE),
            below.masked_fill(low, IMPOSSIBLE).masked_fill(high, 0.0),
            above.masked_fill(high, IMPOSSIBLE).masked_fill(low, 0.0),
        )

    points = transform(entries.points)
    return CostEntries(log_terms, points, entries.like)


MONOTONE = (td.AffineTransform, td.ExpTransform, td.PowerTransform, td.SigmoidTransform, td.TanhTransform)
