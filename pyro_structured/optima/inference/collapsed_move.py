"""Parameters drawn with one coordinate of the noise in every row of costs summed out."""

__all__ = ["CollapsedMove", "is_normal", "normal_parameters"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.optima.ops.truncated_normal import log_interval_mass, truncated_quantile


class CollapsedMove:
    r"""Normal costs whose location moves along a line while they themselves stay on lines.

    With locations :math:`\mu + t v` and a scale that stays the same, the costs of each row may go to :math:`w +
    (x - \tau) v`, where :math:`\tau` is the present noise along v: the noise across v stays. Then :math:`x \sim N(t, 1
    / \kappa)` with :math:`\kappa = v^T \Sigma^{-1} v`, and the inverse set allows an interval of x. So x can be summed
    out of the density of t in closed form, and be drawn afterwards.

    :param base: Normal distribution of the costs at t = 0.
    :param Tensor costs: Present costs w, double precision, shape ``batch_shape + cost_shape``.
    :param Tensor change: v, of the same shape.
    :param chord: Function from v to both ends, of the batch shape, of the interval of distances s for which w + s v
        stays in the inverse set.
    """

    def __init__(
        self, base: Any, costs: Tensor, change: Tensor, chord: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> None:
        axes = tuple(range(len(base.batch_shape), costs.dim()))
        weighted = _divide_by_covariance(base, change)
        self._costs, self._change = costs, change
        self._precision = (change * weighted).sum(axes)
        self._moves = self._precision > 0
        self._precision = self._precision.masked_fill(~self._moves, 1.0)
        self._noise = ((costs - normal_parameters(base)[0]) * weighted).sum(axes) / self._precision
        low, high = chord(change)
        self._low, self._high = low + self._noise, high + self._noise

    def log_density(self, distance: Tensor) -> Tensor:
        """Log-probability that x is in its interval in every row, given the location at distance t."""
        scale = self._precision.sqrt()
        # The present point is inside, but rounding may close an interval that is as good as a point.
        narrowest = self._low + 1e-300
        mass = log_interval_mass((self._low - distance) * scale, (self._high.maximum(narrowest) - distance) * scale)
        return mass.masked_fill(~self._moves, 0.0).sum()

    def draw(self, distance: Tensor) -> Tensor:
        """New costs given the location at distance t, shape ``batch_shape + cost_shape``."""
        scale = self._precision.sqrt()
        low, high = ((end - distance) * scale for end in (self._low, self._high))
        place = distance + truncated_quantile(torch.rand_like(low), low, high.maximum(low)) / scale
        shift = (place.clamp(self._low, self._high) - self._noise).masked_fill(~self._moves, 0.0)
        return self._costs + shift.reshape(shift.shape + (1,) * (self._costs.dim() - shift.dim())) * self._change


def is_normal(base: Any) -> bool:
    """Whether a distribution of costs is normal."""
    return isinstance(base, MultivariateNormal) or isinstance(entry_distribution(base), Normal)


def normal_parameters(base: Any) -> tuple[Tensor, Tensor]:
    """Location, and scale or Cholesky factor of the covariance, of normal costs, in double precision."""
    entries = entry_distribution(base)
    scale = entries.scale_tril if isinstance(entries, MultivariateNormal) else entries.scale
    return entries.loc.detach().double(), scale.detach().double()


def _divide_by_covariance(base: Any, change: Tensor) -> Tensor:
    _, scale = normal_parameters(base)
    if isinstance(base, MultivariateNormal):
        return torch.cholesky_solve(change.unsqueeze(-1), scale).squeeze(-1)
    return change / scale**2
