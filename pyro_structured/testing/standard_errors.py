"""Largest distances of right estimates from the truth, at a stated rate of false alarms."""

__all__ = ["FAILURE_RATE", "most_standard_errors"]

from scipy.special import stdtrit

# Of each comparison, as that of six standard errors: all of a correct sampler together fail less often than 1e-6.
FAILURE_RATE = 2e-9


def most_standard_errors(number: float) -> float:
    """The distance from the truth that a mean exceeds with a probability of 2e-9, in its own standard errors.

    That is six if they are known. Where they are found from the spread of the numbers themselves, it is a quantile of
    Student's distribution, far more for few numbers.

    :param float number: How many independent numbers the standard error is found from, at least 2.

    Example::

        >>> [round(most_standard_errors(number), 1) for number in (10, 20, 50, 1000, 1e6)]
        [23.7, 10.6, 7.3, 6.1, 6.0]
    """
    return -float(stdtrit(number - 1, FAILURE_RATE / 2))
