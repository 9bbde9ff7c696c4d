"""Log-densities of noise along lines and rays, compiled."""

__all__ = ["noise_heights"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.foundation.ops.compiled_exponentials import exponentials, logarithms
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
    :param np.ndarray change: c, float64, shape ``(N, E)``; entries where it is zero take no time. Others of a row are
        equal where noise is multiplied.
    :param np.ndarray shape: Standard deviations of the logarithms of log-normal noise, concentrations of Weibull, gamma
        and inverse gamma noise, degrees of freedom of Student's, float64, shape ``(N, E)``; not used for others.
    :param np.ndarray volume: Logarithm of the Jacobian for each unit of x, float64, shape ``(N,)``.
    :param np.ndarray places: Numbers x, float64, contiguous, shape ``(N, P)``.
    :param np.ndarray heights: Contiguous, shape ``(N, P)``.

    O(N · E · P).
    """
    has_powers = (
        family == DensityFamily.LOG_NORMAL
        or family == DensityFamily.WEIBULL
        or family == DensityFamily.GAMMA
        or family == DensityFamily.INVERSE_GAMMA
    )
    count = places.shape[1]
    # Loops are vectorised where arrays are seen not to overlap, which rows of one array are not.
    factors, moved, powers = np.empty(count), np.empty(count), np.empty(count)
    found, space = np.empty(count), np.empty(count)
    for n in range(len(noise)):
        entries = np.flatnonzero(change[n])
        x, total = places[n], heights[n]
        for p in range(count):
            total[p] = volume[n] * x[p]
        if multiplies and len(entries):
            for p in range(count):
                found[p] = change[n, entries[0]] * x[p]
            exponentials(found, factors, space)
        for entry in entries:
            start, rate = noise[n, entry], change[n, entry]
            if multiplies:
                power = math.log(start) if has_powers else 0.0
                for p in range(count):
                    moved[p] = start * factors[p]
                    powers[p] = power + rate * x[p]
            else:
                for p in range(count):
                    moved[p] = start + rate * x[p]
                if has_powers:
                    logarithms(moved, powers, space)
            _add_log_densities(family, shape[n, entry], moved, powers, total, found, space)


@compiled
def _add_log_densities(
    family: int,
    shape: float,
    noise: np.ndarray,
    powers: np.ndarray,
    total: np.ndarray,
    found: np.ndarray,
    space: np.ndarray,
) -> None:
    """Adds log-densities of noise, by its logarithms ``powers`` of positive noise; overwrites the other arrays."""
    count = len(noise)
    if family == DensityFamily.NORMAL:
        for p in range(count):
            total[p] -= noise[p] * noise[p] / 2
    elif family == DensityFamily.EXPONENTIAL:
        for p in range(count):
            total[p] -= noise[p]
    elif family == DensityFamily.LAPLACE:
        for p in range(count):
            total[p] -= abs(noise[p])
    elif family == DensityFamily.GUMBEL:
        for p in range(count):
            powers[p] = -noise[p]
        exponentials(powers, found, space)
        for p in range(count):
            total[p] -= noise[p] + found[p]
    elif family == DensityFamily.LOGISTIC:
        for p in range(count):
            powers[p] = -abs(noise[p])
        exponentials(powers, found, space)
        for p in range(count):
            noise[p] = 1 + found[p]
        logarithms(noise, found, space)
        for p in range(count):
            total[p] += powers[p] - 2 * found[p]
    elif family == DensityFamily.LOG_NORMAL:
        for p in range(count):
            total[p] -= (powers[p] / shape) ** 2 / 2 + powers[p]
    elif family == DensityFamily.WEIBULL:
        for p in range(count):
            noise[p] = shape * powers[p]
        exponentials(noise, found, space)
        for p in range(count):
            total[p] += (shape - 1) * powers[p] - found[p]
    elif family == DensityFamily.GAMMA:
        for p in range(count):
            total[p] += (shape - 1) * powers[p] - noise[p]
    elif family == DensityFamily.INVERSE_GAMMA:
        for p in range(count):
            total[p] -= (shape + 1) * powers[p] + 1 / noise[p]
    elif family == DensityFamily.STUDENT:
        # Many degrees of freedom multiply the error of a logarithm next to 1.
        for p in range(count):
            total[p] -= (shape + 1) / 2 * math.log1p(noise[p] * noise[p] / shape)
    elif family == DensityFamily.CAUCHY:
        for p in range(count):
            noise[p] = 1 + noise[p] * noise[p]
        logarithms(noise, found, space)
        for p in range(count):
            total[p] -= found[p]
