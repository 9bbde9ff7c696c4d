"""Errors of steps whose loss or gradient is not finite."""

__all__ = ["ADVICE", "NonFiniteError", "check_gradients", "check_loss", "check_values", "nonfinite_gradient"]

import math
from collections.abc import Mapping

import torch
from torch import Tensor

ADVICE = "nothing was changed; on_nonfinite='skip' goes on with the next step"


class NonFiniteError(ValueError):
    """A loss or a gradient that is infinite or not a number.

    :ivar float loss: The loss.
    """

    def __init__(self, message: str, loss: float) -> None:
        super().__init__(message)
        self.loss = loss


def check_loss(loss: float) -> None:
    """Raises an error unless a loss is finite."""
    if not math.isfinite(loss):
        raise NonFiniteError(f"model: expected a finite loss, got {loss}; {ADVICE}", loss)


def check_gradients(params: Mapping[str, Tensor], loss: float) -> None:
    """Raises an error, with the name of a parameter, unless all gradients are finite."""
    wrong = nonfinite_gradient(params)
    if wrong is not None:
        raise NonFiniteError(f"{wrong}, at a loss of {loss:.6g}; {ADVICE}", loss)


def nonfinite_gradient(params: Mapping[str, Tensor]) -> str | None:
    """Description, with the name of a parameter, of a gradient that is not finite, or ``None`` if all are finite."""
    gradients = {name: _entries(param.grad) for name, param in params.items() if param.grad is not None}
    good = {name: entries.isfinite().all() for name, entries in gradients.items()}
    devices = {finite.device for finite in good.values()}
    # One synchronisation with each device, if all gradients are finite.
    if all(bool(torch.stack([finite for finite in good.values() if finite.device == here]).all()) for here in devices):
        return None
    name = next(name for name, finite in good.items() if not finite)
    wrong, entries = gradients[name], gradients[name].numel()
    count = int((~wrong.isfinite()).sum())
    return f"{name}: expected a finite gradient, got {_first(wrong)} in {count} of {entries} entries"


def check_values(params: Mapping[str, Tensor]) -> None:
    """Raises an error, with the name of a parameter, unless all values of a search are finite."""
    for name, param in params.items():
        if not bool(param.isfinite().all()):
            got = _first(param.detach())
            raise NonFiniteError(f"{name}: expected finite numbers in the search, got {got}; {ADVICE}", math.nan)


def _entries(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _first(entries: Tensor) -> float:
    return float(entries[~entries.isfinite()][0])
