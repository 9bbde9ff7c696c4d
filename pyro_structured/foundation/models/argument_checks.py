"""Checks of data for estimators."""

__all__ = [
    "check_binary",
    "check_count",
    "checked_array",
    "checked_masks",
    "checked_numbers",
    "checked_pictures",
    "checked_weights",
    "listed_columns",
    "picture_scale",
    "plain_array",
    "remedy",
    "weighted_mean",
]

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from pyro_structured.foundation.structures.argument_checks import check_size

# Largest weight of a row: sums of larger ones, times log-probabilities, might overflow. Smoothing and evidence are in
# the same units as weights, which are therefore not rescaled.
MOST_WEIGHT = 1e290
# Possible numbers of channels: grey, colours, colours and opacity.
CHANNELS = (1, 3, 4)
# Largest number of columns that a message names.
MOST_LISTED = 10
# Largest number of anything that is counted: longer loops would not end, and larger arrays not fit into memory.
MOST_COUNTED = 2**31 - 1


def check_count(name: str, value: Any, most: int = MOST_COUNTED) -> None:
    """Raises a ValueError, with the argument's name, unless it is an integer of at least 1 that is not too large."""
    check_size(name, value)
    if value > most:
        raise ValueError(f"{name}: expected an integer of at most {most}, got {value!r}")


def plain_array(values: Any, name: str = "X") -> Any:
    """Array of a tensor on any device, in any precision and with or without a gradient; of a masked array, with NaN or
    NaT where it is masked; other values as they are.

    :raises ValueError: for tensors that numpy cannot represent, masked arrays of several fields, and data frames with
        several columns of one name.
    """
    if not getattr(getattr(values, "columns", None), "is_unique", True):
        raise ValueError(f"{name}: expected columns with different names, got {list(values.columns)}")
    if isinstance(values, np.ma.MaskedArray):
        return _with_gaps(values, name)
    if not isinstance(values, Tensor):
        return values
    strange = values.dtype.is_floating_point and values.dtype not in (torch.float16, torch.float32, torch.float64)
    try:
        tensor = values.detach().cpu()
        return (tensor.float() if strange else tensor).numpy()
    except (NotImplementedError, TypeError) as error:
        raise ValueError(f"{name}: expected a dense tensor of numbers, got another: {error}") from None


def _with_gaps(values: np.ma.MaskedArray, name: str) -> np.ndarray:
    data: np.ndarray = values.data
    if data.dtype.kind == "V":
        raise ValueError(f"{name}: expected a masked array of single values, got {data.dtype}")
    masked = np.ma.getmaskarray(values)
    if not masked.any():
        return data
    if data.dtype.kind in "mM":
        return np.where(masked, np.array("NaT", data.dtype), data)
    # Booleans stay what they are, and large integers different.
    is_exact = data.dtype.kind in "iu" and bool((np.abs(data[~masked].astype(np.float64)) < 2.0**53).all())
    kind = data.dtype if data.dtype.kind == "f" else np.float64 if is_exact else object
    return np.where(masked, np.nan, data.astype(kind))


def listed_columns(estimator: Any, places: Sequence[int] | np.ndarray) -> str:
    """Columns of the data that an estimator has seen, for a message: their names, or numbers."""
    names = getattr(estimator, "feature_names_in_", range(estimator.n_features_in_))
    shown = ", ".join(repr(names[place]) for place in places[:MOST_LISTED])
    more = len(places) - MOST_LISTED
    return f"column{'s' * (len(places) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")


def check_binary(values: Any, fewest_columns: int = 1) -> None:
    """Raises a ValueError unless values are a matrix of zeros and ones."""
    if not isinstance(values, Tensor) or values.dim() != 2 or len(values) < 1 or values.shape[1] < fewest_columns:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            "values: expected a tensor of shape (N, n) with N of at least 1 and n of at least "
            f"{fewest_columns}, got {got}"
        )
    if values.layout != torch.strided or values.is_complex():
        raise ValueError(f"values: expected a dense tensor of real numbers, got {values.dtype}, {values.layout}")
    if not bool(((values == 0) | (values == 1)).all()):
        raise ValueError("values: expected zeros and ones, got other numbers")


