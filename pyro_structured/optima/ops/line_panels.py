"""Where functions on the real line need panels of quadrature, and how many."""

__all__ = ["LineRows", "divided", "first_panels", "narrowed", "with_corners"]

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Where an integrand is smaller than exp(-42) of what matters, it does not count.
DROP = 42.0
# Panels of the range of every bound, if nothing else is known.
EVEN = 8
# How often the range is narrowed before anything is integrated.
NARROWINGS = 5

# Numbers of shape (Q, rows), and rows of parameters; returns logarithms of bounds, shape (Q, rows, bounds).
LogBounds = Callable[[Tensor], Tensor]


class LineRows(NamedTuple):
    """What is known about the integrands of some rows: shapes are ``(rows, ...)``.

    ``points`` tell the scales of n functions, ``(rows, n, M)``, sorted; ``corners``, ``(rows, C)``, are where they are
    not smooth; ``places`` are candidates for ends of the range, and ``low`` and ``high`` the range of every bound.
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
    """Sorted edges, and so many points that no panel is long at the scale of any function.

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
    found = points.gather(2, index.expand(-1, points.shape[1], -1)).gather(1, item)
    return found.where(most > 0, torch.inf).squeeze(1)


def with_corners(edges: Tensor, corners: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Edges with the derivatives of corners, and whether several corners of a row coincide, of which one has any.

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
