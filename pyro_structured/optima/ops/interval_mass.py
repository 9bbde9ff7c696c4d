"""Probabilities of intervals, for families of distributions of single numbers."""

__all__ = ["LEAST_LOG_MASS", "WITH_MASS", "interval_mass"]

import math

import torch
from torch import Tensor

from pyro_structured.optima.ops.density_family import DensityFamily
from pyro_structured.optima.ops.truncated_normal import log_interval_mass

# Families whose intervals have probabilities in closed form.
WITH_MASS = frozenset(
    {
        DensityFamily.UNIFORM,
        DensityFamily.NORMAL,
        DensityFamily.LOG_NORMAL,
        DensityFamily.EXPONENTIAL,
        DensityFamily.LAPLACE,
        DensityFamily.LOGISTIC,
        DensityFamily.GUMBEL,
        DensityFamily.WEIBULL,
        DensityFamily.CAUCHY,
    }
)
# Logarithms of probabilities are no smaller, so that their differences are numbers.
LEAST_LOG_MASS = -1e300


def interval_mass(family: DensityFamily, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Logarithms of the probabilities of intervals.

    :param DensityFamily family: A family in ``WITH_MASS``. The probabilities are those of its variables before they are
        truncated; for uniform variables, those of an interval that has the scale as its length.
    :param Tensor loc: Locations, in double precision; all shapes broadcast.
    :param Tensor scale: Scales.
    :param Tensor low: Lower ends, in the support.
    :param Tensor high: Upper ends, in the support.
    :return: At least -1e300; -inf where the lower end is not below the upper one. A relative error of some 1e-14 in the
        probabilities of intervals, but for the error of ``high - low``, of powers, of logarithms and of angles.
    """
    gap = (high - low) / scale
    least, most = (low - loc) / scale, (high - loc) / scale
    if family == DensityFamily.UNIFORM:
        mass = gap.log()
    elif family == DensityFamily.NORMAL:
        mass = log_interval_mass(least, most, gap)
    elif family == DensityFamily.LOG_NORMAL:
        least, most = ((end.log() - loc) / scale for end in (low, high))
        mass = log_interval_mass(least, most, ((high - low) / low).log1p() / scale)
    elif family == DensityFamily.EXPONENTIAL:
        mass = _exponential(low / scale, gap)
    elif family == DensityFamily.WEIBULL:
        least, most = (low / scale) ** loc, (high / scale) ** loc
        mass = _exponential(least, most - least)
    elif family == DensityFamily.GUMBEL:
        mass = _exponential((-most).exp(), -(-least).exp() * torch.expm1(-gap))
    elif family == DensityFamily.LAPLACE:
        middle = (-(torch.expm1(least) + torch.expm1(-most))).log()
        mass = torch.where(
            most <= 0, _exponential(-most, gap), torch.where(least >= 0, _exponential(least, gap), middle)
        )
        mass = mass - math.log(2)
    elif family == DensityFamily.LOGISTIC:
        sigmoid = torch.nn.functional.logsigmoid
        mass = sigmoid(most) + sigmoid(-least) + (-torch.expm1(-gap)).log()
    else:
        one = torch.ones_like(gap)
        below, above = torch.atan2(one, -least), torch.atan2(one, most)
        angle = torch.where(least >= 0, torch.atan2(one, least) - above, torch.pi - below - above)
        mass = torch.where(most <= 0, torch.atan2(one, -most) - below, angle).log() - math.log(math.pi)
    return mass.nan_to_num(LEAST_LOG_MASS).clamp(min=LEAST_LOG_MASS).masked_fill(~(low < high), -torch.inf)


def _exponential(start: Tensor, length: Tensor) -> Tensor:
    return (-torch.expm1(-length)).log() - start
