"""Costs as a function of noise whose distribution has no parameters."""

__all__ = [
    "has_noise",
    "location_and_scale",
    "noise_curvature",
    "noise_family",
    "noise_log_density",
    "noise_shape",
    "noise_transform",
]

from collections.abc import Callable
from functools import partial, singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro.distributions import InverseGamma, Logistic
from pyro.distributions.transforms import LowerCholeskyAffine
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv
from torch import Tensor
from torch import distributions as td
from torch.distributions import AffineTransform, ComposeTransform, Transform, constraints

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.ops.processor import unmoved_tensor
from pyro_structured.optima.distributions.truncated_normal import TruncatedNormal
from pyro_structured.optima.ops.density_family import DensityFamily
from pyro_structured.optima.ops.student_quantile import student_point, student_tail
from pyro_structured.optima.ops.truncated_normal import truncated_from_log_odds, truncated_log_odds

# Smaller probabilities of tails have lost digits.
LEAST_PROBABILITY = 1e-300
# Families of noise and its log-densities, up to constants, by distributions of costs.
NOISE_DENSITIES: list[tuple[tuple[Any, ...], DensityFamily, Callable[[Tensor], Tensor]]] = [
    (
        (td.Normal, td.HalfNormal, TruncatedNormal, td.MultivariateNormal),
        DensityFamily.NORMAL,
        lambda noise: -noise.square() / 2,
    ),
    ((td.Uniform,), DensityFamily.UNIFORM, torch.zeros_like),
    ((td.Exponential,), DensityFamily.EXPONENTIAL, torch.neg),
    ((td.Laplace,), DensityFamily.LAPLACE, lambda noise: -noise.abs()),
    ((td.Gumbel,), DensityFamily.GUMBEL, lambda noise: -(noise + torch.exp(-noise))),
    ((Logistic,), DensityFamily.LOGISTIC, lambda noise: 2 * torch.nn.functional.logsigmoid(noise) - noise),
    ((td.Cauchy, td.HalfCauchy), DensityFamily.CAUCHY, lambda noise: -noise.square().log1p()),
]


class _ShapedNoise(NamedTuple):
    """Noise with a parameter, the distribution of costs whose location, if they have one, is 0 and whose scale is 1.

    :ivar DensityFamily family: Family of the costs.
    :ivar str name: Name of the parameter.
    :ivar log_density: Log-density, up to a constant, given noise and parameter.
    :ivar curvature: Negative second derivative, at the mode, of the log-density of the logarithm of positive noise.
    """

    family: DensityFamily
    name: str
    log_density: Callable[..., Tensor]
    curvature: Callable[[Tensor], Tensor]


SHAPED: dict[Any, _ShapedNoise] = {
    td.LogNormal: _ShapedNoise(
        DensityFamily.LOG_NORMAL,
        "scale",
        lambda noise, parameter: -(noise.log() / parameter).square() / 2 - noise.log(),
        lambda parameter: parameter**-2,
    ),
    td.Weibull: _ShapedNoise(
        DensityFamily.WEIBULL,
        "concentration",
        lambda noise, parameter: (parameter - 1) * noise.log() - noise**parameter,
        lambda parameter: parameter**2,
    ),
    td.Gamma: _ShapedNoise(
        DensityFamily.GAMMA,
        "concentration",
        lambda noise, parameter: (parameter - 1) * noise.log() - noise,
        lambda parameter: parameter,
    ),
    InverseGamma: _ShapedNoise(
        DensityFamily.INVERSE_GAMMA,
        "concentration",
        lambda noise, parameter: -(parameter + 1) * noise.log() - 1 / noise,
        lambda parameter: parameter,
    ),
    td.StudentT: _ShapedNoise(
        DensityFamily.STUDENT,
        "df",
        lambda noise, parameter: -(parameter + 1) / 2 * (noise.square() / parameter).log1p(),
        torch.ones_like,
    ),
}


# Scales of positive costs whose noise has a parameter, in double precision.
POSITIVE_SCALES: dict[Any, Callable[[Any], Tensor]] = {
    td.LogNormal: lambda base: base.loc.double().exp(),
    td.Weibull: lambda base: base.scale.double(),
    td.Gamma: lambda base: 1 / base.rate.double(),
    InverseGamma: lambda base: base.rate.double(),
}


