"""What a model observes in a step of learning."""

__all__ = ["ObservedBatch"]

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class ObservedBatch:
    """A run of a model with the present parameters.

    :ivar args: Positional arguments of the model.
    :ivar kwargs: Its keyword arguments.
    :ivar trace: Of the model; what is latent is drawn from its distribution, or from the guide.
    :ivar rows: The rows of every plate.
    """

    args: Any
    kwargs: Any
    trace: Any
    rows: dict[str, Tensor]
