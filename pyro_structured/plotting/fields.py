"""Pictures of fields: labels, probabilities, and patterns."""

__all__ = ["plot_field", "plot_patterns"]

import math
from typing import Any

import numpy as np

from pyro_structured.plotting.arrays import as_array, current_axes


def plot_field(values: Any, ax: Any = None, title: str | None = None, **options: Any) -> Any:
    """Draws one number for each pixel: labels, probabilities, or what is known of them.

    :param values: Shape ``(H, W)``; NaN where nothing is known, which is left white.
    :param ax: Matplotlib axes; ``None``: the current ones.
    :param str title: Of the axes.
    :param options: For ``Axes.imshow``; numbers from 0 to 1 are drawn from black to white, others over their range.
    :return: The axes.
    :raises ValueError: if the shape is another one, or there is no pixel.

    Example::

        >>> from matplotlib.figure import Figure
        >>> ax = plot_field([[0, 1], [1, 0.5]], title="labels", ax=Figure().subplots())
        >>> ax.images[0].get_array().shape, ax.get_title()
        ((2, 2), 'labels')
    """
    picture, ax = as_array("values", values, "(H, W)", None, None), current_axes(ax)
    if not picture.size:
        raise ValueError(f"values: expected at least one pixel, got shape {picture.shape}")
    known = picture[np.isfinite(picture)]
    if not len(known) or (known.min() >= 0 and known.max() <= 1):
        options = {"vmin": 0.0, "vmax": 1.0, "cmap": "gray", **options}
    ax.imshow(picture, **options)
    ax.set(xticks=[], yticks=[])
    if title is not None:
        ax.set_title(title)
    return ax


def plot_patterns(
    weights: Any, biases: Any = None, ax: Any = None, num_columns: int | None = None, cmap: str = "RdBu_r"
) -> Any:
    """Draws the weights of patterns side by side, all on one scale around zero: positive ones are what patterns favour.

    :param weights: Weights of J patterns, shape ``(J, H, W)``, as those of ``PatternCRF``.
    :param biases: Their biases, shape ``(J,)``, written above them; ``None``: none.
    :param ax: Matplotlib axes; ``None``: the current ones.
    :param int num_columns: Number of patterns in a row; ``None``: about as many as there are rows.
    :param str cmap: A diverging colour map.
    :return: The axes; ``ax.images[0]`` is what a colour bar takes.
    :raises ValueError: if a shape is another one, or there is no pattern.

    Example::

        >>> from matplotlib.figure import Figure
        >>> ax = plot_patterns([[[1.0, -2.0]], [[0.5, 0.0]]], biases=[0.1, -0.3], ax=Figure().subplots())
        >>> ax.images[0].get_clim(), [text.get_text() for text in ax.texts]
        ((-2.0, 2.0), ['0.1', '-0.3'])
    """
    patterns = as_array("weights", weights, "(J, H, W)", None, None, None)
    number, height, width = patterns.shape
    if not patterns.size:
        raise ValueError(f"weights: expected at least one pattern of one pixel, got shape {patterns.shape}")
    labels = None if biases is None else as_array("biases", biases, f"({number},)", number)
    if num_columns is not None and (isinstance(num_columns, bool) or not 1 <= num_columns):
        raise ValueError(f"num_columns: expected a positive integer, got {num_columns!r}")
    columns = min(number, num_columns or math.ceil(math.sqrt(number * height / width)))
    gap = max(1, round(0.08 * max(height, width)))
    head = gap if labels is None else gap + max(2, round(0.2 * height))
    rows = math.ceil(number / columns)
    mosaic = np.full((rows * (height + head) - gap + (head - gap), columns * (width + gap) - gap), np.nan)
    ax = current_axes(ax)
    for place, pattern in enumerate(patterns):
        top = (place // columns) * (height + head) + head - gap
        left = (place % columns) * (width + gap)
        mosaic[top : top + height, left : left + width] = pattern
        if labels is not None:
            ax.text(left + (width - 1) / 2, top - 1, f"{labels[place]:.3g}", ha="center", va="bottom", fontsize="small")
    limit = float(np.abs(patterns).max()) or 1.0
    ax.imshow(mosaic, cmap=cmap, vmin=-limit, vmax=limit)
    ax.set_axis_off()
    return ax
