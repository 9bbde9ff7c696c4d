"""Integrals over the real line of functions that are known by their logarithms."""

__all__ = [
    "IMPOSSIBLE",
    "NODES",
    "LineRows",
    "Panels",
    "divided",
    "first_panels",
    "log_add",
    "log_of",
    "narrowed",
    "with_corners",
]

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Stands for the logarithm of zero: sums stay finite, and derivatives are zero and not NaN.
IMPOSSIBLE = -1e300
NODES = 16


class Panels(NamedTuple):
    """Gauss-Legendre rules between neighbouring edges.

    ``x`` has shape ``(panels * 16,) + rows``, ``log_weight`` ``(panels, 16) + rows``, ``log_width``
    ``(panels, 1) + rows``.
    """

    x: Tensor
    log_weight: Tensor
    log_width: Tensor

    @staticmethod
    def between(edges: Tensor) -> "Panels":
        """Panels between sorted edges, shape ``(panels + 1,) + rows``; some may be empty."""
        width = (edges[1:] - edges[:-1]).unsqueeze(1)
        shape = (NODES,) + (1,) * (edges.dim() - 1)
        nodes, weights, _ = (torch.from_numpy(array).to(edges) for array in _legendre())
        x = edges[:-1].unsqueeze(1) + width * nodes.reshape(shape)
        log_width = log_of(width)
        return Panels(x.flatten(0, 1), log_width + weights.log().reshape(shape), log_width)

    def log_total(self, log_values: Tensor) -> Tensor:
        """Logarithm of the integral, from that of the integrand at ``x``."""
        return torch.logsumexp(log_values + self.log_weight.flatten(0, 1), 0)

    def log_above(self, log_values: Tensor) -> Tensor:
        """Logarithm of the integral of everything above each node; the function is a polynomial in every panel."""
        terms = log_values.reshape(self.log_weight.shape)
        peak = terms.detach().amax(1, keepdim=True)
        matrix = torch.from_numpy(_legendre()[2]).to(log_values)
        inside = torch.einsum("qk,pk...->pq...", matrix, (terms - peak).exp())
        own = log_of(inside) + peak + self.log_width
        panels = torch.logsumexp(terms + self.log_weight, 1)
        return log_add(own, _log_after(panels).unsqueeze(1).expand_as(own)).flatten(0, 1)

    def mirrored(self) -> "Panels":
        """Panels in reverse order, for integrals of everything below each node."""
        return Panels(self.x.flip(0), self.log_weight.flip(0, 1), self.log_width.flip(0))


