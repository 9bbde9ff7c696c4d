"""Densities and both tails of random costs, in the log domain."""

__all__ = ["CostEntries", "cost_entries"]

import copy
import math
from collections.abc import Callable
from functools import partial, singledispatch
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch import distributions as td

from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.ops.processor import unmoved_tensor
from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.optima.distributions.truncated_normal import TruncatedNormal
from pyro_structured.optima.ops.line_probability import Terms
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.truncated_normal import log_normal_tails, log_scaled_mass, nearest_to_zero

# Breakpoints in units of the scale: between neighbours a density is a polynomial of low degree, up to rounding; the
# probability outside of all of them is at most exp(-40).
BELL = (-9.0, -6.0, -4.0, -2.5, -1.25, 0.0, 1.25, 2.5, 4.0, 6.0, 9.0)
TAIL = (0.25, 0.75, 1.5, 3.0, 5.0, 8.0, 12.0, 17.0, 24.0, 33.0, 45.0)
BOTH_TAILS = (*(-place for place in reversed(TAIL)), 0.0, *TAIL)
GUMBEL = (-4.0, -3.0, -2.0, -1.0, 0.0, 1.25, 3.0, 6.0, 10.0, 16.0, 24.0, 34.0, 45.0)
# From here on, the upper tail of a Gumbel variable is known by two terms up to rounding.
FAR_TAIL = 30.0
# A number inside the codomain of every transform that is not onto the real line.
INTERIOR = 0.5
# Its exponential is finite.
LARGEST_LOGARITHM = 700.0
# Further breakpoints near the ends of a support, as shares of the outermost intervals: the density of a power of a
# variable may have a singularity there.
GRADED = (1e-13, 1e-11, 1e-9, 1e-7, 1e-5, 1e-3, 0.03)


class CostEntries(NamedTuple):
    """Univariate distributions, one for each element of a batch shape, in double precision.

    ``log_terms`` takes numbers that broadcast with the batch, and returns logarithms of the density, of the
    distribution function and of the survival function, with ``IMPOSSIBLE`` for log 0. ``points``, shape
    ``(M,) + batch``, are ends of intervals in which the density is nearly a polynomial; outside of all intervals it is
    negligible. ``corners``, each of the batch's shape, are points at which the density is not smooth. All three are
    functions whose last arguments are ``parameters``, broadcast and cut in any way; the parameters at the indices
    ``locations`` are location parameters. ``like`` is a parameter in the dtype and on the device of the base.
    """

    log_terms: Callable[..., Terms]
    points: Callable[..., Tensor]
    corners: Callable[..., tuple[Tensor, ...]]
    parameters: tuple[Tensor, ...]
    locations: tuple[int, ...]
    like: Tensor


def cost_entries(base: Any) -> CostEntries | None:
    """Density and both tails of univariate distributions, or ``None`` if the tails are not known.

    Relative errors of all three are a few units of rounding for Normal, TruncatedNormal, HalfNormal, Uniform,
    Exponential, Gumbel, Laplace and Logistic, and for monotone transforms of them, such as LogNormal and Weibull. Of
    powers, the tails are known where variables are positive.
    """
    entries: CostEntries | None = _entries(base)
    return None if entries is None else entries._replace(log_terms=partial(_bounded, entries.log_terms))


def _bounded(log_terms: Callable[..., Terms], x: Tensor, *parameters: Tensor) -> Terms:
    density, below, above = (term.clamp(min=IMPOSSIBLE) for term in log_terms(x, *parameters))
    return density, below, above


@singledispatch
def _entries(base: Any) -> CostEntries | None:
    return None


def _at(places: tuple[float, ...], like: Tensor) -> Tensor:
    """Breakpoints along a new first axis, in double precision, shape ``(M, 1, ..., 1)``."""
    return like.new_tensor(places, dtype=torch.double).reshape((-1,) + (1,) * like.dim())


def _smooth(*parameters: Tensor) -> tuple[Tensor, ...]:
    return ()


