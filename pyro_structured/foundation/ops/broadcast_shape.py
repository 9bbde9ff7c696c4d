"""Shapes to which others are broadcast."""

__all__ = ["broadcast_shapes"]

import torch


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
