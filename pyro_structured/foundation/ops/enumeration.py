"""All values of a few discrete variables."""

__all__ = [
    "ENUMERATION_CAP",
    "MOST_PIXELS",
    "all_labelings",
    "enumerate_joint_states",
    "enumerate_values",
    "is_enumerable",
    "number_of_labelings",
]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# More values are never enumerated.
ENUMERATION_CAP = 2**12
TOO_MANY = f"enumerate_support: expected at most {ENUMERATION_CAP} values, got "
INSTEAD = "use condition(), marginals and sample(), which are exact and need no enumeration"


def is_enumerable(num_variables: int, num_categories: int = 2) -> bool:
    """Whether the variables have at most ``2 ** 12`` joint values."""
    return bool(num_categories**num_variables <= ENUMERATION_CAP)


def enumerate_values(
    num_variables: int, num_categories: int, batch_shape: torch.Size, expand: bool, like: Tensor
) -> Tensor:
    """All values in lexicographic order, as ``enumerate_support`` of a distribution of vectors returns them.

    :param int num_variables: Length of the vectors.
    :param int num_categories: Number of values of each entry.
    :param torch.Size batch_shape: Batch shape of the distribution.
    :param bool expand: Whether to repeat the values over the batch, whose axes have a length of one otherwise.
    :param Tensor like: A tensor with the dtype and the device of the result.
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
    """All values in lexicographic order, as of :func:`enumerate_values`, for variables with different numbers of
    states.

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


# Labelings of more pixels are never enumerated; of pixels with more than two labels, as many labelings.
MOST_PIXELS = 18


def number_of_labelings(number: int, num_labels: int = 2) -> int | None:
    """Number of labelings of ``number`` pixels, or ``None`` if they are never enumerated.

    Example::

        >>> number_of_labelings(3), number_of_labelings(2, 3), number_of_labelings(1000)
        (8, 9, None)
    """
    return num_labels**number if number * math.log2(num_labels) <= MOST_PIXELS else None


def all_labelings(number: int, like: Tensor, num_labels: int = 2) -> Tensor:
    """All labelings of ``number`` pixels, integers below K in lexicographic order, shape ``(K ** number, number)``.

    :param Tensor like: A tensor with the dtype and the device of the result.
    :param int num_labels: Number of labels, K.

    Example::

        >>> all_labelings(2, torch.zeros(())).tolist()
        [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    units = num_labels ** torch.arange(number - 1, -1, -1, device=like.device)
    return (torch.arange(num_labels**number, device=like.device).unsqueeze(-1) // units % num_labels).to(like.dtype)
