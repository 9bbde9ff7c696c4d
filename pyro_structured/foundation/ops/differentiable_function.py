"""Functions with derivatives of their own."""

__all__ = ["DifferentiableFunction"]

import inspect
from typing import Any

import torch


class DifferentiableFunction(torch.autograd.Function):
    """An autograd function that keeps the signature of its ``forward``, which torch would find anew at each call.

    Example::

        >>> class Double(DifferentiableFunction):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        >>> Double.apply(torch.ones(2))
        tensor([2., 2.])
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        forward: Any = cls.forward
        forward.__signature__ = inspect.signature(forward)
