"""Integrals over the real line of functions that are known by their logarithms."""

__all__ = ["IMPOSSIBLE", "Panels", "integrate_line", "log_add", "log_of"]

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.ops.anywhere import anywhere

# Stands for the logarithm of zero: sums stay finite, and derivatives are zero and not NaN.
IMPOSSIBLE = -1e300
NODES = 16
# Where an integrand is smaller than exp(-42) of what matters, it does not count.
DROP = 42.0
# Panels beside those between the given points, and into how many parts all are divided, until it suffices.
EVEN, PARTS = 8, tuple(2**power for power in range(10))
TOLERANCE = 1e-10
# How often the range is narrowed before anything is integrated.
NARROWINGS = 5


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
        nodes, weights, _ = (torch.from_numpy(part).to(edges) for part in _legendre())
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


@cache
def _legendre() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1], and what integrates an interpolated polynomial from every node to 1."""
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
    """As ``torch.logaddexp``, with second derivatives that are finite for terms that are far apart, too."""
    return torch.logsumexp(torch.stack([first, second]), 0)


def _log_after(terms: Tensor) -> Tensor:
    """Logarithms of the sums of all later terms along the first axis, in log2(size) steps without cancellation."""
    nothing = torch.full_like(terms[:1], IMPOSSIBLE)
    total, step = torch.cat([terms[1:], nothing]), 1
    while step < len(terms):
        total = log_add(total, torch.cat([total[step:], nothing.expand(step, *terms.shape[1:])]))
        step *= 2
    return total


def integrate_line(
    log_bound: Callable[[Tensor], Tensor], log_integral: Callable[[Panels], Tensor], points: Tensor
) -> Tensor:
    r"""Logarithm of an integral, with as many panels as it takes.

    Each pass integrates where the bound is within :math:`e^{-42}` of what the pass before found, with all panels
    halved; two passes that agree end it. Derivatives are those of the last rule.

    :param log_bound: Takes numbers of shape ``(Q,) + rows``; returns logarithms of one or several upper bounds of the
        integrand, or of all integrands of a nested integral, shape ``(Q,) + rows + (bounds,)``.
    :param log_integral: Takes panels; returns the logarithm of the integral, shape ``rows``.
    :param Tensor points: Edges that panels get, in any order, shape ``(M,) + rows``: where the integrand is not smooth,
        with derivatives, and points that tell its scales, without. What is farther away from them than they are from
        each other does not count.
    :return: Relative error of the integral about 1e-10; -inf where it is zero.
    :raises RuntimeError: if the largest number of panels is not enough.
    """
    with torch.no_grad():
        fixed = points.detach()
        first = candidates = _subdivided(_extended(fixed.sort(0).values))
        most = torch.full_like(log_bound(first[:1])[0, ..., 0], torch.inf)
        for _ in range(NARROWINGS):
            candidates = torch.cat([first, _even(*_ranges(log_bound, candidates, most))]).sort(0).values
        estimate = torch.full_like(most, torch.nan)
        for parts in PARTS:
            low, high = _ranges(log_bound, candidates, most)
            edges = _edges(fixed, low, high, parts)
            before, estimate = estimate, log_integral(Panels.between(edges))
            if not anywhere(~_agree(before, estimate)):
                break
            most = estimate - log_of((high - low).amax(-1))
            candidates = torch.cat([first, _even(low, high)]).sort(0).values
        else:
            raise RuntimeError(
                f"log_prob: the quadrature did not converge to a relative error of {TOLERANCE} when panels were "
                f"divided into {parts}; the densities of the costs are too rough, or their scales too different"
            )
    total = estimate
    if log_bound(points[:1]).requires_grad:
        total = log_integral(Panels.between(_edges(points, low, high, parts)))
    return total.masked_fill(total < IMPOSSIBLE / 2, -torch.inf)


def _agree(before: Tensor, now: Tensor) -> Tensor:
    rounding = 64 * torch.finfo(now.dtype).eps * now.abs()
    return (now - before).abs() <= TOLERANCE + rounding


def _extended(points: Tensor) -> Tensor:
    """Sorted points, and one as far away on either side: improbable values may lie behind the others' usual ones."""
    width = points[-1:] - points[:1]
    return torch.cat([points[:1] - width, points, points[-1:] + width])


def _subdivided(points: Tensor) -> Tensor:
    """Sorted points and, between neighbours, three others."""
    inner = [points[:-1] + share * (points[1:] - points[:-1]) for share in (0.25, 0.5, 0.75)]
    return torch.cat([points, *inner]).sort(0).values


def _edges(points: Tensor, low: Tensor, high: Tensor, parts: int) -> Tensor:
    even = _even(low, high)
    points = points.expand(-1, *low.shape[:-1]).clamp(even.amin(0), even.amax(0))
    coarse = torch.cat([points, even]).sort(0).values
    inner = coarse[:-1] + _shares(parts, coarse[0])[:-1].unsqueeze(1) * (coarse[1:] - coarse[:-1])
    return torch.cat([inner.transpose(0, 1).flatten(0, 1), coarse[-1:]])


def _even(low: Tensor, high: Tensor) -> Tensor:
    """Equally spaced edges in intervals, shape ``(M,) + rows``."""
    # Of two equal edges one would hide the derivatives of the other; these numbers make that improbable.
    width = high - low
    low, high = low - 1.37e-9 * width, high + 1.91e-9 * width
    return (low + _shares(EVEN, low) * (high - low)).movedim(-1, 1).flatten(0, 1)


def _shares(number: int, like: Tensor) -> Tensor:
    """From 0 to 1 along a new first axis."""
    share = torch.linspace(0, 1, number + 1, dtype=like.dtype, device=like.device)
    return share.reshape((-1,) + (1,) * like.dim())


def _ranges(log_bound: Callable[[Tensor], Tensor], candidates: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Intervals outside of which the bounds do not count, shape ``rows + (bounds,)``; they end at candidates."""
    bounds = log_bound(candidates)
    # The integral is no larger than any of the bounds' integrals, whatever a coarse rule says.
    threshold = bounds.amax(0).amin(-1).minimum(most) - DROP
    counts = (bounds >= threshold.unsqueeze(-1)).to(torch.uint8)
    places = candidates.expand(-1, *most.shape).unsqueeze(-1).expand_as(bounds)
    return _before_first(places, counts), _before_first(places.flip(0), counts.flip(0))


def _before_first(places: Tensor, counts: Tensor) -> Tensor:
    index = (counts.argmax(0, keepdim=True) - 1).clamp(min=0)
    return places.gather(0, index).squeeze(0)
