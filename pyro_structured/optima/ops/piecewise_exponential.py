"""Densities on the line that are close to log-linear on short intervals."""

__all__ = ["PiecewiseExponential", "piecewise_exponential"]

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_structured.foundation.ops.optional_numba import compiled_function

# Number of places of the interpolation; difference from the largest log-density below which densities are neglected;
# share of the intervals that have densities which are not neglected; and largest number of rounds of zooming in.
PLACES, DROP, ENOUGH, ROUNDS = 16, 25.0, 0.5, 30
# The most by which a logarithm falls in an interval: densities that go to zero there would be missed otherwise.
STEEPEST = 3.0
# Logarithms are at least this, relative to the largest one.
LEAST = -600.0
# Logarithms that rise by less than this rise by this.
FLATTEST = 1e-12


class PiecewiseExponential:
    """Densities whose logarithms are straight between places, zero outside.

    :param Tensor places: Places in increasing order, some of which may coincide, shape ``(..., P)``.
    :param Tensor heights: Logarithms of the densities there, up to constants, shape ``(..., P)``; -inf where they are
        zero.

    Example::

        >>> places = torch.tensor([0.0, 1.0, 3.0])
        >>> density = PiecewiseExponential(places, -places)
        >>> density.log_mass(torch.tensor([0.0]), torch.tensor([2.0])).exp()  # 1 - exp(-2)
        tensor([0.8647])
    """

    def __init__(self, places: Tensor, heights: Tensor) -> None:
        self._top = heights.amax(-1, keepdim=True)
        heights = (heights - self._top).clamp(min=LEAST)
        self._places, self._width = places, places.diff(dim=-1)
        self._left = torch.maximum(heights[..., :-1], heights[..., 1:] - STEEPEST)
        self._rise = torch.maximum(heights[..., 1:], heights[..., :-1] - STEEPEST) - self._left
        masses = _mass(self._width, self._left, self._rise, 0.0, 1.0)
        # Sums from either side: differences of the smaller ones lose no digits.
        self._before = torch.nn.functional.pad(masses.cumsum(-1), (1, 0))
        self._after = torch.nn.functional.pad(masses.flip(-1).cumsum(-1).flip(-1), (0, 1))

    @classmethod
    def of(cls, places: Tensor, heights: Tensor) -> "PiecewiseExponential":
        """The same, in compiled loops where numba is installed, for plain tensors in double precision on the processor,
        of one shape.
        """
        is_plain = all(
            tensor.dtype == torch.double and tensor.device.type == "cpu" and not tensor.requires_grad
            for tensor in (places, heights)
        )
        return _CompiledPieces(places, heights) if is_plain and _compiled("fill_pieces") else cls(places, heights)

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """First and last places, shape ``(...)``."""
        return self._places[..., 0], self._places[..., -1]

    def log_height(self, x: Tensor) -> Tensor:
        """Logarithm of the density, up to the constant of the heights, at numbers of shape ``(..., M)``."""
        piece = self._piece(x)
        share = self._share(x, piece)
        height: Tensor = self._top + self._left.gather(-1, piece) + self._rise.gather(-1, piece) * share
        return height

    def log_mass(self, low: Tensor, high: Tensor) -> Tensor:
        """Logarithm of the integral over intervals, shape ``(..., M)``; -inf where intervals are empty.

        :param Tensor low: Lower ends, -inf included, shape ``(..., M)``.
        :param Tensor high: Upper ends, +inf included, shape ``(..., M)``.
        """
        first, last = self._piece(low), self._piece(high)
        start, stop = self._share(low, first), self._share(high, last)
        same = first == last
        mass = self._part(first, start, torch.where(same, stop, 1.0))
        mass = mass + self._part(last, torch.where(same, stop, 0.0), stop)
        before, after = (
            (sums.gather(-1, last) - sums.gather(-1, first + 1)).abs() for sums in (self._before, self._after)
        )
        is_left = self._before.gather(-1, last) < self._after.gather(-1, first + 1)
        mass = mass + torch.where(is_left, before, after).masked_fill(same, 0.0)
        return mass.log() + self._top

    def draw(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers between two bounds, and the logarithms of their normalised density, both of shape ``(...)``.

        :param Tensor low: Lower bounds, -inf included, shape ``(...)``.
        :param Tensor high: Upper bounds, +inf included, shape ``(...)``.
        """
        start, stop = self._shares(low), self._shares(high)
        masses = _mass(self._width, self._left, self._rise, start, stop)
        borders = masses.cumsum(-1)
        total = borders[..., -1]
        uniform, within = torch.rand(2, *total.shape, dtype=total.dtype, device=total.device)
        piece = (borders < (uniform * total).unsqueeze(-1)).sum(-1, keepdim=True).clamp(max=masses.shape[-1] - 1)
        return self._inside(piece, within, start, stop, total)

    def reflect(self, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers below which there is as much mass as there is above others, and the logarithms of their density, as
        :meth:`draw` gives them: a map that keeps the density, and is its own inverse.

        :param Tensor x: Numbers between the bounds, shape ``(...)``.
        :param Tensor low: As of :meth:`draw`; ``high``, too.
        """
        start, stop, place = self._shares(low), self._shares(high), self._shares(x)
        masses = _mass(self._width, self._left, self._rise, start, stop)
        above = _mass(self._width, self._left, self._rise, place.maximum(start).minimum(stop), stop)
        wanted, borders = above.sum(-1, keepdim=True), masses.cumsum(-1)
        piece = (borders < wanted).sum(-1, keepdim=True).clamp(max=masses.shape[-1] - 1)
        # Pieces next to the bounds may have no mass.
        mass = masses.gather(-1, piece).clamp(min=torch.finfo(masses.dtype).tiny)
        # From the likelier end of the piece.
        past = borders.gather(-1, piece) - wanted
        within = (torch.where(self._rise.gather(-1, piece) > 0, past, mass - past) / mass).clamp(0.0, 1.0)
        there, log_density = self._inside(piece, within.squeeze(-1), start, stop, borders[..., -1])
        return there.maximum(low).minimum(high), log_density

    def _shares(self, x: Tensor) -> Tensor:
        """Shares of all pieces that lie before numbers."""
        width = self._width.clamp(min=torch.finfo(self._width.dtype).tiny)
        return ((x.unsqueeze(-1) - self._places[..., :-1]) / width).clamp(0.0, 1.0)

    def _inside(
        self, piece: Tensor, within: Tensor, start: Tensor, stop: Tensor, total: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Numbers between which and the likelier end of a piece there is a share of its mass, and the logarithms of
        their density.
        """
        first, width, left, rise, start, stop = (
            values.gather(-1, piece).squeeze(-1)
            for values in (self._places, self._width, self._left, self._rise, start, stop)
        )
        # From the likelier end of the piece, nothing overflows.
        steep = _off_zero(rise.abs() * (stop - start))
        share = (-torch.log1p(within * torch.expm1(-steep)) / steep).clamp(0.0, 1.0)
        share = start + (stop - start) * torch.where(rise > 0, 1 - share, share)
        return first + width * share, left + rise * share - total.log()

    def log_density(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Logarithm of the normalised density of numbers between two bounds, with which :meth:`draw` gives them, all of
        shape ``(...)``.
        """
        x, low, high = (numbers.unsqueeze(-1) for numbers in (x, low, high))
        return (self.log_height(x) - self.log_mass(low, high)).squeeze(-1)

    def _piece(self, x: Tensor) -> Tensor:
        inner = self._places[..., 1:-1].contiguous()
        return torch.searchsorted(inner, x.expand(inner.shape[:-1] + x.shape[-1:]).contiguous(), right=True)

    def _share(self, x: Tensor, piece: Tensor) -> Tensor:
        width = self._width.gather(-1, piece).clamp(min=torch.finfo(self._width.dtype).tiny)
        return ((x - self._places.gather(-1, piece)) / width).clamp(0.0, 1.0)

    def _part(self, piece: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        width, left, rise = (values.gather(-1, piece) for values in (self._width, self._left, self._rise))
        return _mass(width, left, rise, start, stop)


class _CompiledPieces(PiecewiseExponential):
    """Densities in compiled loops."""

    def __init__(self, places: Tensor, heights: Tensor) -> None:
        self._places, count = places.contiguous(), places.shape[-1]
        rows = self._places.view(-1, count).numpy()
        self._pieces = rows, np.empty((len(rows), 4, count))
        self._run("fill_pieces", heights.reshape(-1, count))

    def log_height(self, x: Tensor) -> Tensor:
        """In compiled loops."""
        heights = torch.empty_like(x, memory_format=torch.contiguous_format)
        self._run("log_heights", *_rows(x, heights))
        return heights

    def log_mass(self, low: Tensor, high: Tensor) -> Tensor:
        """In compiled loops."""
        masses = torch.empty_like(low, memory_format=torch.contiguous_format)
        self._run("log_masses", *_rows(low, high, masses))
        return masses

    def draw(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """In compiled loops."""
        uniform, drawn = torch.rand(2, *low.shape, dtype=low.dtype, device=low.device), low.new_empty(2, *low.shape)
        self._run("draw_pieces", *(ends.reshape(-1) for ends in (low, high)), uniform.view(2, -1), drawn.view(2, -1))
        return drawn[0], drawn[1]

    def reflect(self, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """In compiled loops."""
        found = low.new_empty(2, *low.shape)
        self._run("reflect_pieces", *(numbers.reshape(-1) for numbers in (x, low, high)), found.view(2, -1))
        return found[0], found[1]

    def _run(self, name: str, *tensors: Tensor) -> None:
        run = _compiled(name)
        assert run is not None
        run(*self._pieces, *(tensor.numpy() for tensor in tensors))


def _rows(*tensors: Tensor) -> Iterator[Tensor]:
    """Tensors with one axis of rows, which are views where they are contiguous."""
    return (tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors)


def _compiled(name: str) -> Callable[..., Any] | None:
    return compiled_function("optima.ops.compiled_pieces", name)


def _mass(width: Tensor, left: Tensor, rise: Tensor, start: Tensor | float, stop: Tensor | float) -> Tensor:
    """Integrals over parts of pieces, from one share of their width to another."""
    steep = _off_zero(rise * (stop - start))
    return width * (stop - start) * torch.exp(left + rise * start) * (torch.expm1(steep) / steep)


def _off_zero(numbers: Tensor) -> Tensor:
    return torch.where(numbers.abs() < FLATTEST, FLATTEST, numbers)


def piecewise_exponential(
    log_density: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, num_places: int = PLACES
) -> PiecewiseExponential:
    r"""Piecewise exponential approximations of unimodal densities between two bounds.

    The logarithm is interpolated between places where the density counts, which are found by zooming in. With :math:`f`
    the density and :math:`q` its approximation, :math:`\mathbb{E}_q[f / q]` is the integral of f, whatever the quality
    of the approximation; the variance of the ratio is small for log-concave densities.

    :param log_density: Logarithms of densities, up to constants, of numbers of shape ``(num_places, ...)``, each
        independent of all others; finite, or very negative numbers where a density is zero.
    :param Tensor low: Finite lower bounds, shape ``(...)``; the mass below is less than exp(-25) of all.
    :param Tensor high: Finite upper bounds.
    :param int num_places: Number of places.

    Example::

        >>> low = torch.full((1000,), -30.0, dtype=torch.double)
        >>> density = piecewise_exponential(lambda x: -x**2 / 2, low, -low)
        >>> x, log_q = density.draw(*density.ends)
        >>> (-x**2 / 2 - log_q).exp().mean()  # of sqrt(2 pi)
        tensor(2.5..., dtype=torch.float64)
    """
    shares = torch.linspace(0, 1, num_places, dtype=low.dtype, device=low.device).reshape(-1, *(1,) * low.dim())
    for remaining in reversed(range(ROUNDS)):
        places = low + (high - low) * shares
        heights = log_density(places)
        counts = heights > heights.amax(0) - DROP
        first = counts.byte().argmax(0)
        last = num_places - 1 - counts.byte().flip(0).argmax(0)
        if not remaining or bool((last - first >= ENOUGH * num_places).all()):
            break
        low = places.gather(0, (first - 1).clamp(min=0).unsqueeze(0)).squeeze(0)
        high = places.gather(0, (last + 1).clamp(max=num_places - 1).unsqueeze(0)).squeeze(0)
    return PiecewiseExponential.of(places.movedim(0, -1), heights.movedim(0, -1))
