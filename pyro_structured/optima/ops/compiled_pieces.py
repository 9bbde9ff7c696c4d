"""Densities with straight logarithms between places: masses of intervals and draws, compiled."""

__all__ = ["draw_pieces", "fill_pieces", "log_heights", "log_masses", "reflect_pieces"]

import math
import sys

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.piecewise_exponential import FLATTEST, LEAST, STEEPEST

# Widths of pieces whose ends coincide count as this.
TINY = sys.float_info.min


@compiled
def fill_pieces(places: np.ndarray, pieces: np.ndarray, heights: np.ndarray) -> None:
    """Fills in what other functions of this file ask for.

    :param np.ndarray places: Places in increasing order, float64, shape ``(N, P)``.
    :param np.ndarray pieces: Shape ``(N, 4, P)``: logarithms of the densities at the left end of each piece, less the
        largest one, which stands last; by how much they rise; and masses before and after each place.
    :param np.ndarray heights: Logarithms of the densities at the places, shape ``(N, P)``.

    O(N · P), as are draws.
    """
    for n in range(len(places)):
        left, rise, before, after = pieces[n]
        last = places.shape[1] - 1
        top = heights[n].max()
        left[last], before[0], after[last] = top, 0.0, 0.0
        for piece in range(last):
            first = max(heights[n, piece] - top, LEAST)
            second = max(heights[n, piece + 1] - top, LEAST)
            left[piece] = max(first, second - STEEPEST)
            rise[piece] = max(second, first - STEEPEST) - left[piece]
            mass = _mass(places[n, piece + 1] - places[n, piece], left[piece], rise[piece], 0.0, 1.0)
            before[piece + 1], after[piece] = before[piece] + mass, mass
        for piece in range(last - 1, -1, -1):
            after[piece] += after[piece + 1]


@compiled
def log_heights(places: np.ndarray, pieces: np.ndarray, x: np.ndarray, heights: np.ndarray) -> None:
    """Fills in logarithms of densities, shape ``(N, M)``, at numbers of this shape."""
    for n in range(len(places)):
        left, rise = pieces[n, 0], pieces[n, 1]
        for m in range(x.shape[1]):
            piece = _piece(places[n], x[n, m])
            heights[n, m] = left[-1] + left[piece] + rise[piece] * _share(places[n], piece, x[n, m])


@compiled
def log_masses(places: np.ndarray, pieces: np.ndarray, low: np.ndarray, high: np.ndarray, masses: np.ndarray) -> None:
    """Fills in logarithms of the integrals over intervals, shape ``(N, M)``, from their ends, of the same shape.

    O(N · M log P).
    """
    for n in range(len(places)):
        left, rise, before, after = pieces[n]
        for m in range(low.shape[1]):
            first, last = _piece(places[n], low[n, m]), _piece(places[n], high[n, m])
            start, stop = _share(places[n], first, low[n, m]), _share(places[n], last, high[n, m])
            width = places[n, first + 1] - places[n, first]
            if first == last:
                mass = _mass(width, left[first], rise[first], start, stop)
            else:
                mass = _mass(width, left[first], rise[first], start, 1.0)
                mass += _mass(places[n, last + 1] - places[n, last], left[last], rise[last], 0.0, stop)
                # Differences of the smaller sums lose no digits.
                sums = before if before[last] < after[first + 1] else after
                mass += abs(sums[last] - sums[first + 1])
            masses[n, m] = math.log(mass) + left[-1]


@compiled
def draw_pieces(
    places: np.ndarray,
    pieces: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    uniform: np.ndarray,
    drawn: np.ndarray,
) -> None:
    """Fills in numbers between bounds of shape ``(N,)``, and logarithms of their densities, shape ``(2, N)``, by
    inversion of uniform variables, shape ``(2, N)``.
    """
    borders = np.empty(places.shape[1] - 1)
    for n in range(len(places)):
        total = _fill_borders(places[n], pieces[n], low[n], high[n], borders)
        piece = _first_reaching(borders, uniform[0, n] * total)
        share = _share_inside(places[n], pieces[n], piece, uniform[1, n], low[n], high[n])
        drawn[0, n] = places[n, piece] + (places[n, piece + 1] - places[n, piece]) * share
        drawn[1, n] = pieces[n, 0, piece] + pieces[n, 1, piece] * share - math.log(total)


@compiled
def reflect_pieces(
    places: np.ndarray, pieces: np.ndarray, x: np.ndarray, low: np.ndarray, high: np.ndarray, found: np.ndarray
) -> None:
    """Fills in numbers below which there is as much mass as there is above numbers x, both between bounds of shape
    ``(N,)``, and logarithms of their densities, shape ``(2, N)``.
    """
    borders = np.empty(places.shape[1] - 1)
    for n in range(len(places)):
        above = _fill_borders(places[n], pieces[n], x[n], high[n], borders)
        total = _fill_borders(places[n], pieces[n], low[n], high[n], borders)
        piece = _first_reaching(borders, above)
        # Pieces next to the bounds may have no mass.
        mass = max(borders[piece] - (borders[piece - 1] if piece else 0.0), TINY)
        past = borders[piece] - above
        within = min(max((past if pieces[n, 1, piece] > 0 else mass - past) / mass, 0.0), 1.0)
        share = _share_inside(places[n], pieces[n], piece, within, low[n], high[n])
        there = places[n, piece] + (places[n, piece + 1] - places[n, piece]) * share
        found[0, n] = min(max(there, low[n]), high[n])
        found[1, n] = pieces[n, 0, piece] + pieces[n, 1, piece] * share - math.log(total)


@compiled
def _fill_borders(places: np.ndarray, pieces: np.ndarray, low: float, high: float, borders: np.ndarray) -> float:
    """Masses between two bounds up to the end of each piece, and in all."""
    total = 0.0
    for piece in range(len(borders)):
        start, stop = _share(places, piece, low), _share(places, piece, high)
        width = places[piece + 1] - places[piece]
        total += _mass(width, pieces[0, piece], pieces[1, piece], start, stop)
        borders[piece] = total
    return total


@compiled
def _first_reaching(borders: np.ndarray, mass: float) -> int:
    piece = 0
    while piece < len(borders) - 1 and borders[piece] < mass:
        piece += 1
    return piece


@compiled
def _share_inside(places: np.ndarray, pieces: np.ndarray, piece: int, within: float, low: float, high: float) -> float:
    """Share of a piece at which there is a share of its mass between two bounds, from its likelier end on."""
    rise = pieces[1, piece]
    start, stop = _share(places, piece, low), _share(places, piece, high)
    # From there, nothing overflows.
    steep = max(abs(rise) * (stop - start), FLATTEST)
    share = min(max(-math.log1p(within * math.expm1(-steep)) / steep, 0.0), 1.0)
    return float(start + (stop - start) * (1 - share if rise > 0 else share))


@compiled
def _piece(places: np.ndarray, x: float) -> int:
    """The piece with a number, the first or last one for numbers outside."""
    return int(np.searchsorted(places[1:-1], x, side="right"))


@compiled
def _share(places: np.ndarray, piece: int, x: float) -> float:
    """Share of a piece that lies before a number."""
    share = (x - places[piece]) / max(places[piece + 1] - places[piece], TINY)
    return float(min(max(share, 0.0), 1.0))


@compiled
def _mass(width: float, left: float, rise: float, start: float, stop: float) -> float:
    """Integral over a part of a piece, from one share of its width to another."""
    steep = rise * (stop - start)
    if abs(steep) < FLATTEST:
        steep = FLATTEST
    return float(width * (stop - start) * math.exp(left + rise * start) * (math.expm1(steep) / steep))