def _with_support(x: Tensor, low: Tensor, high: Tensor, terms: Callable[[Tensor], Terms], inner: Tensor) -> Terms:
    """Terms of a distribution with support from ``low`` to ``high``; ``inner`` is any number inside."""
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
    def log_terms(x: Tensor, loc: Tensor, scale: Tensor) -> Terms:
        z = (x - loc) / scale
        return -(z**2) / 2 - scale.log() - math.log(2 * math.pi) / 2, *log_normal_tails(z)

    return CostEntries(
        log_terms,
        lambda loc, scale: loc + scale * _at(BELL, loc),
        _smooth,
        (base.loc.double(), base.scale.double()),
        (0,),
        base.loc,
    )


@_entries.register(TruncatedNormal)
def _truncated_normal(base: TruncatedNormal) -> CostEntries:
    parameters = tuple(t.double() for t in (base.loc, base.scale, base.low, base.high))
    return CostEntries(_truncated_terms, _truncated_points, _truncated_corners, parameters, (0, 2, 3), base.loc)


def _truncated_terms(x: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Terms:
    alpha, beta = ((corner - loc) / scale for corner in _truncated_corners(loc, scale, low, high))
    alpha, beta = alpha.where(low.isfinite(), -torch.inf), beta.where(high.isfinite(), torch.inf)
    # Squares of bounds far out would cancel: differences from the likeliest place are taken.
    bounds = low.masked_fill(low == -torch.inf, 0.0), high.masked_fill(high == torch.inf, 0.0)
    is_above, is_below = alpha >= 0, beta <= 0
    place = torch.where(is_above, bounds[0], torch.where(is_below, bounds[1], loc))
    nearest = nearest_to_zero(alpha, beta)
    width = ((bounds[1] - bounds[0]) / scale).masked_fill(low.isinf() | high.isinf(), torch.inf)
    log_mass = log_scaled_mass(alpha, beta, width)

    def inside(x: Tensor) -> Terms:
        gap = (x - place) / scale
        z = nearest + gap
        drop = gap * (gap + 2 * nearest) / 2
        from_low = ((x - bounds[0]) / scale).masked_fill(low.isinf(), torch.inf)
        to_high = ((bounds[1] - x) / scale).masked_fill(high.isinf(), torch.inf)
        # Of the likeliest place below a number, and above it, if it is the number itself.
        below, above = is_below | (~is_above & (z <= 0)), is_above | (~is_below & (z >= 0))
        return (
            -drop - log_mass - scale.log() - math.log(2 * math.pi) / 2,
            log_scaled_mass(alpha, z, from_low) - drop.where(below, 0.0) - log_mass,
            log_scaled_mass(z, beta, to_high) - drop.where(above, 0.0) - log_mass,
        )

    middle = loc.maximum(low + (high - low).clamp(max=1.0) / 2).minimum(high - (high - low).clamp(max=1.0) / 2)
    return _with_support(x, low, high, inside, middle)


def _truncated_points(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    ends = torch.stack(_truncated_corners(loc, scale, low, high))
    return torch.cat([(loc + scale * _at(BELL, loc)).maximum(low).minimum(high), ends])


def _truncated_corners(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
    """Lower and upper bounds; an infinite bound is replaced by the location, as any number will do."""
    return tuple(bound.where(bound.isfinite(), loc.detach()) for bound in (low, high))


@_entries.register(td.HalfNormal)
def _half_normal(base: td.HalfNormal) -> CostEntries:
    return _truncated_normal(TruncatedNormal(torch.zeros_like(base.scale), base.scale, 0.0, torch.inf))


@_entries.register(td.Uniform)
def _uniform(base: td.Uniform) -> CostEntries:
    def log_terms(x: Tensor, low: Tensor, high: Tensor) -> Terms:
        width = (high - low).log()

        def inside(x: Tensor) -> Terms:
            return -width + 0 * x, (x - low).log() - width, (high - x).log() - width

        return _with_support(x, low, high, inside, (low + high) / 2)

    return CostEntries(
        log_terms,
        lambda low, high: torch.stack([low, high]),
        lambda low, high: (low, high),
        (base.low.double(), base.high.double()),
        (0, 1),
        base.low,
    )


@_entries.register(td.Exponential)
def _exponential(base: td.Exponential) -> CostEntries:
    def log_terms(x: Tensor, rate: Tensor) -> Terms:
        def inside(x: Tensor) -> Terms:
            return rate.log() - rate * x, _log1mexp(-rate * x), -rate * x

        return _with_support(x, torch.zeros_like(rate), torch.full_like(rate, torch.inf), inside, 1 / rate)

    return CostEntries(
        log_terms,
        lambda rate: _at((0.0, *TAIL), rate) / rate,
        lambda rate: (torch.zeros_like(rate),),
        (base.rate.double(),),
        (),
        base.rate,
    )


@_entries.register(td.Gumbel)
def _gumbel(base: td.Gumbel) -> CostEntries:
    def log_terms(x: Tensor, loc: Tensor, scale: Tensor) -> Terms:
        z = ((x - loc) / scale).clamp(min=-650.0)  # exp(650) is finite
        below = -(-z).exp()
        # Far out, exp(-z) underflows, and is the probability itself up to its square.
        is_far = z > FAR_TAIL
        above = torch.where(is_far, below / 2 - z, _log1mexp(below.where(~is_far, -1.0)))
        return -z + below - scale.log(), below, above

    return CostEntries(
        log_terms,
        lambda loc, scale: loc + scale * _at(GUMBEL, loc),
        _smooth,
        (base.loc.double(), base.scale.double()),
        (0,),
        base.loc,
    )


@_entries.register(td.Laplace)
def _laplace(base: td.Laplace) -> CostEntries:
    def log_terms(x: Tensor, loc: Tensor, scale: Tensor) -> Terms:
        z = (x - loc) / scale
        near, far = -z.abs() - math.log(2), torch.log1p(-(-z.abs()).exp() / 2)
        return near - scale.log(), torch.where(z < 0, near, far), torch.where(z < 0, far, near)

    return CostEntries(
        log_terms,
        lambda loc, scale: loc + scale * _at(BOTH_TAILS, loc),
        lambda loc, scale: (loc,),
        (base.loc.double(), base.scale.double()),
        (0,),
        base.loc,
    )


@_entries.register(dist.Logistic)
def _logistic(base: Any) -> CostEntries:
    def log_terms(x: Tensor, loc: Tensor, scale: Tensor) -> Terms:
        z = (x - loc) / scale
        below, above = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
        return below + above - scale.log(), below, above

    return CostEntries(
        log_terms,
        lambda loc, scale: loc + scale * _at(BOTH_TAILS, loc),
        _smooth,
        (base.loc.double(), base.scale.double()),
        (0,),
        base.loc,
    )


@_entries.register(td.TransformedDistribution)
def _transformed(base: td.TransformedDistribution) -> CostEntries | None:
    entries: CostEntries | None = _entries(base.base_dist)
    for number, transform in enumerate(base.transforms):
        if isinstance(transform, td.PowerTransform):
            before = td.TransformedDistribution(base.base_dist, base.transforms[:number])
            if any_true(support_bounds(before)[0] < 0):
                return None  # powers of negative numbers are not monotone
        entries = entries and _through(entries, transform)
    return entries


def _through(entries: CostEntries, transform: Any) -> CostEntries | None:
    """Entries after a monotone elementwise transform, whose tensors are further parameters; ``None`` for others."""
    if transform == td.ExpTransform().inv:
        return _logarithm(entries)
    if not isinstance(transform, MONOTONE) or transform.domain.event_dim:
        return None
    tensors = {name: t.double() for name, t in vars(transform).items() if isinstance(t, Tensor)}
    count = len(entries.parameters)

    def renewed(parameters: tuple[Tensor, ...]) -> Any:
        new = copy.copy(transform)
        vars(new).update(zip(tensors, parameters[count:], strict=True), _inv=None)
        return new

    def log_terms(x: Tensor, *parameters: Tensor) -> Terms:
        new = renewed(parameters)
        return _transformed_terms(x, new, lambda before: entries.log_terms(before, *parameters[:count]))

    def points(*parameters: Tensor) -> Tensor:
        before = entries.points(*parameters[:count])
        after: Tensor = renewed(parameters)(_graded(before) if isinstance(transform, td.PowerTransform) else before)
        # Negative powers of zero: behind the last number that is finite, there is hardly anything.
        return after.minimum(after.where(after.isfinite(), -torch.inf).amax(0))

    def corners(*parameters: Tensor) -> tuple[Tensor, ...]:
        new = renewed(parameters)
        return tuple(_image(new, corner) for corner in entries.corners(*parameters[:count]))

    shifts = isinstance(transform, td.AffineTransform) and "loc" in tensors
    locations = (count + list(tensors).index("loc"),) if shifts else ()
    return CostEntries(log_terms, points, corners, (*entries.parameters, *tensors.values()), locations, entries.like)


def _logarithm(entries: CostEntries) -> CostEntries:
    """Entries of the logarithm of positive variables, whose densities may begin at zero, and are finite there."""

    def log_terms(x: Tensor, *parameters: Tensor) -> Terms:
        density, below, above = entries.log_terms(x.clamp(max=LARGEST_LOGARITHM).exp(), *parameters)
        return density + x, below, above

    def points(*parameters: Tensor) -> Tensor:
        before = entries.points(*parameters)
        first = _smallest_positive(before)
        # Below the first of them, the logarithm has the tail of an exponential variable, if there is anything.
        begins = (before <= 0).any(0)
        tail = first.log() - _at(TAIL, first).masked_fill(~begins, 0.0)
        return torch.cat([before.maximum(first).log(), tail])

    def corners(*parameters: Tensor) -> tuple[Tensor, ...]:
        first = _smallest_positive(entries.points(*parameters)).detach()
        finite = (corner for corner in entries.corners(*parameters) if any_true(corner > 0))
        return tuple(corner.where(corner > 0, first).log() for corner in finite)

    return entries._replace(log_terms=log_terms, points=points, corners=corners, locations=())


def _smallest_positive(points: Tensor) -> Tensor:
    """Smallest positive one of breakpoints, shape ``(M,) + batch``; 1 where there is none."""
    smallest = points.where(points > 0, torch.inf).amin(0)
    return smallest.where(smallest.isfinite(), 1.0)


def _transformed_terms(x: Tensor, transform: Any, terms: Callable[[Tensor], Terms]) -> Terms:
    rising = unmoved_tensor(transform.sign) > 0
    outside = ~transform.codomain.check(x)
    inside = x.masked_fill(outside, INTERIOR)
    before = transform.inv(inside)
    density, left, right = terms(before)
    below, above = torch.where(rising, left, right), torch.where(rising, right, left)
    low, high = outside & (x < INTERIOR), outside & (x > INTERIOR)
    return (
        (density - transform.log_abs_det_jacobian(before, inside)).masked_fill(outside, IMPOSSIBLE),
        below.masked_fill(low, IMPOSSIBLE).masked_fill(high, 0.0),
        above.masked_fill(high, IMPOSSIBLE).masked_fill(low, 0.0),
    )


def _graded(points: Tensor) -> Tensor:
    """Breakpoints, with further ones next to the first and to the last."""
    low, high = points.amin(0), points.amax(0)
    shares = _at(GRADED, low)
    second = points.where(points > low, torch.inf).amin(0).minimum(high)
    last_but_one = points.where(points < high, -torch.inf).amax(0).maximum(low)
    return torch.cat([points, low + shares * (second - low), high - shares * (high - last_but_one)])


def _image(transform: Any, corner: Tensor) -> Tensor:
    """Image of a corner under a transform; powers of zero and one, and multiples of zero, have no derivatives."""
    after: Tensor = transform(corner)
    moves = corner.requires_grad | getattr(getattr(transform, "loc", None), "requires_grad", False)
    fixed = (corner == 0) | ((corner == 1) & isinstance(transform, td.PowerTransform))
    return after if moves or any_true(~fixed) else after.detach()


MONOTONE = (td.AffineTransform, td.ExpTransform, td.PowerTransform, td.SigmoidTransform, td.TanhTransform)
