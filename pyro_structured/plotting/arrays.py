"""Numbers and axes as pictures take them."""

__all__ = ["as_array", "current_axes", "require_matplotlib"]

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch


def require_matplotlib() -> None:
    """Raises an ImportError that names the extra unless matplotlib is installed."""
    if find_spec("matplotlib") is None:
        raise ImportError("matplotlib is not installed; python -m pip install 'pyro-structured[plot]' installs it")


def current_axes(ax: Any) -> Any:
    """The given axes, or those of the current figure of pyplot."""
    require_matplotlib()
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.gca()


def as_array(name: str, values: Any, shape: str, *sizes: int | None) -> np.ndarray:
    """A tensor, an array or nested sequences as an array of floats, or a ValueError.

    :param str name: Name of the argument.
    :param str shape: The expected shape, in words.
    :param sizes: The expected size of each axis; ``None``: any.
    """
    try:
        array = np.asarray(_plain(values), dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected numbers of shape {shape}, got {type(values).__name__}") from None
    fits = array.ndim == len(sizes) and all(
        wanted in (None, size) for wanted, size in zip(sizes, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
    return array


def _plain(values: Any) -> Any:
    """Tensors, also those in lists, as arrays."""
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().to(torch.double).numpy()
    return [_plain(value) for value in values] if isinstance(values, (list, tuple)) else values
