"""Gradients of estimated logarithms by Fisher's identity."""

__all__ = ["with_gradient_of"]

from typing import Any

from torch import Tensor

from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction

_FORWARD = (
    "log_prob: an estimated log-probability has no forward-mode derivatives; use torch.func.grad, vjp or jacrev, or "
    "torch.autograd.grad"
)


def with_gradient_of(value: Tensor, log_density: Tensor) -> Tensor:
    r"""Value with the gradient of another tensor, which can be taken once.

    By Fisher's identity, :math:`\nabla \log \int f = \mathbb{E}[\nabla \log f]` over the normalised f: the gradient of
    an estimate of the logarithm is that of a weighted mean of log-densities, with fixed weights.

    :param Tensor value: Estimates, without a gradient.
    :param Tensor log_density: Mean log-densities, of the same shape.
    """
    result: Tensor = _Fisher.apply(value, log_density)  # type: ignore[no-untyped-call]
    return result


class _Fisher(DifferentiableFunction):
    """Value with the gradient of another tensor."""

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


class _Once(DifferentiableFunction):
    """Gradient that raises an error when it is differentiated, unlike that of the log-density of given draws."""

    @staticmethod
    def forward(grad: Tensor, log_density: Tensor) -> Tensor:
        return grad.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Saves nothing for derivatives."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        raise NotImplementedError(
            "log_prob: the gradient of an estimated log-probability has no derivatives; take gradients only once"
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        raise NotImplementedError(_FORWARD)
