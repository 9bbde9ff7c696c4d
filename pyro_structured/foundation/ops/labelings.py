"""All labelings of a few pixels."""

__all__ = ["MOST_PIXELS", "all_labelings", "number_of_labelings"]

import math

import torch
from torch import Tensor

# Labelings of more pixels are never enumerated; of pixels with more than two labels, as many labelings.
MOST_PIXELS = 18


def number_of_labelings(number: int, num_labels: int = 2) -> int | None:
    """How many there are of so many pixels, or ``None`` if they are never enumerated.

    Example::

        >>> number_of_labelings(3), number_of_labelings(2, 3), number_of_labelings(1000)
        (8, 9, None)
    """
    return num_labels**number if number * math.log2(num_labels) <= MOST_PIXELS else None


def all_labelings(number: int, like: Tensor, num_labels: int = 2) -> Tensor:
    """Integers below K in lexicographic order, shape ``(K ** number, number)``.

    :param Tensor like: Says the dtype and the device.
    :param int num_labels: K.

    Example::

        >>> all_labelings(2, torch.zeros(())).tolist()
        [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    units = num_labels ** torch.arange(number - 1, -1, -1, device=like.device)
    return (torch.arange(num_labels**number, device=like.device).unsqueeze(-1) // units % num_labels).to(like.dtype)