def checked_weights(sample_weight: Any, number: int) -> np.ndarray:
    """Weights of the rows, shape ``(number,)``, all 1 for ``None``, or a ValueError."""
    try:
        weights = np.asarray(1.0 if sample_weight is None else plain_array(sample_weight), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight: expected numbers, got others: {error}") from None
    if weights.shape not in ((), (number,)):
        raise ValueError(f"sample_weight: expected shape ({number},), got {weights.shape}")
    if not ((weights >= 0) & (weights <= MOST_WEIGHT)).all() or not weights.any():
        raise ValueError(f"sample_weight: expected numbers from 0 to {MOST_WEIGHT:g}, not all zero, got others")
    return np.broadcast_to(weights, number)


def weighted_mean(values: np.ndarray, sample_weight: Any) -> float:
    """Mean of values with the weights of their rows, ``None`` for equal ones; rows of weight 0 are left out."""
    weights = checked_weights(sample_weight, len(values))
    counted = weights > 0
    return float(np.average(values[counted], weights=weights[counted]))


def checked_numbers(name: str, value: Any) -> tuple[float, ...]:
    """One number or several, finite and at least 0; otherwise, raises a ValueError with the argument's name."""
    numbers = (value,) if isinstance(value, Real) else value
    try:
        checked = tuple(float(number) for number in numbers)
    except (TypeError, ValueError):
        checked = ()
    if not checked or not all(0 <= number < np.inf for number in checked) or isinstance(value, (str, bool)):
        raise ValueError(f"{name}: expected a number of at least 0, or several, got {value!r}")
    return checked


def checked_array(name: str, value: Any) -> np.ndarray:
    """Array of any values, or an error for pictures of several sizes, masked entries and sparse matrices.

    :raises TypeError: for sparse data, in scikit-learn's words.
    """
    if issparse(value):
        raise TypeError(
            f"Sparse data was passed for {name}, but dense data is required. Use '.toarray()' to convert to a dense "
            "numpy array."
        )
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        raise ValueError(f"{name}: expected an array without masked entries, got some")
    try:
        return np.asarray(plain_array(value, name))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected an array, of pictures of one size, got others: {error}") from None


def checked_pictures(images: Any, name: str = "images") -> np.ndarray:
    """Colours from 0 to 1, float64, shape ``(N, H, W, 3)``, or a ValueError.

    Grey pictures have three equal colours; transparent pixels are in front of white.
    """
    pictures = checked_array(name, images)
    shape = pictures.shape
    # Grey pictures three pixels wide look like one colour picture.
    grey = len(shape) == 3 and shape[-1] != 3
    if not (grey or (len(shape) == 4 and shape[-1] in CHANNELS)) or 0 in shape[1:3]:
        raise ValueError(
            f"{name}: expected shape (N, H, W, 3), got {shape}, or (N, H, W) or (N, H, W, 1) if grey, or (N, H, W, 4) "
            f"with transparency{remedy(shape, name)}"
        )
    scale = picture_scale(pictures.dtype)
    if not scale:
        raise ValueError(f"{name}: expected uint8, uint16, booleans or floats from 0 to 1, got {pictures.dtype}")
    levels = pictures.astype(np.float64) / scale
    if not ((levels >= 0) & (levels <= 1)).all():
        raise ValueError(f"{name}: expected floats from 0 to 1, got {levels.min()} to {levels.max()}")
    levels = levels[..., None] if grey else levels
    if levels.shape[-1] == 4:
        return 1 - (1 - levels[..., :3]) * levels[..., 3:]
    return np.broadcast_to(levels, (*levels.shape[:3], 3))


def picture_scale(dtype: np.dtype[Any]) -> float:
    """Full intensity of pictures of a dtype; 0 if pictures cannot have this dtype."""
    if dtype.kind in "bf":
        return 1.0
    return float(np.iinfo(dtype).max) if dtype in (np.uint8, np.uint16) else 0.0


def remedy(shape: tuple[int, ...], name: str) -> str:
    """Remedy of a usual mistake about the shape of pictures, for a message; empty if there is none."""
    if len(shape) == 2 or (len(shape) == 3 and shape[-1] in CHANNELS):
        return f"; a single picture has to be {name}[None]"
    if len(shape) == 4 and shape[1] in CHANNELS and shape[-1] not in CHANNELS:
        return f"; channels come last: {name}.transpose(0, 2, 3, 1)"
    return ""


def checked_masks(masks: Any, shape: tuple[int, ...], name: str = "masks") -> np.ndarray:
    """Masks of pictures, booleans, or a ValueError unless they are zeros and ones of this shape, ``(N, H, W)``."""
    labels = checked_array(name, masks)
    if labels.shape != shape:
        change = f"; without its last axis: {name}[..., 0]" if labels.shape == (*shape, 1) else ""
        raise ValueError(f"{name}: expected shape {shape}, one number for each pixel, got {labels.shape}{change}")
    if labels.dtype.kind not in "biuf" or not ((labels == 0) | (labels == 1)).all():
        change = ""
        if labels.dtype.kind in "iuf" and ((labels == 0) | (labels == 255)).all():
            change = f"; those of 0 and 255 are {name} > 0"
        raise ValueError(f"{name}: expected zeros and ones, got others{change}")
    return labels.astype(bool)
