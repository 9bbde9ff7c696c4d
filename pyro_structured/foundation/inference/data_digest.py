"""Fingerprints of data."""

__all__ = ["data_digest"]

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def data_digest(value: Any, name: str = "value") -> str:
    """Digest that is the same for equal data, also in other processes, and different for other data.

    :param value: Tensors, arrays, frames (their entries), numbers, texts, and containers or objects made of these; of
        functions and classes only the name counts.
    :param str name: Name of the value in errors.
    :raises ValueError: if the value has a part of another kind.
    """
    digest = hashlib.sha256()
    for part in _parts(value, name, ()):
        # Lengths separate the parts.
        digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()


def _parts(value: Any, name: str, outer: tuple[Any, ...]) -> Iterator[bytes]:
    yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
    if isinstance(value, PLAIN):
        yield repr(value).encode()
    elif isinstance(value, Tensor):
        yield from _tensor_parts(value.detach())
    elif hasattr(value, "__array__") and not isinstance(value, type):
        array = np.asarray(value)
        if array.dtype == object:
            yield from _parts(array.tolist(), name, outer)
        else:
            yield from (str(array.dtype).encode(), repr(array.shape).encode(), array.tobytes())
    elif hasattr(value, "__qualname__"):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    elif any(value is member for member in outer):
        yield b"itself"
    elif isinstance(value, Set):
        yield from sorted(data_digest(member, name).encode() for member in value)
    elif isinstance(value, (Mapping, Sequence)) or hasattr(value, "__dict__"):
        pairs = enumerate(value) if isinstance(value, Sequence) else _items(value)
        for key, member in pairs:
            yield from (*_parts(key, name, outer), *_parts(member, name, (*outer, value)))
        yield b"end"
    else:
        raise ValueError(
            f"{name}: expected tensors, arrays, numbers, texts and containers of these, so that a later process can "
            f"see whether it has the same data, got {value!r}"
        )


def _items(value: Any) -> Any:
    return (value if isinstance(value, Mapping) else vars(value)).items()


def _tensor_parts(value: Tensor) -> Iterator[bytes]:
    if value.layout is torch.strided:
        yield from (str(value.dtype).encode(), repr(value.shape).encode())
        yield value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    else:
        sparse = value.to_sparse_coo().coalesce()
        yield from (*_tensor_parts(sparse.indices()), *_tensor_parts(sparse.values()))
