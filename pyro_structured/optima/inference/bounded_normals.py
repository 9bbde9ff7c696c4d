"""Independent normal or uniform variables between bounds."""

__all__ = ["BoundedNormals"]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.truncated_normal import log_interval_mass, truncated_quantile

# In units of the scale; what is farther away does not count.
REACH = 9.0


class BoundedNormals(NamedTuple):
    """Truncated normal variables, or uniform ones, whose scale is infinite; in double precision.

    :ivar Tensor loc: Locations.
    :ivar Tensor scale: Scales.
    :ivar Tensor low: Lower bounds, or -inf.
    :ivar Tensor high: Upper bounds, or +inf.
    :ivar Tensor log_mass: Logarithms of what is between the bounds: of a probability, or of a length.
    """

    loc: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    log_mass: Tensor

    @classmethod
    def between(cls, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> "BoundedNormals":
        """Variables with bounds."""
        return cls(loc, scale, low, high, _log_mass(loc, scale, low, high))

    def at(self, *index: Any) -> "BoundedNormals":
        """Some of the variables."""
        return BoundedNormals(*(parameter[index] for parameter in self))

    def expanded(self, shape: torch.Size) -> "BoundedNormals":
        """The same for every element of another shape."""
        return BoundedNormals(*(parameter.expand(shape) for parameter in self))

    def negated(self) -> "BoundedNormals":
        """The same with the other sign."""
        return BoundedNormals(-self.loc, self.scale, -self.high, -self.low, self.log_mass)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        """Bounds outside of which a variable hardly ever is."""
        nearest = self.loc.maximum(self.low).minimum(self.high)
        distance = ((nearest - self.loc).square() + (REACH * self.scale).square()).sqrt()
        return (self.loc - distance).maximum(self.low), (self.loc + distance).minimum(self.high)

    def log_density(self, x: Tensor) -> Tensor:
        """Logarithms of densities; a very negative number outside of the bounds."""
        flat = self.scale.isinf()
        scale = self.scale.masked_fill(flat, 1.0)
        height = -scale.log() - math.log(2 * math.pi) / 2
        found = (height - ((x - self.loc) / scale).square() / 2).masked_fill(flat, 0.0) - self.log_mass
        return found.masked_fill((x < self.low) | (x > self.high), IMPOSSIBLE)

    def log_above(self, bound: Tensor) -> Tensor:
        """Logarithms of the probabilities of more than a bound; a very negative number for that of 0."""
        if self._is_unbounded:
            found: Tensor = torch.special.log_ndtr((self.loc - bound) / self.scale)
            return found
        mass = _log_mass(self.loc, self.scale, bound.maximum(self.low).minimum(self.high), self.high)
        return (mass - self.log_mass).clamp(min=IMPOSSIBLE)

    def draw(self) -> Tensor:
        """Draws of the shape of the parameters."""
        if self._is_unbounded:
            return self.loc + self.scale * torch.randn_like(self.loc)
        return self.draw_above(self.low)

    def draw_above(self, bound: Tensor) -> Tensor:
        """Draws given that they are more than a bound."""
        flat, start = self.scale.isinf(), bound.maximum(self.low).minimum(self.high)
        loc, scale = self.loc.masked_fill(flat, 0.0), self.scale.masked_fill(flat, 1.0)
        share = torch.rand_like(start)
        normal = loc + scale * truncated_quantile(share, (start - loc) / scale, (self.high - loc) / scale)
        return torch.where(flat, start + (self.high - start) * share, normal).maximum(start).minimum(self.high)

    @property
    def _is_unbounded(self) -> bool:
        return bool((self.low == -torch.inf).all() & (self.high == torch.inf).all())


def _log_mass(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    flat = scale.isinf()
    loc, scale = loc.masked_fill(flat, 0.0), scale.masked_fill(flat, 1.0)
    return torch.where(flat, (high - low).log(), log_interval_mass((low - loc) / scale, (high - loc) / scale))
