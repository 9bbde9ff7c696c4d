"""Independent costs that are drawn by inverting their distribution functions."""

__all__ = [
    "CauchyCosts",
    "ExponentialCosts",
    "GammaCosts",
    "GumbelCosts",
    "IndependentCosts",
    "InverseGammaCosts",
    "LaplaceCosts",
    "LogNormalCosts",
    "LogisticCosts",
    "NormalCosts",
    "ShiftedCosts",
    "StudentCosts",
    "UniformCosts",
    "WeibullCosts",
]

from abc import abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from pyro_structured.optima.inference.cost_family import CostFamily, line_between
from pyro_structured.optima.ops.density_family import EXPONENTIAL_FROM, FLAT_BELOW, LARGEST_EXPONENT, DensityFamily
from pyro_structured.optima.ops.gamma_quantile import gamma_quantile
from pyro_structured.optima.ops.student_quantile import student_quantile
from pyro_structured.optima.ops.truncated_normal import truncated_quantile
from pyro_structured.optima.structures.box import Box


class ShiftedCosts(CostFamily):
    """Sums of random costs and constants: the random costs are drawn in the box that is shifted back.

    :param CostFamily costs: Distribution of the random costs.
    :param Tensor shift: Constants, shape ``(..., P)``.
    """

    def __init__(self, costs: CostFamily, shift: Tensor) -> None:
        self.costs, self.shift = costs, shift

    def draw(self, costs: Tensor, box: Box, uniform: Tensor) -> Tensor:
        """Draws of the random costs in the shifted box, plus the constants."""
        index = box.index.expand(costs.shape[:-1] + box.index.shape[-1:])
        shift = self.shift.expand(costs.shape).gather(-1, index)
        back = Box(index, box.low - shift, box.high - shift, box.free)
        return self.costs.draw(costs - self.shift, back, uniform) + shift

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Distances that the random costs go, which constants do not change."""
        return self.costs.draw_along(costs - self.shift, direction, low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Direction of the random costs."""
        return self.costs.random_direction(costs)


