"""Independent normal or uniform variables between bounds."""

__all__ = ["BoundedNormals"]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.ops.truncated_normal import log_interval_mass, truncated_quantile

# In units of the scale; what is farther away does not count.
REACH = 9.0


class BoundedNormals(NamedTuple):
    """Truncated normal variables, or uniform ones, whose scale is infinite; in double precision.

    :ivar Tensor loc: Locations.
    :ivar Tensor scale: Scales.
    :ivar Tensor low: Lower bounds, or -inf.
    :ivar Tensor high: Upper bounds, or +inf.
    """

    loc: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def at(self, *index: Any) -> "BoundedNormals":
        """Some of the variables."""
        return BoundedNormals(*(parameter[index] for parameter in self))

    def negated(self) -> "BoundedNormals":
        """The same with the other sign."""
        return BoundedNormals(-self.loc, self.scale, -self.high, -self.low)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        """Bounds outside of which a variable hardly ever is."""
        most = (self.low, self.high)
        ends = (self.loc - REACH * self.scale, self.loc + REACH * self.scale)
        first, last = (torch.where(self.scale.isinf(), *pair) for pair in zip(most, ends, strict=True))
        return first.maximum(self.low).minimum(self.high), last.minimum(self.high).maximum(self.low)

    def log_density(self, x: Tensor) -> Tensor:
        """Logarithms of densities; a very negative number outside of the bounds."""
        loc, scale, flat = self._proper()
        normal = -(((x - loc) / scale) ** 2) / 2 - scale.log() - math.log(2 * math.pi) / 2 - self._log_mass(self.low)
        found = torch.where(flat, -(self.high - self.low).log(), normal)
        return found.masked_fill((x < self.low) | (x > self.high), IMPOSSIBLE)

    def log_above(self, bound: Tensor) -> Tensor:
        """Logarithms of the probabilities of more than a bound; a very negative number for that of 0."""
        if bool(self.scale.isfinite().all() & self.low.isinf().all() & self.high.isinf().all()):
            found: Tensor = torch.special.log_ndtr((self.loc - bound) / self.scale)
            return found
        start, flat = self._start(bound), self.scale.isinf()
        uniform = ((self.high - start) / (self.high - self.low)).log()
        normal = self._log_mass(start) - self._log_mass(self.low)
        return torch.where(flat, uniform, normal).clamp(min=IMPOSSIBLE)

    def draw_above(self, bound: Tensor) -> Tensor:
        """Draws given that they are more than a bound."""
        (loc, scale, flat), start = self._proper(), self._start(bound)
        share = torch.rand_like(start)
        normal = loc + scale * truncated_quantile(share, (start - loc) / scale, (self.high - loc) / scale)
        return torch.where(flat, start + (self.high - start) * share, normal).maximum(start).minimum(self.high)

    def _start(self, bound: Tensor) -> Tensor:
        return bound.maximum(self.low).minimum(self.high)

    def _log_mass(self, start: Tensor) -> Tensor:
        loc, scale, _ = self._proper()
        return log_interval_mass((start - loc) / scale, (self.high - loc) / scale)

    def _proper(self) -> tuple[Tensor, Tensor, Tensor]:
        """Finite locations and scales, and which variables are uniform."""
        flat = self.scale.isinf()
        return self.loc.masked_fill(flat, 0.0), self.scale.masked_fill(flat, 1.0), flat
