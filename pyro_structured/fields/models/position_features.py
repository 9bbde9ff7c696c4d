"""Where in the picture a pixel is."""

__all__ = ["position_features"]

import numpy as np

from pyro_structured.foundation.structures.argument_checks import check_size


def position_features(height: int, width: int) -> np.ndarray:
    """Describes every pixel of a picture by its place: row, column, their squares and their product.

    Rows and columns go from -1 to 1; 0, if there is a single one. A classifier that sees these beside
    :func:`pixel_features` knows where things are in a typical picture, which is a control for models of shape:
    ``np.concatenate([features, np.broadcast_to(places, (*features.shape[:3], 5))], -1)``.

    :param int height: Number of rows H, at least 1.
    :param int width: Number of columns W, at least 1.
    :return: float32, shape ``(H, W, 5)``.
    :raises ValueError: if a size is not a positive integer.

    Example::

        >>> position_features(2, 3)[1, 0].tolist()
        [1.0, -1.0, 1.0, 1.0, -1.0]
    """
    check_size("height", height)
    check_size("width", width)
    row, column = np.meshgrid(*(_line(size) for size in (height, width)), indexing="ij")
    return np.stack([row, column, row**2, column**2, row * column], -1).astype(np.float32)


def _line(size: int) -> np.ndarray:
    return np.linspace(-1, 1, size) if size > 1 else np.zeros(1)
