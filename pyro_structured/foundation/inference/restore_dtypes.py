"""Samples with the dtypes of their sites."""

__all__ = ["restore_dtypes"]

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.foundation.ops.private_members import is_plate


def restore_dtypes(
    samples: dict[str, Tensor], model: Callable[..., Any], *args: Any, **kwargs: Any
) -> dict[str, Tensor]:
    """Gives each site the dtype that it has in the model.

    Pyro's ``MCMC`` joins all sites of a draw in one tensor: integers become floats, and float32 becomes float64 next to
    float64. Floats that were integers are exact as long as all integers up to them are floats, below 2^24 for float32;
    larger ones were rounded without notice.

    :param dict samples: Samples from ``mcmc.get_samples()``, with any number of leading axes.
    :param model: The Pyro model, which is run once with these arguments.
    :raises ValueError: if a name is not a sample site of the model; if values of integer sites are no integers, or so
        large that they may have been rounded.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> def model():
        ...     pyro.sample("k", dist.Categorical(torch.ones(3)))
        >>> restore_dtypes({"k": torch.tensor([2.0, 0.0])}, model)
        {'k': tensor([2, 0])}
    """
    if not isinstance(samples, Mapping) or not all(isinstance(value, Tensor) for value in samples.values()):
        raise ValueError(f"samples: expected a dictionary of tensors by the names of sites, got {samples!r}")
    if not callable(model):
        raise ValueError(f"model: expected a Pyro model, got {model!r}")
    with torch.no_grad(), poutine.block():
        trace: Any = poutine.trace(NamedLatents(model)).get_trace(*args, **kwargs)
    nodes = trace.iter_stochastic_nodes()
    dtypes = {name: node["value"].dtype for name, node in nodes if not is_plate(node["fn"])}
    unknown = sorted(set(samples) - set(dtypes), key=str)
    if unknown:
        raise ValueError(f"samples: expected latent sites of the model, {sorted(dtypes)}, got {unknown}")
    return {name: _restored(name, value, dtypes[name]) for name, value in samples.items()}


def _restored(name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    restored = value.to(dtype)
    if dtype.is_floating_point or not value.is_floating_point():
        return restored
    if bool((restored.to(value.dtype) != value).any()):
        raise ValueError(
            f"{name}: expected values of {dtype}, the dtype of this site in the model, got "
            f"{float(value[restored.to(value.dtype) != value][0]):g}"
        )
    limit = 2 / torch.finfo(value.dtype).eps
    if bool((value.abs() >= limit).any()):
        raise ValueError(
            f"{name}: expected integers below {limit:.0f} in absolute value, as larger ones are rounded in "
            f"{value.dtype}, got up to {float(value.abs().max()):.0f}; in chains with a float64 site none are rounded"
        )
    return restored
