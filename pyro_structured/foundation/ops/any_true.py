"""Conditions on values of tensors, under function transforms too."""

__all__ = ["any_true"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.ops.private_members import is_transformed


def any_true(condition: Tensor) -> bool:
    """Whether a condition holds anywhere, for any row of ``torch.vmap`` too.

    :param Tensor condition: Booleans.

    Example::

        >>> any_true(torch.tensor([False, True]))
        True
    """
    # Outside of function transforms, which is nearly always, there is no need for the detour.
    if not is_transformed():
        return bool(condition.any())
    seen: list[bool] = []
    _Look.apply(condition, seen.append)  # type: ignore[no-untyped-call]
    return seen[0]


class _Look(torch.autograd.Function):
    """Reports a condition on values, whatever function transforms are active outside."""

    @staticmethod
    def forward(condition: Tensor, report: Callable[[bool], None]) -> Tensor:
        report(bool(condition.any()))
        return condition.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None], condition: Tensor, report: Callable[[bool], None]
    ) -> tuple[Tensor, int]:
        report(any_true(condition))
        return condition, in_dims[0]