@singledispatch
def noise_transform(base: Any) -> Transform:
    """The transform from noise to costs, in double precision.

    Noise is the variable of location 0 and scale 1 where costs have a location and a scale, and logistic where they
    have two bounds, or are gamma, inverse gamma or Student's t variables. No digits are lost in tails: where
    probabilities are too small or too close to 1 for floating point numbers, noise and costs are not; of the last
    three, costs are not a number there.

    :raises NotImplementedError: if the costs are not known to be such a function.
    """
    raise NotImplementedError(f"base: expected costs that are a function of noise, got {base}")


def has_noise(base: Any) -> bool:
    """Whether costs are a function of noise."""
    try:
        noise_transform(base)
    except NotImplementedError:
        return False
    return True


def location_and_scale(base: Any) -> tuple[Tensor, Tensor] | None:
    """Location, and scale or Cholesky factor of the covariance, of costs that are a location plus a scale times noise
    whose density is known, in double precision; ``None`` for others.

    Both broadcast with the costs, but Cholesky factors have one more axis. Location and scale of costs between two
    bounds are the lower bound and the distance to the upper one; of truncated normal costs, those before they are
    truncated; of exponential costs, 0 and the mean; of log-normal costs, 0 and the median; of gamma costs, 0 and the
    inverse of the rate; of inverse gamma costs, 0 and the rate.
    """
    base = entry_distribution(base)
    if isinstance(base, TruncatedNormal):
        return base.loc.detach().double(), base.scale.detach().double()
    if isinstance(base, td.StudentT):
        return base.loc.detach().double(), base.scale.detach().double()
    if noise_shape(base) is not None:
        scale = next(scale for kind, scale in POSITIVE_SCALES.items() if isinstance(base, kind))(base).detach()
        return torch.zeros((), dtype=torch.double, device=scale.device), scale
    if isinstance(base, td.Uniform):
        low = base.low.detach().double()
        return low, base.high.detach().double() - low
    if not has_noise(base):
        return None
    transform: Any = noise_transform(base)
    if isinstance(transform, LowerCholeskyAffine):
        return transform.loc.detach(), transform.scale_tril.detach()
    if not isinstance(transform, AffineTransform):
        return None
    loc, scale = unmoved_tensor(transform.loc), unmoved_tensor(transform.scale)
    return loc.detach().to(scale.device, torch.double), scale.detach()


def noise_log_density(base: Any) -> Callable[[Tensor], Tensor]:
    """The log-density, up to a constant, of the noise in costs that have a :func:`location_and_scale`, of each entry,
    within its support.
    """
    entries, shape = entry_distribution(base), noise_shape(base)
    if shape is not None:
        return partial(_shaped(entries).log_density, parameter=shape)
    return next(density for kinds, _, density in NOISE_DENSITIES if isinstance(entries, kinds))


def noise_family(base: Any) -> DensityFamily:
    """The family of the noise in costs that have a :func:`location_and_scale`; truncated noise counts as normal."""
    entries = entry_distribution(base)
    if noise_shape(base) is not None:
        return _shaped(entries).family
    return next(family for kinds, family, _ in NOISE_DENSITIES if isinstance(entries, kinds))


def noise_shape(base: Any) -> Tensor | None:
    """The parameter of the noise, which broadcasts with the costs, in double precision; ``None`` where it has none."""
    entries = entry_distribution(base)
    if not isinstance(entries, tuple(SHAPED)):
        return None
    shape: Tensor = getattr(entries, _shaped(entries).name).detach().double()
    return shape


def noise_curvature(base: Any) -> Tensor | float:
    """Typical curvature of the log-density of the logarithms of the noise, which broadcasts with the costs."""
    shape = noise_shape(base)
    return 2.0 if shape is None else _shaped(entry_distribution(base)).curvature(shape)


def _shaped(entries: Any) -> _ShapedNoise:
    return next(noise for kind, noise in SHAPED.items() if isinstance(entries, kind))


@noise_transform.register(td.Independent)
def _independent(base: Any) -> Transform:
    return noise_transform(base.base_dist)


@noise_transform.register(td.Normal)
@noise_transform.register(td.Laplace)
@noise_transform.register(td.Gumbel)
@noise_transform.register(td.Cauchy)
@noise_transform.register(Logistic)
def _located(base: Any) -> Transform:
    return AffineTransform(base.loc.double(), base.scale.double())


@noise_transform.register(td.HalfNormal)
@noise_transform.register(td.HalfCauchy)
def _scaled(base: Any) -> Transform:
    return AffineTransform(0.0, base.scale.double())


@noise_transform.register(td.Exponential)
def _exponential(base: Any) -> Transform:
    return AffineTransform(0.0, 1 / base.rate.double())


