"""Validation that batches without any rows pass."""

__all__ = ["ValidatedDistribution"]

from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_structured.foundation.distributions.argument_checks import check_entries, check_validation


class ValidatedDistribution(TorchDistribution):
    """A distribution whose arguments and values are checked where there are any.

    The constraints of torch cannot be checked where there are no rows.
    """

    def __init__(self, batch_shape: Any, event_shape: Any, validate_args: bool | None = None) -> None:
        check_validation(validate_args)
        # Parts of the shapes of tensors whose provenance Pyro tracks are tuples.
        batch_shape, event_shape = torch.Size(batch_shape), torch.Size(event_shape)
        full = batch_shape.numel() > 0
        super().__init__(batch_shape, event_shape, validate_args=validate_args if full else False)

    def _validate_sample(self, value: Tensor) -> None:
        if not isinstance(value, Tensor) or value.numel():
            super()._validate_sample(value)
        else:
            check_entries(self.batch_shape + self.event_shape, len(self.event_shape), value=value)