@cache
def _legendre() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1], and the matrix that integrates an interpolated polynomial from every node to 1."""
    s, weights = np.polynomial.legendre.leggauss(NODES)
    values = np.polynomial.legendre.legvander(s, NODES)
    degrees = np.arange(1, NODES)
    rest = np.empty((NODES, NODES))
    rest[:, 0] = 1 - s
    rest[:, 1:] = (values[:, :-2] - values[:, 2:]) / (2 * degrees + 1)
    coefficients = values[:, :-1] * weights[:, None] * (np.arange(NODES) + 0.5)
    return (s + 1) / 2, weights / 2, rest @ coefficients.T / 2


def log_of(numbers: Tensor) -> Tensor:
    """Logarithms, ``IMPOSSIBLE`` with zero derivatives for numbers that are not positive."""
    positive = numbers > 0
    return numbers.where(positive, 1.0).log().masked_fill(~positive, IMPOSSIBLE)


def log_add(first: Tensor, second: Tensor) -> Tensor:
    """``torch.logaddexp`` with second derivatives that are finite for terms that are far apart, too."""
    return torch.logsumexp(torch.stack([first, second]), 0)


def _log_after(terms: Tensor) -> Tensor:
    """Logarithms of the sums of all later terms along the first axis, in log2(size) steps without cancellation."""
    nothing = torch.full_like(terms[:1], IMPOSSIBLE)
    total, step = torch.cat([terms[1:], nothing]), 1
    while step < len(terms):
        total = log_add(total, torch.cat([total[step:], nothing.expand(step, *terms.shape[1:])]))
        step *= 2
    return total


# Integrands smaller than exp(-42) times their maximum are neglected.
DROP = 42.0
# Number of equal panels of the range of every bound.
EVEN = 8
# Number of times that the range is narrowed before anything is integrated.
NARROWINGS = 5

# Numbers of shape (Q, rows), and rows of parameters; returns logarithms of bounds, shape (Q, rows, bounds).
LogBounds = Callable[[Tensor], Tensor]


class LineRows(NamedTuple):
    """Breakpoints and ranges of the integrands of some rows.

    ``points``, ``(rows, n, M)``, sorted, tell the scales of n functions; at ``corners``, ``(rows, C)``, the functions
    are not smooth; ``places``, ``(rows, places)``, are candidates for ends of the range; and ``low`` and ``high``,
    ``(rows, bounds)``, are the range of every bound.
    """

    points: Tensor
    corners: Tensor
    places: Tensor
    low: Tensor
    high: Tensor


def first_panels(log_bounds: LogBounds, points: Tensor, corners: Tensor) -> LineRows:
    """Ranges before anything is integrated; shapes as in :class:`LineRows`."""
    points = points.sort(-1).values
    low, high = points.amin((1, 2)).unsqueeze(-1), points.amax((1, 2)).unsqueeze(-1)
    # Improbable values may lie behind the others' usual ones.
    low, high = low - (high - low), high + (high - low)
    places = _meshed(torch.cat([low, corners.sort(-1).values, high], -1), points)
    inner = [places[:, :-1] + share * (places[:, 1:] - places[:, :-1]) for share in (0.25, 0.5, 0.75)]
    rows = LineRows(points, corners, torch.cat([places, *inner], -1).sort(-1).values, low, high)
    for _ in range(NARROWINGS):
        rows = narrowed(log_bounds, rows, rows.places, torch.full_like(low[:, 0], torch.inf))
    return rows


def narrowed(log_bounds: LogBounds, rows: LineRows, places: Tensor, most: Tensor) -> LineRows:
    """Ranges outside of which bounds do not count, if the integrand is at most ``exp(most)`` somewhere; they end at
    places, shape ``(rows, places)``, and at others between the old ends.
    """
    places = torch.cat([places, _even(rows).flatten(1)], -1).sort(-1).values
    bounds = log_bounds(places.T)
    # The integral is no larger than any of the bounds' integrals, whatever a coarse rule says.
    threshold = bounds.amax(0).amin(-1).minimum(most) - DROP
    counts = (bounds >= threshold.unsqueeze(-1)).to(torch.uint8)
    last = places.shape[1] - 1
    low = places.gather(1, (counts.argmax(0) - 1).clamp(min=0))
    high = places.gather(1, (last + 1 - counts.flip(0).argmax(0)).clamp(max=last))
    return rows._replace(low=low, high=high)


def divided(rows: LineRows, parts: int) -> Tensor:
    """Edges of panels that all functions need, each in equal parts, shape ``(panels + 1, rows)``."""
    low, high = rows.low.amin(-1, keepdim=True), rows.high.amax(-1, keepdim=True)
    even, points = _even(rows), rows.points
    width = max(points.shape[-1], even.shape[-1])
    points = torch.cat([_padded(points, width), _padded(even, width)], 1)
    corners = rows.corners.maximum(low).minimum(high).sort(-1).values
    coarse = _meshed(torch.cat([low, corners, high], -1), points)
    share = torch.arange(parts, dtype=coarse.dtype, device=coarse.device) / parts
    inner = coarse[:, :-1, None] + share * (coarse[:, 1:] - coarse[:, :-1]).unsqueeze(-1)
    return torch.cat([inner.flatten(1), coarse[:, -1:]], -1).T


def _even(rows: LineRows) -> Tensor:
    """Equally spaced numbers in every range, shape ``(rows, bounds, 9)``."""
    share = torch.linspace(0, 1, EVEN + 1, dtype=rows.low.dtype, device=rows.low.device)
    return rows.low.unsqueeze(-1) + share * (rows.high - rows.low).unsqueeze(-1)


def _padded(points: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(points, (0, width - points.shape[-1]), value=torch.inf)


def _meshed(edges: Tensor, points: Tensor) -> Tensor:
    """Sorted edges, completed by points until no panel is long at the scale of any function.

    Between neighbouring points of a function it is nearly a polynomial: a panel may reach over one of them, if it is
    no longer than two of the distances there.
    """
    padded = torch.nn.functional.pad(points, (1, 1), value=torch.inf)
    padded[..., 0] = -torch.inf
    while True:
        split = _splits(edges, padded)
        number = int(split.isfinite().sum(-1).max())
        if number == 0:
            return edges
        extra = split.sort(-1).values[:, :number]
        edges = torch.cat([edges, extra.where(extra.isfinite(), edges[:, -1:])], -1).sort(-1).values


def _splits(edges: Tensor, points: Tensor) -> Tensor:
    """A point inside of each panel that is too long, or inf."""
    many = edges.unsqueeze(1).expand(-1, points.shape[1], -1).contiguous()
    start = torch.searchsorted(points, many[..., :-1].contiguous(), right=True)
    inside = torch.searchsorted(points, many[..., 1:].contiguous()) - start
    before, own, after = (points.gather(-1, (start + shift).clamp(max=points.shape[-1] - 1)) for shift in (-1, 0, 1))
    long = (edges[:, 1:] - edges[:, :-1]).unsqueeze(1) > 2 * torch.minimum(own - before, after - own)
    score = inside.where((inside > 1) | ((inside == 1) & long), 0)
    most, item = score.max(1, keepdim=True)
    index = (start + score // 2).clamp(max=points.shape[-1] - 1).gather(1, item)
    inner = points.gather(2, index.expand(-1, points.shape[1], -1)).gather(1, item)
    return inner.where(most > 0, torch.inf).squeeze(1)


def with_corners(edges: Tensor, corners: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Edges with the derivatives of corners, and whether corners of a row coincide of which one has derivatives.

    Equal edges get the same derivatives: a panel that is empty stays empty.

    :param Tensor edges: Sorted numbers, shape ``(edges, rows)``.
    :param corners: Each of shape ``(rows, n)``; those that are not among the edges do not matter.
    """
    group = torch.nn.functional.pad((edges[1:] > edges[:-1]).long().cumsum(0), (0, 0, 1, 0))
    change, number, moving = (torch.zeros_like(edges) for _ in range(3))
    for corner in corners:
        place = torch.searchsorted(edges.T.contiguous(), corner.detach().contiguous()).clamp(max=len(edges) - 1).T
        hit, index = edges.gather(0, place) == corner.T, group.gather(0, place)
        number = number.scatter_add(0, index, hit.to(edges))
        if corner.requires_grad:
            moving = moving.scatter_add(0, index, hit.to(edges))
            change = change.scatter_add(0, index, (corner - corner.detach()).T.where(hit, 0.0))
    return edges + change.gather(0, group), ((number > 1) & (moving > 0)).any(0)