@noise_transform.register(td.MultivariateNormal)
def _multivariate_normal(base: Any) -> Transform:
    return LowerCholeskyAffine(base.loc.double(), base.scale_tril.double())


@noise_transform.register(td.Gamma)
def _gamma(base: Any) -> Transform:
    return ComposeTransform([_GammaNoise(base.concentration.double()), AffineTransform(0.0, 1 / base.rate.double())])


@noise_transform.register(td.StudentT)
def _student(base: Any) -> Transform:
    return ComposeTransform([_StudentNoise(base.df.double()), AffineTransform(base.loc.double(), base.scale.double())])


@noise_transform.register(td.TransformedDistribution)
def _transformed(base: Any) -> Transform:
    if not all(transform.bijective for transform in base.transforms):
        raise NotImplementedError(f"base: expected transforms that can be inverted, got {base.transforms}")
    return ComposeTransform([noise_transform(base.base_dist), *base.transforms])


class _BoundedNoise(Transform):
    """Transform from logistic noise to variables between two bounds."""

    domain = constraints.real
    codomain = constraints.real
    bijective = True


@noise_transform.register(td.Uniform)
class _UniformNoise(_BoundedNoise):
    def __init__(self, base: Any) -> None:
        super().__init__()
        self._low, self._high = base.low.double(), base.high.double()

    def _call(self, x: Tensor) -> Tensor:
        distance = (self._high - self._low) * torch.sigmoid(-x.abs())
        return torch.where(x < 0, self._low + distance, self._high - distance)

    def _inverse(self, y: Tensor) -> Tensor:
        log_odds: Tensor = (y - self._low).log() - (self._high - y).log()
        return log_odds


@noise_transform.register(TruncatedNormal)
class _TruncatedNormalNoise(_BoundedNoise):
    def __init__(self, base: Any) -> None:
        super().__init__()
        self._parameters = [parameter.double() for parameter in (base.loc, base.scale, base.low, base.high)]

    def _call(self, x: Tensor) -> Tensor:
        return truncated_from_log_odds(x, *self._parameters)

    def _inverse(self, y: Tensor) -> Tensor:
        return truncated_log_odds(y, *self._parameters)


class _QuantileNoise(_BoundedNoise):
    """Transform from logistic noise to variables with a parameter, by the smaller one of the tails' probabilities."""

    def __init__(self, parameter: Tensor) -> None:
        super().__init__()
        self._parameter = parameter

    def _call(self, x: Tensor) -> Tensor:
        log_odds, parameter = (each.detach().cpu() for each in torch.broadcast_tensors(x, self._parameter))
        below, above = torch.sigmoid(log_odds), torch.sigmoid(-log_odds)
        quantile = torch.as_tensor(
            self._quantile(*(each.numpy() for each in (below, above, parameter))), device=log_odds.device
        )
        # Where probabilities have underflown, nothing is known.
        return quantile.where(torch.minimum(below, above) > LEAST_PROBABILITY, torch.nan).to(x.device)

    def _inverse(self, y: Tensor) -> Tensor:
        tails = self._tails(*(each.detach().cpu().numpy() for each in (y, self._parameter)))
        below, above = (torch.as_tensor(tail, device="cpu") for tail in tails)
        return (below.log() - above.log()).to(y.device)

    @staticmethod
    def _quantile(below: np.ndarray, above: np.ndarray, parameter: np.ndarray) -> np.ndarray:
        """Numbers whose tails have probabilities which add up to 1."""
        raise NotImplementedError

    @staticmethod
    def _tails(y: np.ndarray, parameter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities below and above numbers."""
        raise NotImplementedError


class _GammaNoise(_QuantileNoise):
    @staticmethod
    def _quantile(below: np.ndarray, above: np.ndarray, parameter: np.ndarray) -> np.ndarray:
        quantile: np.ndarray = np.where(below < above, gammaincinv(parameter, below), gammainccinv(parameter, above))
        return quantile

    @staticmethod
    def _tails(y: np.ndarray, parameter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return gammainc(parameter, y), gammaincc(parameter, y)


class _StudentNoise(_QuantileNoise):
    @staticmethod
    def _quantile(below: np.ndarray, above: np.ndarray, parameter: np.ndarray) -> np.ndarray:
        size = student_point(np.minimum(below, above), parameter)
        quantile: np.ndarray = np.where(below < above, -size, size)
        return quantile

    @staticmethod
    def _tails(y: np.ndarray, parameter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tail = student_tail(np.abs(y), parameter)
        return np.where(y < 0, tail, 1 - tail), np.where(y < 0, 1 - tail, tail)
