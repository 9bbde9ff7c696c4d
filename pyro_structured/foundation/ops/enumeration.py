"""All values of a few discrete variables."""

__all__ = ["ENUMERATION_CAP", "enumerate_joint_states", "enumerate_values", "is_enumerable"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# More values are never enumerated.
ENUMERATION_CAP = 2**12
TOO_MANY = f"enumerate_support: expected at most {ENUMERATION_CAP} values, got "
INSTEAD = "use condition(), marginals and sample(), which are exact and need no enumeration"


def is_enumerable(num_variables: int, num_categories: int = 2) -> bool:
    """Whether there are at most ``2 ** 12`` values."""
    return bool(num_categories**num_variables <= ENUMERATION_CAP)


def enumerate_values(
    num_variables: int, num_categories: int, batch_shape: torch.Size, expand: bool, like: Tensor
) -> Tensor:
    """All values in lexicographic order, as ``enumerate_support`` of a distribution of vectors returns them.

    :param int num_variables: Length of the vectors.
    :param int num_categories: Entries are integers below it.
    :param torch.Size batch_shape: That of the distribution.
    :param bool expand: Whether to repeat the values over the batch, whose axes have a length of one otherwise.
    :param Tensor like: Says the dtype and the device.
    :return: Shape ``(num_categories ** num_variables,) + batch_shape + (num_variables,)``.
    :raises NotImplementedError: if there are more than ``2 ** 12`` values.

    Example::

        >>> enumerate_values(2, 2, torch.Size(), True, like=torch.zeros(())).tolist()
        [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    if not is_enumerable(num_variables, num_categories):
        raise NotImplementedError(f"{TOO_MANY}{num_categories}**{num_variables}; {INSTEAD}")
    return enumerate_joint_states([num_categories] * num_variables, batch_shape, expand, like)


def enumerate_joint_states(cardinalities: Sequence[int], batch_shape: torch.Size, expand: bool, like: Tensor) -> Tensor:
    """As :func:`enumerate_values`, for variables with different numbers of states.

    Example::

        >>> enumerate_joint_states([1, 3], torch.Size(), True, like=torch.zeros(())).tolist()
        [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]
    """
    number = math.prod(cardinalities)
    if number > ENUMERATION_CAP:
        raise NotImplementedError(f"{TOO_MANY}{number}; {INSTEAD}")
    states = torch.arange(number, device=like.device).unsqueeze(-1)
    sizes = torch.tensor(cardinalities, device=like.device)
    strides = number // sizes.cumprod(0)
    values = (states // strides % sizes).to(like.dtype)
    values = values.reshape(number, *(1,) * len(batch_shape), len(cardinalities))
    return values.expand(-1, *batch_shape, -1) if expand else values
