"""Functions of matrices, applied to tensors with any batch shape and under ``torch.vmap``."""

__all__ = ["broadcast_rows", "broadcast_shapes", "map_rows", "merge_mapped", "narrow_repeated"]

from collections.abc import Callable

import torch
from torch import Tensor


def map_rows(function: Callable[..., tuple[Tensor, ...]], *arguments: object) -> list[Tensor]:
    """Applies a function of matrices to tensors whose leading axes broadcast.

    :param function: Function of tensors of shape ``(rows, size)``, and options, with results of shape ``(rows, ...)``.
    :param arguments: Tensors of shape ``(..., size)``, and options, which are passed on.
    """
    shapes = [x.shape[:-1] for x in arguments if isinstance(x, Tensor)]
    if len(shapes[0]) == 1 and all(shape == shapes[0] for shape in shapes):
        return list(function(*arguments))
    batch = broadcast_shapes(*shapes)
    rows = (
        x.expand(batch + x.shape[-1:]).reshape(batch.numel(), x.shape[-1]) if isinstance(x, Tensor) else x
        for x in arguments
    )
    return [tensor.reshape(batch + tensor.shape[1:]) for tensor in function(*rows)]


def broadcast_shapes(*shapes: tuple[int, ...]) -> torch.Size:
    """Shape to which all shapes are broadcast: :func:`torch.broadcast_shapes`, which takes longer than many a query.

    :raises RuntimeError: if they do not broadcast.

    Example::

        >>> broadcast_shapes((3, 1), (2,), ())
        torch.Size([3, 2])
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return torch.Size(torch.broadcast_shapes(*shapes))
    joined = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis, size in enumerate(reversed(shape), 1):
            if size != joined[-axis] and size != 1:
                if joined[-axis] != 1:
                    return torch.Size(torch.broadcast_shapes(*shapes))
                joined[-axis] = size
    return torch.Size(joined)


def broadcast_rows(*tensors: Tensor) -> list[Tensor]:
    """Tensors of shape ``(..., n)``, each with its own n, expanded to the same leading axes."""
    batch = broadcast_shapes(*(tensor.shape[:-1] for tensor in tensors))
    return [tensor.expand(batch + tensor.shape[-1:]) for tensor in tensors]


def merge_mapped(batch_size: int, in_dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """Makes the axes over which ``torch.vmap`` maps a function part of the rows.

    :param int batch_size: Length of these axes.
    :param in_dims: Position of the axis in each tensor, ``None`` for a tensor without it, which is the same for all.
    :param tensors: Tensors of shape ``(rows, ...)``, or ``(1, ...)``, with this axis in addition.
    :return: Shape ``(batch_size * rows, ...)``.
    """
    moved = [
        tensor.movedim(dim, 0) if dim is not None else tensor.expand(batch_size, *tensor.shape)
        for tensor, dim in zip(tensors, in_dims, strict=False)
    ]
    (rows,) = broadcast_shapes(*(tensor.shape[1:2] for tensor in moved))
    return [tensor.expand(batch_size, rows, *tensor.shape[2:]).flatten(0, 1) for tensor in moved]


def narrow_repeated(tensor: Tensor) -> Tensor:
    """Tensor with length 1 along all axes but the last that expansion has repeated.

    Example::

        >>> narrow_repeated(torch.zeros(3, 1, 2).expand(3, 4, 2)).shape
        torch.Size([3, 1, 2])
    """
    for axis in range(tensor.dim() - 1):
        if tensor.stride(axis) == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor
