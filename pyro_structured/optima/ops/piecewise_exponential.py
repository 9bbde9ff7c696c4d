"""Draws from densities on the line that are close to log-linear on short intervals."""

__all__ = ["piecewise_exponential"]

from collections.abc import Callable

import torch
from torch import Tensor

# Number of places of the interpolation; difference from the largest log-density below which densities are neglected;
# number of intervals with densities that are not neglected; and largest number of rounds of zooming in.
PLACES, DROP, ENOUGH, ROUNDS = 16, 25.0, 8, 30
# The most by which a logarithm falls in an interval: densities that go to zero there would be missed otherwise.
STEEPEST = 3.0


def piecewise_exponential(log_density: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    r"""Draws numbers from piecewise exponential approximations of unimodal densities between two bounds.

    The logarithm is interpolated between 16 places where the density counts, which are found by zooming in. With
    :math:`f` the density and :math:`q` its approximation, :math:`\mathbb{E}_q[f / q]` is the integral of f, whatever
    the quality of the approximation; the variance of the ratio is small for log-concave densities.

    :param log_density: Logarithms of densities, up to constants, of numbers of shape ``(16, ...)``, each independent of
        all others; finite, or very negative numbers where a density is zero.
    :param Tensor low: Finite lower bounds, shape ``(...)``; the mass below is less than exp(-25) of all.
    :param Tensor high: Finite upper bounds.
    :return: Numbers, and the logarithms of their density, both of shape ``(...)``.

    Example::

        >>> low = torch.full((1000,), -30.0, dtype=torch.double)
        >>> x, log_q = piecewise_exponential(lambda x: -x**2 / 2, low, -low)
        >>> (-x**2 / 2 - log_q).exp().mean()  # of sqrt(2 pi)
        tensor(2.5..., dtype=torch.float64)
    """
    shares = torch.linspace(0, 1, PLACES, dtype=low.dtype, device=low.device).reshape(-1, *(1,) * low.dim())
    for remaining in reversed(range(ROUNDS)):
        places = low + (high - low) * shares
        heights = log_density(places)
        counts = heights > heights.amax(0) - DROP
        first = counts.byte().argmax(0)
        last = PLACES - 1 - counts.byte().flip(0).argmax(0)
        if not remaining or bool((last - first >= ENOUGH).all()):
            break
        low = places.gather(0, (first - 1).clamp(min=0).unsqueeze(0)).squeeze(0)
        high = places.gather(0, (last + 1).clamp(max=PLACES - 1).unsqueeze(0)).squeeze(0)
    return _draw(places, heights)


def _draw(places: Tensor, heights: Tensor) -> tuple[Tensor, Tensor]:
    width = places.diff(dim=0)
    left = torch.maximum(heights[:-1], heights[1:] - STEEPEST)
    rise = torch.maximum(heights[1:], heights[:-1] - STEEPEST) - left
    steep = rise.abs().clamp(min=1e-12)
    log_masses = left + rise.clamp(min=0) + width.log() + (-torch.expm1(-steep) / steep).log()
    log_total = log_masses.logsumexp(0)
    borders = (log_masses - log_total).exp().cumsum(0)
    uniform, within = torch.rand(2, *log_total.shape, dtype=places.dtype, device=places.device)
    piece = (borders < uniform * borders[-1]).sum(0, keepdim=True)
    left, rise, steep, width, start = (
        values.gather(0, piece).squeeze(0) for values in (left, rise, steep, width, places[:-1])
    )
    # As a share of the interval, from its likelier end.
    share = (-torch.log1p(within * torch.expm1(-steep)) / steep).clamp(0, 1)
    share = torch.where(rise > 0, 1 - share, share)
    return start + width * share, left + rise * share - log_total
