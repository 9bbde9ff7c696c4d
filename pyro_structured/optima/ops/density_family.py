"""Families of distributions of single numbers between bounds."""

__all__ = ["DensityFamily"]

from enum import IntEnum


class DensityFamily(IntEnum):
    """Families of distributions with a location, a scale and two bounds.

    :cvar UNIFORM: The same density everywhere between the bounds; location and scale are of no importance.
    :cvar NORMAL: The normal distribution with this mean and standard deviation, between the bounds.
    :cvar LOG_NORMAL: The exponential of such a variable; the bounds are those of the exponential.
    :cvar EXPONENTIAL: The exponential distribution with this scale as its mean, between the bounds; the location is of
        no importance.
    """

    UNIFORM = 0
    NORMAL = 1
    LOG_NORMAL = 2
    EXPONENTIAL = 3
