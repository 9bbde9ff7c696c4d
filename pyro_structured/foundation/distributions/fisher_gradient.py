"""Estimated logarithms whose gradient is an estimate, too."""

__all__ = ["with_gradient_of"]

from typing import Any

import torch
from torch import Tensor

_FORWARD = (
    "log_prob: an estimated log-probability has no forward-mode derivatives; use torch.func.grad, vjp or jacrev, or "
    "torch.autograd.grad"
)


def with_gradient_of(value: Tensor, log_density: Tensor) -> Tensor:
    r"""A number with the gradient of another one, which can be taken once.

    By Fisher's identity, :math:`\nabla \log \int f = \mathbb{E}[\nabla \log f]` over the normalised f: an estimate of
    the logarithm gets the weighted mean of log-densities whose weights are held fixed.

    :param Tensor value: Without a gradient.
    :param Tensor log_density: Log-density of the same shape.
    """
    found: Tensor = _Fisher.apply(value, log_density)  # type: ignore[no-untyped-call]
    return found


class _Fisher(torch.autograd.Function):
    """A number, with the gradient of another one."""

    @staticmethod
    def forward(log_prob: Tensor, log_density: Tensor) -> Tensor:
        return log_prob.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (log_density,) = ctx.saved_tensors
        once: Tensor = _Once.apply(grad, log_density)  # type: ignore[no-untyped-call]
        return None, once

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        raise NotImplementedError(_FORWARD)


class _Once(torch.autograd.Function):
    """A gradient that has no derivatives, other than that of the log-density of given draws."""

    @staticmethod
    def forward(grad: Tensor, log_density: Tensor) -> Tensor:
        return grad.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Nothing is needed."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        raise NotImplementedError(
            "log_prob: the gradient of an estimated log-probability has no derivatives; take gradients only once"
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        raise NotImplementedError(_FORWARD)
