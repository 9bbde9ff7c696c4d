"""Largest errors of correct estimates, in standard errors, at a stated rate of false alarms."""

__all__ = ["FAILURE_RATE", "most_standard_errors"]

from scipy.special import stdtrit

# Probability that a comparison of a correct sampler fails, as for six standard errors; for all comparisons, below 1e-6.
FAILURE_RATE = 2e-9


def most_standard_errors(number: float) -> float:
    """The distance from the truth that a mean exceeds with a probability of 2e-9, in its own standard errors.

    The distance is six if standard errors are known. Where they are estimated from the spread of the numbers, it is a
    quantile of Student's distribution, far more for few numbers.

    :param float number: Number of independent numbers from which the standard error is estimated, at least 2.

    Example::

        >>> [round(most_standard_errors(number), 1) for number in (10, 20, 50, 1000, 1e6)]
        [23.7, 10.6, 7.3, 6.1, 6.0]
    """
    return -float(stdtrit(number - 1, FAILURE_RATE / 2))
