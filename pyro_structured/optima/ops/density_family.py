"""Families of distributions of single numbers between bounds."""

__all__ = ["EXPONENTIAL_FROM", "FLAT_BELOW", "LARGEST_EXPONENT", "DensityFamily"]

from enum import IntEnum

# Above this number, the upper tail of Gumbel's distribution is exponential, up to rounding.
EXPONENTIAL_FROM = 37.0
# Below this number, the exponential density is flat, up to rounding.
FLAT_BELOW = 1e-17
# A double holds the exponential of smaller numbers.
LARGEST_EXPONENT = 700.0


class DensityFamily(IntEnum):
    """Families of univariate distributions with a location, a scale and two bounds.

    :cvar UNIFORM: The uniform distribution between the bounds; location and scale are not used.
    :cvar NORMAL: The normal distribution with the location as mean and the scale as standard deviation, truncated to
        the bounds.
    :cvar LOG_NORMAL: The exponential of a normal variable with this mean and standard deviation; the bounds are those
        of the exponential.
    :cvar EXPONENTIAL: The exponential distribution with the scale as its mean, truncated to the bounds; the location is
        not used.
    :cvar LAPLACE: Laplace's distribution, truncated to the bounds.
    :cvar LOGISTIC: The logistic distribution, truncated to the bounds.
    :cvar GUMBEL: Gumbel's distribution of largest values, truncated to the bounds.
    :cvar WEIBULL: Weibull's distribution of this scale, with the location as its concentration, truncated to the
        bounds, which are not negative.
    :cvar GAMMA: The gamma distribution of this scale, with the location as its concentration, truncated to the bounds,
        which are not negative.
    :cvar INVERSE_GAMMA: The distribution of the scale divided by a gamma variable of scale 1, with the location as its
        concentration, truncated to the bounds, which are not negative.
    :cvar CAUCHY: Cauchy's distribution, truncated to the bounds.
    :cvar STUDENT: Student's t distribution of this scale around zero, with the location as its degrees of freedom,
        truncated to the bounds.
    :cvar MIXTURE: Mixtures of variables of one of the families above.
    """

    UNIFORM = 0
    NORMAL = 1
    LOG_NORMAL = 2
    EXPONENTIAL = 3
    LAPLACE = 4
    LOGISTIC = 5
    GUMBEL = 6
    WEIBULL = 7
    GAMMA = 8
    INVERSE_GAMMA = 9
    CAUCHY = 10
    STUDENT = 11
    MIXTURE = 12
