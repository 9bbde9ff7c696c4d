"""Pictures of fields: labels, probabilities, patterns, and what they are of."""

__all__ = ["plot_field", "plot_patterns", "plot_pictures"]

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyro_structured.plotting.arrays import as_array, current_axes


def plot_field(values: Any, ax: Any = None, title: str | None = None, **options: Any) -> Any:
    """Draws one number for each pixel: labels, probabilities, or what is known of them.

    :param values: Shape ``(H, W)``; NaN where nothing is known, which is left white.
    :param ax: Matplotlib axes; ``None``: the current ones.
    :param str title: Title of the axes.
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
    options = {**_limits(picture), **options}
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
    gap = _gap(height, width)
    head = gap if labels is None else gap + max(2, round(0.2 * height))
    rows = math.ceil(number / columns)
    corners = [
        ((place // columns) * (height + head) + head - gap, (place % columns) * (width + gap))
        for place in range(number)
    ]
    mosaic = np.full((rows * (height + head) - gap, columns * (width + gap) - gap), np.nan)
    ax = current_axes(ax)
    for place, ((top, left), pattern) in enumerate(zip(corners, patterns, strict=True)):
        mosaic[top : top + height, left : left + width] = pattern
        if labels is not None:
            ax.text(left + (width - 1) / 2, top - 1, f"{labels[place]:.3g}", ha="center", va="bottom", fontsize="small")
    limit = float(np.abs(patterns).max()) or 1.0
    ax.imshow(mosaic, cmap=cmap, vmin=-limit, vmax=limit)
    ax.set_axis_off()
    return ax


def plot_pictures(rows: Sequence[Any], names: Sequence[str] | None = None, ax: Any = None, **options: Any) -> Any:
    """Draws rows of pictures of one size as a table: images, their masks, predictions.

    :param rows: R sequences of as many pictures: numbers of shape ``(P, H, W)``, or colours, from 0 to 1 or integers
        from 0 to 255, of shape ``(P, H, W, 3)``.
    :param names: Names of the R rows, written at their left; ``None``: none.
    :param ax: Matplotlib axes; ``None``: the current ones.
    :param options: ``cmap``, ``vmin`` and ``vmax`` of numbers, which are drawn from black to white: those of a row from
        0 to 1 if they are, others over their range.
    :return: The axes.
    :raises ValueError: if there are no pictures, or a shape is another one.

    Example::

        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> rows = [torch.rand(3, 8, 8, 3), torch.rand(3, 8, 8) > 0.5]
        >>> ax = plot_pictures(rows, ["picture", "mask"], ax=Figure().subplots())
        >>> ax.images[0].get_array().shape, [label.get_text() for label in ax.get_yticklabels()]
        ((17, 26, 4), ['picture', 'mask'])
    """
    from matplotlib.cm import ScalarMappable

    if names is not None and len(names) != len(rows):
        raise ValueError(f"names: expected {len(rows)}, one for each row, got {len(names)}")
    if not len(rows):
        raise ValueError("rows: expected at least one, got none")
    tables: list[np.ndarray] = []
    for row in rows:
        size: tuple[int | None, ...] = tables[0].shape[:3] if tables else (None, None, None)
        shape = f"{size} or {(*size, 3)}" if tables else "(P, H, W) or (P, H, W, 3)"
        if not len(row):
            raise ValueError("rows: expected at least one picture in each, got none")
        colored = np.ndim(row[0]) == 3
        table = as_array("rows", row, f"{shape} in each row", *size, *([3] if colored else []))
        if colored:
            whole = table / 255 if table.size and table.max() > 1 else table
            table = np.concatenate([whole, np.ones_like(whole[..., :1])], -1)
        else:
            colors = {"cmap": "gray", **_limits(table), **options}
            drawn = ScalarMappable(cmap=colors["cmap"])
            drawn.set_clim(colors["vmin"], colors["vmax"])
            table = drawn.to_rgba(np.ma.masked_invalid(table.reshape(-1, table.shape[-1]))).reshape(*table.shape, 4)
        tables.append(table)
    number, height, width = tables[0].shape[:3]
    gap = _gap(height, width)
    mosaic = np.ones((len(tables) * (height + gap) - gap, number * (width + gap) - gap, 4))
    for row, table in enumerate(tables):
        for column, picture in enumerate(table):
            top, left = row * (height + gap), column * (width + gap)
            mosaic[top : top + height, left : left + width] = picture
    ax = current_axes(ax)
    ax.imshow(mosaic)
    middles = np.arange(len(tables)) * (height + gap) + (height - 1) / 2
    ax.set_xticks([])
    ax.set_yticks(middles if names is not None else [], names if names is not None else [])
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    return ax


def _gap(height: int, width: int) -> int:
    """Pixels between two pictures."""
    return max(1, round(0.08 * max(height, width)))


def _limits(picture: np.ndarray) -> dict[str, Any]:
    """Options for numbers: from black to white if they are from 0 to 1, else over their range."""
    known = picture[np.isfinite(picture)]
    if not len(known) or (known.min() >= 0 and known.max() <= 1):
        return {"vmin": 0.0, "vmax": 1.0, "cmap": "gray"}
    return {"vmin": known.min(), "vmax": known.max()}
