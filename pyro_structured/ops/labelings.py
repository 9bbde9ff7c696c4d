"""All labelings of a few pixels."""

__all__ = ["MOST_PIXELS", "all_labelings"]

import torch
from torch import Tensor

# Labelings of more pixels are never enumerated.
MOST_PIXELS = 18


def all_labelings(number: int, like: Tensor) -> Tensor:
    """Zeros and ones in lexicographic order, shape ``(2 ** number, number)``.

    :param Tensor like: Says the dtype and the device.

    Example::

        >>> all_labelings(2, torch.zeros(())).tolist()
        [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    places = torch.arange(number - 1, -1, -1, device=like.device)
    return (torch.arange(2**number, device=like.device).unsqueeze(-1) >> places & 1).to(like.dtype)