class IndependentCosts(CostFamily):
    """Independent costs, between bounds: exact draws.

    :cvar DensityFamily family: Family of distributions that the parameters belong to.
    :param Tensor loc: Locations.
    :param Tensor scale: Scales.
    :param Tensor low: Lower bounds, or -inf.
    :param Tensor high: Upper bounds, or +inf.
    """

    family: DensityFamily

    def __init__(self, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> None:
        self.loc, self.scale, self.low, self.high = loc, scale, low, high

    def draw(self, costs: Tensor, box: Box, uniform: Tensor) -> Tensor:
        """Quantiles between the bounds, one for each entry of the box, shape ``(..., b)``."""
        index = box.index.expand(costs.shape[:-1] + box.index.shape[-1:])
        tensors = (costs, uniform, self.loc, self.scale, self.low, self.high)
        present, share, loc, scale, least, most = (tensor.expand(costs.shape).gather(-1, index) for tensor in tensors)
        # Rounding must not reverse the bounds, nor lead out of the costs' own.
        low = torch.minimum(torch.maximum(box.low, least), most)
        high = torch.maximum(low, torch.minimum(box.high, most))
        # Densities of intervals without a length are not asked for: they may be infinite, or 0.
        drawn = torch.where(low < high, self.quantile(share, loc, scale, low, high), low)
        return drawn if box.free is None else torch.where(box.free, drawn, present)

    @cached_property
    def base(self) -> Tensor:
        """Location, scale, both bounds, and 0, an additive constant, shape ``(..., P, 5)``."""
        parameters = (self.loc, self.scale, self.low, self.high, self.loc.new_zeros(()))
        return torch.stack(torch.broadcast_tensors(*parameters), -1)

    def draw_all(self, uniform: Tensor) -> Tensor:
        """Unconditional draws of all costs, equal to those in boxes without bounds.

        :param Tensor uniform: Uniform variables, one for every cost, shape ``(..., P)``.
        """
        return self.quantile(uniform, self.loc, self.scale, self.low, self.high)

    @staticmethod
    @abstractmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles between bounds, which rounding does not leave."""


class NormalCosts(IndependentCosts):
    """Normal costs."""

    family = DensityFamily.NORMAL

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles of truncated normal variables."""
        return truncated_quantile(uniform, loc, scale, low, high)

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Distances along every line, truncated normal."""
        low, high = line_between(costs, direction, self.low, self.high, low, high)
        along = direction / self.scale
        precision = along.square().sum(-1)
        mean = (along * (self.loc - costs) / self.scale).sum(-1) / precision
        return self.quantile(torch.rand_like(low), mean, precision.rsqrt(), low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal direction with the costs' scales."""
        return torch.randn_like(costs) * self.scale


class UniformCosts(IndependentCosts):
    """Uniform costs."""

    family = DensityFamily.UNIFORM

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__(low, high - low, low, high)

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles of uniform variables."""
        return low + (high - low) * uniform

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Distances along every line, uniform."""
        low, high = line_between(costs, direction, self.low, self.high, low, high)
        return low + (high - low) * torch.rand_like(low)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal direction with the widths of the intervals."""
        return torch.randn_like(costs) * self.scale


class LineSlicedCosts(IndependentCosts):
    """Costs that move along lines by slice sampling.

    :cvar float least: Lower bound of all costs, or -inf.
    :param Tensor loc: Locations.
    :param Tensor scale: Scales.
    """

    least = -torch.inf

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        super().__init__(loc, scale, torch.full_like(scale, self.least), torch.full_like(scale, torch.inf))

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Distances along every line after one slice sampling update."""
        low, high = line_between(costs, direction, self.low, self.high, low, high)
        return self.slice_along(self.log_density, costs, direction, low, high)

    @abstractmethod
    def log_density(self, costs: Tensor) -> Tensor:
        """Log-density up to a constant, shape ``(...)``, of costs of shape ``(..., P)``."""

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal direction with the costs' scales."""
        return torch.randn_like(costs) * self.scale


class LogNormalCosts(LineSlicedCosts):
    """Exponentials of normal variables."""

    family = DensityFamily.LOG_NORMAL
    least = 0.0

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Exponentials of the quantiles of truncated normal logarithms."""
        quantile = NormalCosts.quantile(uniform, loc, scale, low.clamp(min=0).log(), high.clamp(min=0).log()).exp()
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Log-density of normal logarithms, less the sum of the logarithms, up to a constant."""
        logarithm = costs.log()
        return -(((logarithm - self.loc) / self.scale).square() / 2 + logarithm).sum(-1)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal direction with the scales of the logarithms times the medians."""
        return torch.randn_like(costs) * self.scale * self.loc.exp()


class ExponentialCosts(LineSlicedCosts):
    """Exponential costs."""

    family = DensityFamily.EXPONENTIAL
    least = 0.0

    def __init__(self, scale: Tensor) -> None:
        super().__init__(torch.zeros_like(scale), scale)

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles of truncated exponential variables: the lower bound plus an excess."""
        quantile = low - scale * torch.log1p(uniform * torch.expm1((low - high) / scale))
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Log-density up to a constant, which is linear."""
        return -(costs / self.scale).sum(-1)


class WeibullCosts(LineSlicedCosts):
    """Powers of exponential costs; locations are concentrations."""

    family = DensityFamily.WEIBULL
    least = 0.0

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Powers of the quantiles of truncated exponential variables; of uniform ones where these are as good."""
        least, most = (low / scale) ** loc, (high / scale) ** loc
        excess = torch.log1p(uniform * torch.expm1(least - most))
        share = (low / high).nan_to_num(1.0) ** loc
        flat = high * (share + uniform * (1 - share)) ** (1 / loc)
        quantile = torch.where(most < FLAT_BELOW, flat, scale * (least - excess) ** (1 / loc))
        quantile = torch.where(least == torch.inf, low, quantile)
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Logarithm of a power less another power, up to a constant."""
        ratio = costs / self.scale
        return ((self.loc - 1) * ratio.log() - ratio**self.loc).sum(-1)


class GammaCosts(LineSlicedCosts):
    """Gamma costs; locations are concentrations."""

    family = DensityFamily.GAMMA
    # Torch's draws are no smaller.
    least = torch.finfo(torch.double).tiny

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles of truncated gamma variables."""
        quantile = scale * gamma_quantile(uniform, loc, low / scale, high / scale)
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Logarithm of a power less the cost, up to a constant."""
        ratio = costs / self.scale
        return ((self.loc - 1) * ratio.log() - ratio).sum(-1)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal direction with the costs' standard deviations."""
        return torch.randn_like(costs) * self.scale * self.loc.sqrt()


class InverseGammaCosts(LineSlicedCosts):
    """Scales divided by gamma variables; locations are concentrations."""

    family = DensityFamily.INVERSE_GAMMA
    least = torch.finfo(torch.double).tiny

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Scales divided by quantiles of truncated gamma variables."""
        quantile = scale / gamma_quantile(1 - uniform, loc, scale / high, scale / low)
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Logarithm of a power less the reciprocal of the cost, up to a constant."""
        ratio = self.scale / costs
        return ((self.loc + 1) * ratio.log() - ratio).sum(-1)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal direction with the costs' modes."""
        return torch.randn_like(costs) * self.scale / (self.loc + 1)


class CauchyCosts(LineSlicedCosts):
    """Costs of Cauchy's distribution, all of it or above bounds.

    :param Tensor low: Lower bounds, or -inf.
    """

    family = DensityFamily.CAUCHY

    def __init__(self, loc: Tensor, scale: Tensor, low: Tensor) -> None:
        super().__init__(loc, scale)
        self.low = low

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles of truncated variables, by the angles below and above."""
        least, most, one = (low - loc) / scale, (high - loc) / scale, torch.ones_like(low)
        below, above = torch.atan2(one, -least), torch.atan2(one, most)
        mass = torch.where(least >= 0, torch.atan2(one, least) - above, torch.pi - below - above)
        mass = torch.where(most <= 0, torch.atan2(one, -most) - below, mass)
        left, right = below + uniform * mass, above + (1 - uniform) * mass
        quantile = loc + scale * torch.where(left < right, -1 / left.tan(), 1 / right.tan())
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Log-density up to a constant."""
        return -((costs - self.loc) / self.scale).square().log1p().sum(-1)


class StudentCosts(LineSlicedCosts):
    """Costs of Student's t distribution around zero; locations are degrees of freedom."""

    family = DensityFamily.STUDENT

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles of truncated variables."""
        quantile = scale * student_quantile(uniform, loc, low / scale, high / scale)
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Log-density up to a constant."""
        return -((costs / self.scale).square() / self.loc).log1p().mul((self.loc + 1) / 2).sum(-1)


class LaplaceCosts(LineSlicedCosts):
    """Costs of Laplace's distribution."""

    family = DensityFamily.LAPLACE

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles of truncated variables, by exponentials of distances from the bounds or the peak."""
        least, most, share, rest = (low - loc) / scale, (high - loc) / scale, uniform, 1 - uniform
        # Turned so that the middle of the interval is not above the peak.
        turned = least + most > 0
        least, most = torch.where(turned, -most, least), torch.where(turned, -least, most)
        share, rest = torch.where(turned, rest, share), torch.where(turned, share, rest)
        tail = most + _log_mix(share, rest, (least - most).clamp(max=0.0))
        below, above = -torch.expm1(least.clamp(max=0.0)), -torch.expm1(-most.clamp(min=0.0))
        part = share * (below + above) / below
        left = _log_mix(part, 1 - part, least.clamp(max=0.0))
        part_above = rest * (below + above) / above
        right = -_log_mix(part_above, 1 - part_above, -most.clamp(min=0.0))
        quantile = torch.where(most <= 0, tail, torch.where(part < 1, left, right))
        quantile = loc + scale * torch.where(turned, -quantile, quantile)
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Log-density up to a constant: less the distances from the locations."""
        return -((costs - self.loc) / self.scale).abs().sum(-1)


class LogisticCosts(LineSlicedCosts):
    """Logistic costs."""

    family = DensityFamily.LOGISTIC

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles of truncated variables: logarithms of the probabilities on both sides."""
        ends = [(low - loc) / scale, (high - loc) / scale]
        least, most = (_log_sigmoid(end) for end in ends)
        below = most + _log_mix(uniform, 1 - uniform, least - most)
        least, most = (_log_sigmoid(-end) for end in ends)
        quantile = loc + scale * (below - least - _log_mix(1 - uniform, uniform, most - least))
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Log-density up to a constant: logarithms of the probabilities on both sides."""
        distance = (costs - self.loc) / self.scale
        return (_log_sigmoid(distance) + _log_sigmoid(-distance)).sum(-1)


class GumbelCosts(LineSlicedCosts):
    """Gumbel costs, largest values of many variables."""

    family = DensityFamily.GUMBEL

    @staticmethod
    def quantile(uniform: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Quantiles of truncated variables, by the logarithm of the probability below; exponential far above."""
        least, most, rest = (low - loc) / scale, (high - loc) / scale, 1 - uniform
        above = least - torch.log1p(uniform * torch.expm1(least - most))
        mixed = _log_mix(uniform, rest, (torch.exp(-most) - torch.exp(-least)).nan_to_num(0.0, neginf=-torch.inf))
        middle = -torch.log(torch.exp(-most) - mixed)
        # Below the peak, relative to the upper bound.
        gap = most - least
        ratio = -torch.exp(-most) * torch.expm1(gap)
        far = (gap == 0) | (most < -LARGEST_EXPONENT)
        lower = most - torch.log1p(-_log_mix(uniform, rest, ratio.masked_fill(far, 0.0)) * torch.exp(most))
        quantile = torch.where(most >= 0, middle, torch.where(far, most, lower))
        quantile = loc + scale * torch.where(least > EXPONENTIAL_FROM, above, quantile)
        return torch.maximum(torch.minimum(quantile, high), low)

    def log_density(self, costs: Tensor) -> Tensor:
        """Log-density up to a constant."""
        distance = (costs - self.loc) / self.scale
        return -(distance + (-distance).exp()).sum(-1)


def _log_mix(share: Tensor, rest: Tensor, ratio: Tensor) -> Tensor:
    """Logarithm of ``share + rest * exp(ratio)``, where both add up to 1 and the ratio is not positive."""
    return torch.where(ratio > -0.5, torch.log1p(rest * torch.expm1(ratio)), torch.log(share + rest * ratio.exp()))


def _log_sigmoid(x: Tensor) -> Tensor:
    return x.clamp(max=0.0) - torch.log1p(torch.exp(-x.abs()))
