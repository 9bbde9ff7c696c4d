"""Warnings about unreliable estimates."""

__all__ = ["EstimateWarning", "warn_of_spread"]

import warnings

from torch import Tensor

from pyro_structured.foundation.ops.user_frame import frames_below_user

# Largest standard error, in nats, with which it and the estimate of a logarithm can be relied on.
LARGEST_ERROR = 0.5


class EstimateWarning(UserWarning):
    """The standard error of an estimated logarithm is above 0.5: neither it nor the estimate can be relied on.

    Logarithms of means have skewed distributions then: estimates are too small, and intervals of two standard errors
    to both sides miss what they should cover. More particles or samples help.

    Example::

        >>> import warnings
        >>> warnings.simplefilter("error", EstimateWarning)  # stops where an estimate says little
    """


def warn_of_spread(estimator: object, standard_error: Tensor) -> None:
    """Issues an :class:`EstimateWarning` that names the estimator if some standard error is above 0.5 nats.

    The text does not contain the standard errors, so that Python shows it only once in a loop.

    :param Tensor standard_error: Standard errors, of any shape, possibly infinite.
    """
    if bool((standard_error > LARGEST_ERROR).any()):
        warnings.warn(
            f"estimated logarithms: expected standard errors up to {LARGEST_ERROR}, got larger ones of {estimator!r}; "
            "neither estimates nor standard errors can be relied on then; take more particles or samples, or see "
            "the standard errors that estimate_log_prob returns for the values that are concerned",
            EstimateWarning,
            stacklevel=frames_below_user(),
        )
