"""Comparisons whose errors tell the expected and the actual result."""

__all__ = ["expect", "expect_close", "expect_raises", "expect_shape"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def expect(condition: object, message: str) -> None:
    """Raises an ``AssertionError`` unless something holds; asserts may be switched off, this may not.

    Example::

        >>> expect(1 + 1 == 2, "arithmetic")
    """
    if not condition:
        raise AssertionError(message)


def expect_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Compares a shape.

    Example::

        >>> expect_shape("zeros", torch.zeros(3), (2,))
        Traceback (most recent call last):
            ...
        AssertionError: zeros: expected shape (2,), got (3,)
    """
    expect(tensor.shape == torch.Size(shape), f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")


def expect_close(name: str, actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Compares numbers up to a tolerance that is absolute below 1 and relative above; infinities must be equal.

    Example::

        >>> expect_close("sum", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]), 1e-3)
        Traceback (most recent call last):
            ...
        AssertionError: sum: expected 3 at (1,), got 2 (tolerance 0.001; 1 of 2 entries differ)
    """
    expect_shape(name, actual, expected.shape)
    actual, expected = actual.detach().double().cpu(), expected.detach().double().cpu()
    error = (actual - expected).abs()
    wrong = ~((error <= tolerance * expected.abs().clamp(min=1.0)) | (actual == expected))
    if bool(wrong.any()):
        index = tuple(wrong.nonzero()[0].tolist())
        where = f" at {index}" if index else ""
        raise AssertionError(
            f"{name}: expected {expected[index].item():.10g}{where}, got {actual[index].item():.10g} (tolerance "
            f"{tolerance:g}; {int(wrong.sum())} of {wrong.numel()} entries differ)"
        )


def expect_raises(name: str, kinds: tuple[type[Exception], ...], action: Callable[[], Any]) -> None:
    """Expects an exception of one of several kinds.

    Example::

        >>> expect_raises("int", (ValueError,), lambda: int("1"))
        Traceback (most recent call last):
            ...
        AssertionError: int: expected ValueError, but nothing was raised
    """
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        action()
    except kinds:
        return
    except Exception as error:
        raise AssertionError(f"{name}: expected {names}, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"{name}: expected {names}, but nothing was raised")
