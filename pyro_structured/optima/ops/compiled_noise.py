"""Log-densities of noise along lines and rays, compiled."""

__all__ = ["noise_heights"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.density_family import DensityFamily


@compiled
def noise_heights(
    family: int,
    multiplies: bool,
    noise: np.ndarray,
    change: np.ndarray,
    shape: np.ndarray,
    volume: np.ndarray,
    places: np.ndarray,
    heights: np.ndarray,
) -> None:
    r"""Fills in logarithms of densities of noise :math:`\epsilon + c x`, or :math:`e^{c x} \epsilon`, up to a constant
    of each row.

    :param int family: The :class:`DensityFamily` of noise of location 0 and scale 1.
    :param bool multiplies: Whether noise is multiplied.
    :param np.ndarray noise: Noise at x = 0, float64, shape ``(N, E)``.
    :param np.ndarray change: c, float64, shape ``(N, E)``; entries where it is zero take no time.
    :param np.ndarray shape: Standard deviations of the logarithms of log-normal noise, concentrations of Weibull, gamma
        and inverse gamma noise, degrees of freedom of Student's, float64, shape ``(N, E)``; not used for others.
    :param np.ndarray volume: Logarithm of the Jacobian for each unit of x, float64, shape ``(N,)``.
    :param np.ndarray places: Numbers x, float64, shape ``(N, P)``.
    :param np.ndarray heights: Shape ``(N, P)``.

    O(N · E · P).
    """
    for n in range(len(noise)):
        entries = np.flatnonzero(change[n])
        for p in range(places.shape[1]):
            x, total = places[n, p], volume[n] * places[n, p]
            for entry in entries:
                # Logarithms of the factors of products.
                moved, grown = noise[n, entry], change[n, entry] * x
                moved = moved * math.exp(grown) if multiplies else moved + grown
                total += _log_density(family, moved, shape[n, entry])
            heights[n, p] = total


@compiled
def _log_density(family: int, noise: float, shape: float) -> float:
    if family == DensityFamily.NORMAL:
        return -noise * noise / 2
    if family == DensityFamily.EXPONENTIAL:
        return -noise
    if family == DensityFamily.LAPLACE:
        return -abs(noise)
    if family == DensityFamily.GUMBEL:
        return -(noise + math.exp(-noise))
    if family == DensityFamily.LOGISTIC:
        return -abs(noise) - 2 * math.log1p(math.exp(-abs(noise)))
    if family == DensityFamily.LOG_NORMAL:
        power = math.log(noise)
        return -((power / shape) ** 2) / 2 - power
    if family == DensityFamily.WEIBULL:
        power = math.log(noise)
        return (shape - 1) * power - math.exp(shape * power)
    if family == DensityFamily.GAMMA:
        return (shape - 1) * math.log(noise) - noise
    if family == DensityFamily.INVERSE_GAMMA:
        return -(shape + 1) * math.log(noise) - 1 / noise
    if family == DensityFamily.STUDENT:
        return -(shape + 1) / 2 * math.log1p(noise * noise / shape)
    if family == DensityFamily.CAUCHY:
        return -math.log1p(noise * noise)
    return 0.0
