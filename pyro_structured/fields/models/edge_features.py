"""Descriptors of pairs of neighbouring pixels, for pairwise terms that depend on the picture."""

__all__ = ["edge_features", "gradient_magnitudes"]

import math
from numbers import Real
from typing import Any

import numpy as np
import scipy.ndimage

from pyro_structured.fields.models.pixel_features import lab_pictures
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.foundation.models.argument_checks import checked_pictures

# Weights that smooth along an edge, and the difference of the two sides (Scharr 2000).
SMOOTHING, DIFFERENCE = np.array([3.0, 10.0, 3.0]) / 16, np.array([1.0, 0.0, -1.0])
# Lower probabilities of an edge count as this one: the penalty of two flat pixels is at most -log(.01) = 4.6.
LEAST_PROBABILITY = 0.01


def edge_features(images: Any, grid: Grid, *, sigma: float | None = None) -> np.ndarray:
    r"""Describes pairs of neighbours by three numbers, of which penalties of unequal labels are made.

    .. math::
        1, \qquad \exp\Bigl(-\frac{\lVert I_i - I_j \rVert^2}{2 \sigma^2}\Bigr), \qquad -\log \max(P_i, P_j),

    the three terms of Li's Chapter 5: smoothing everywhere, less of it where colours differ, and less at boundaries.
    All are at least 0, so that weights of at least 0 make an attractive field. Here I are red, green and blue from 0 to
    1, and :math:`\sigma^2` is the mean of :math:`\lVert I_i - I_j \rVert^2` over the pairs of each picture (Rother et
    al.) unless it is given. The thesis takes P, the probability of a boundary, from a detector that was learned (Pb);
    here it comes from the magnitude of the gradient,

    .. math::
        P_i = \max\bigl(1 - \exp(-g_i^2 / \overline{g^2}), .01\bigr), \qquad g^2 = g_{L^*}^2 + g_{a^*}^2 + g_{b^*}^2,

    by the filters of Scharr on CIE Lab, with borders mirrored and the mean over each picture. No number depends on
    other pictures.

    :param images: Pictures: uint8, uint16, booleans, or floats from 0 to 1; in colour, shape ``(N, H, W, 3)``; grey,
        ``(N, H, W)`` or ``(N, H, W, 1)``, which is three equal colours; or with transparency, ``(N, H, W, 4)``, in
        front of white.
    :param Grid grid: Grid of H rows and W columns; pairs come in the order of ``grid.edges``.
    :param float sigma: Scale of colour differences, positive, the same for all pictures. In a picture of one colour,
        the second number is 1.
    :return: float32, shape ``(N, E, 3)``. Cost O(N H W).
    :raises ValueError: if the pictures have another shape or type, numbers out of range, or another size than the grid,
        or if sigma is not positive.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Chapter 5.
    Rother, Kolmogorov, Blake (2004): "GrabCut": interactive foreground extraction using iterated graph cuts. ACM
    Transactions on Graphics. Equation 5.

    Example::

        >>> images = np.array([[[[0, 0, 0], [0, 0, 0], [255, 255, 255]]]], dtype=np.uint8)
        >>> edge_features(images, Grid(1, 3))[0].round(2)  # the picture changes on the right
        array([[1.  , 1.  , 0.25],
               [1.  , 0.37, 0.25]], dtype=float32)
    """
    colours = checked_pictures(images)
    if not isinstance(grid, Grid) or (grid.height, grid.width) != colours.shape[1:3]:
        raise ValueError(f"grid: expected Grid({colours.shape[1]}, {colours.shape[2]}), as the images, got {grid!r}")
    if sigma is not None and (not isinstance(sigma, Real) or not 0 < float(sigma) < math.inf):
        raise ValueError(f"sigma: expected a positive number or None, got {sigma!r}")
    first, second = grid.edges.cpu().numpy().T
    pixels = colours.reshape(len(colours), grid.num_pixels, 3)
    differences = ((pixels[:, first] - pixels[:, second]) ** 2).sum(-1)
    scales = _mean_of_each(differences) if sigma is None else np.full((len(colours), 1), float(sigma) ** 2)
    edges = np.log(_edge_probabilities(colours)).reshape(len(colours), grid.num_pixels)
    boundaries = np.abs(np.maximum(edges[:, first], edges[:, second]))
    contrasts = np.exp(-differences / (2 * scales))
    return np.stack([np.ones_like(contrasts), contrasts, boundaries], -1).astype(np.float32)


def _mean_of_each(squares: np.ndarray) -> np.ndarray:
    """Means over all axes but the first, which are kept with size 1; 1 where all numbers are 0, to divide by."""
    axes = tuple(range(1, squares.ndim))
    means = squares.sum(axes, keepdims=True) / max(1, math.prod(squares.shape[1:]))
    return np.where(means > 0, means, 1.0)


def _edge_probabilities(colours: np.ndarray) -> np.ndarray:
    """Probability P of an edge at each pixel, from the gradient, shape ``(N, H, W)``."""
    channels = np.moveaxis(lab_pictures(colours), -1, 0)
    squares = np.sum([gradient_magnitudes(channel) ** 2 for channel in channels], 0)
    probabilities: np.ndarray = np.maximum(-np.expm1(-squares / _mean_of_each(squares)), LEAST_PROBABILITY)
    return probabilities


def gradient_magnitudes(pictures: np.ndarray) -> np.ndarray:
    """Root mean squares of the differences down and across, shape ``(N, H, W)``: Scharr's filters, borders mirrored."""
    squares = np.zeros(pictures.shape)
    for across, along in ((1, 2), (2, 1)):
        smooth = scipy.ndimage.convolve1d(pictures, SMOOTHING, along, mode="reflect")
        squares += scipy.ndimage.convolve1d(smooth, DIFFERENCE, across, mode="reflect") ** 2 / 2
    return np.sqrt(squares)
