"""What a user is told where log-potentials are so large that digits are lost."""

__all__ = ["PrecisionWarning", "warn_of_lost_digits"]

import warnings

import torch
from torch import Tensor

from pyro_structured.foundation.ops.private_members import is_transformed
from pyro_structured.foundation.ops.user_frame import frames_below_user

_MESSAGES = (
    "the partition function is certified to no better than 1e-6, and with it log_prob and count_marginals",
    "a marginal log-odds is certified to no better than 1e-3",
)


class PrecisionWarning(UserWarning):
    """Log-potentials are so large, and cancel so badly, that probabilities have lost digits.

    The attribute ``certificate`` of the distribution tells the bounds on the errors. It is given on the processor only,
    and not under ``torch.vmap`` or ``torch.compile``: there, only the certificate tells.

    Example::

        >>> issubclass(PrecisionWarning, UserWarning)
        True
    """


def warn_of_lost_digits(lost: Tensor) -> None:
    """Warns, once for each place of a user's program, if digits were lost anywhere.

    :param Tensor lost: Booleans of shape ``(..., 2)``: whether the bounds on the errors of log Z, and of some log-odds,
        are too large.
    """
    if lost.device.type != "cpu" or torch.compiler.is_compiling() or is_transformed():
        return
    if not bool(lost.any()):
        return
    # The text never changes, so that the standard filter shows it once for each place.
    found = " and ".join(text for text, bad in zip(_MESSAGES, lost.reshape(-1, 2).any(0).tolist(), strict=True) if bad)
    warnings.warn(
        f"logits, count_logits: log-potentials are so large that digits were lost; {found}; `certificate` tells the "
        "bounds. Subtract large terms that cancel, such as a * c in a table against -a in logits, before small ones "
        "are added to them; then give float64, or scale the parameters down",
        PrecisionWarning,
        stacklevel=frames_below_user(),
    )
