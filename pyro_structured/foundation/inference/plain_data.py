"""Data that files can keep without pickled code."""

__all__ = ["plain_copy"]

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEAVES = (type(None), bool, int, float, str, torch.Size, torch.dtype, torch.device)
MAPPINGS = (dict, OrderedDict, Counter)


def plain_copy(value: Any, name: str) -> Any:
    """Copy of tensors, numbers and strings, in any containers, that ``torch.load`` reads with ``weights_only=True``.

    :param str name: Name of the value in errors.
    :raises ValueError: if the value has a part of another kind.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.generic):
        return value.item()
    if kind in LEAVES:
        return value
    if kind in MAPPINGS:
        return kind({key: plain_copy(member, f"{name}[{key!r}]") for key, member in value.items()})
    if kind in (list, tuple):
        return kind(plain_copy(member, f"{name}[{number}]") for number, member in enumerate(value))
    raise ValueError(
        f"{name}: expected tensors, numbers, strings, dictionaries, lists and tuples, which torch.load reads with "
        f"weights_only=True, got {kind.__name__}"
    )
