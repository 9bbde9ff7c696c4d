"""Descriptors of pixels: colours and responses of filters."""

__all__ = [
    "gabor_bank",
    "grey_pictures",
    "lab_pictures",
    "leung_malik_bank",
    "mirrored_responses",
    "pixel_features",
    "position_features",
    "schmid_bank",
]

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import scipy.fft

from pyro_structured.foundation.models.argument_checks import checked_pictures
from pyro_structured.foundation.structures.argument_checks import check_size

# sRGB (IEC 61966-2-1): XYZ of the three colours at full intensity, and of white (D65, as seen by the observer of 1931).
PRIMARIES = np.array([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]])
WHITE = np.array([0.95047, 1.0, 1.08883])
# Luminance of the three colours (ITU-R BT.709).
LUMINANCE = np.array([0.2125, 0.7154, 0.0721])
# CIE 1976: where the cube root ends, and the line with the same slope begins.
SMALL = 6 / 29


def grey_pictures(colours: np.ndarray) -> np.ndarray:
    """Luminance of colours, from 0 to 1, shape ``(...)``.

    :param np.ndarray colours: Colours from 0 to 1, shape ``(..., 3)``.
    """
    grey: np.ndarray = colours @ LUMINANCE
    return grey


def lab_pictures(colours: np.ndarray) -> np.ndarray:
    """CIE Lab of sRGB colours from 0 to 1, shape ``(..., 3)``."""
    linear = np.where(colours > 0.04045, ((colours + 0.055) / 1.055) ** 2.4, colours / 12.92)
    shares = linear @ PRIMARIES.T / WHITE
    roots = np.where(shares > SMALL**3, np.cbrt(shares), shares / (3 * SMALL**2) + 4 / 29)
    x, y, z = np.moveaxis(roots, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


# Cycles per pixel.
FREQUENCIES = (0.4, 0.2 * math.sqrt(2), 0.2, 0.1 * math.sqrt(2), 0.1)
NUM_GABOR_ANGLES, NUM_EDGE_ANGLES = 4, 6
# Standard deviation of a Gabor filter's envelope times its frequency, where the bandwidth is one octave.
ENVELOPE = 3 / math.pi * math.sqrt(math.log(2) / 2)
# Pixels. Edges and bars have the first three scales, and are three times as long as wide.
SCALES, ELONGATION = (math.sqrt(2), 2.0, 2 * math.sqrt(2), 4.0), 3
# Standard deviations in pixels, and cycles of the cosine on twice that.
RINGS = tuple(
    (sigma, cycles) for sigma, most in ((2, 1), (4, 2), (6, 3), (8, 3), (10, 4)) for cycles in range(1, most + 1)
)
# Standard deviations at which filters end.
REACH = 3
# Numbers in one batch of transforms, so that they fit into caches.
CHUNK = 2**17


def _plane(sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns relative to a pixel, as far as a Gaussian reaches."""
    radius = math.ceil(REACH * sigma)
    rows, columns = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float64)
    return rows, columns


def gabor_bank() -> list[np.ndarray]:
    r"""Gabor filters, real parts and imaginary parts in turn: 5 frequencies, 4 orientations each.

    .. math::
        g(x, y) = \frac{1}{2\pi\sigma^2} \exp\Bigl(-\frac{x^2 + y^2}{2\sigma^2}\Bigr)
        e^{2\pi i f (x\cos\theta + y\sin\theta)}, \qquad \sigma = \frac{3}{\pi f} \sqrt{\frac{\log 2}{2}},

    a bandwidth of one octave. The imaginary parts have mean zero, the real ones almost: .002 of the sum of the
    envelope.
    """
    filters = []
    for frequency in FREQUENCIES:
        sigma = ENVELOPE / frequency
        rows, columns = _plane(sigma)
        envelope = np.exp(-(rows**2 + columns**2) / (2 * sigma**2)) / (2 * math.pi * sigma**2)
        for angle in np.arange(NUM_GABOR_ANGLES) * math.pi / NUM_GABOR_ANGLES:
            phase = 2 * math.pi * frequency * (columns * math.cos(angle) + rows * math.sin(angle))
            filters += [envelope * np.cos(phase), envelope * np.sin(phase)]
    return filters


def leung_malik_bank() -> list[np.ndarray]:
    """The 48 filters of Leung and Malik.

    First and second derivatives of Gaussians three times as long as wide (scales √2, 2 and 2√2 pixels, 6 orientations:
    18 edges, then 18 bars), Laplacians of Gaussians (scales √2, 2, 2√2, 4, and three times these), and 4 Gaussians. All
    but the Gaussians have mean zero; absolute values of each filter add up to 1.
    """
    edges, bars = [], []
    for sigma in SCALES[:3]:
        rows, columns = _plane(ELONGATION * sigma)
        for angle in np.arange(NUM_EDGE_ANGLES) * math.pi / NUM_EDGE_ANGLES:
            along = columns * math.cos(angle) + rows * math.sin(angle)
            across = rows * math.cos(angle) - columns * math.sin(angle)
            bump = np.exp(-((along / ELONGATION) ** 2 + across**2) / (2 * sigma**2))
            edges.append(_band_pass(-across * bump))
            bars.append(_band_pass((across**2 - sigma**2) * bump))
    spots, blurs = [], []
    for sigma in (*SCALES, *(3 * scale for scale in SCALES)):
        rows, columns = _plane(sigma)
        squares = rows**2 + columns**2
        bump = np.exp(-squares / (2 * sigma**2))
        spots.append(_band_pass((squares - 2 * sigma**2) * bump))
        blurs.append(bump / bump.sum())
    return [*edges, *bars, *spots, *blurs[: len(SCALES)]]


def schmid_bank() -> list[np.ndarray]:
    r"""The 13 filters of Schmid, which any rotation leaves as they are.

    .. math::
        F(r) = \cos\Bigl(\frac{\pi \tau r}{\sigma}\Bigr) \exp\Bigl(-\frac{r^2}{2\sigma^2}\Bigr) + \mathrm{const}

    for (σ, τ) = (2, 1), (4, 1), (4, 2), (6, 1) to (6, 3), (8, 1) to (8, 3) and (10, 1) to (10, 4), with mean zero;
    absolute values of each filter add up to 1.
    """
    filters = []
    for sigma, cycles in RINGS:
        rows, columns = _plane(sigma)
        radius = np.hypot(rows, columns)
        filters.append(_band_pass(np.cos(math.pi * cycles * radius / sigma) * np.exp(-(radius**2) / (2 * sigma**2))))
    return filters


def _band_pass(kernel: np.ndarray) -> np.ndarray:
    """Filter shifted to mean zero, and scaled so that absolute values add up to 1."""
    centred = kernel - kernel.mean()
    scaled: np.ndarray = centred / np.abs(centred).sum()
    return scaled


def mirrored_responses(pictures: np.ndarray, kernels: Sequence[np.ndarray]) -> np.ndarray:
    """Convolves pictures with filters, as if they went on beyond their borders as in a mirror.

    A picture with its mirror images repeats with twice its height and width, so that Fourier transforms of that size
    are exact for filters of any size. In float64. Cost O(H W log(H W)) for each filter and picture.

    :param np.ndarray pictures: Shape ``(N, H, W)``.
    :param kernels: K filters with odd numbers of rows and columns.
    :return: Rounded to float32, shape ``(N, H, W, K)``.

    Example::

        >>> shift = np.array([[0.0, 0.0, 1.0]])  # what was on the left
        >>> mirrored_responses(np.array([[[1.0, 2.0, 3.0]]]), [shift])[0, 0, :, 0].round(6).tolist()
        [1.0, 1.0, 2.0]
    """
    number, height, width = pictures.shape
    size = (2 * height, 2 * width)
    transfers = [scipy.fft.rfft2(_folded(kernel, size)) for kernel in kernels]
    responses = np.empty((number, height, width, len(kernels)), dtype=np.float32)
    chunk = max(1, CHUNK // (size[0] * size[1]))
    for first in range(0, number, chunk):
        batch = slice(first, first + chunk)
        spectrum = scipy.fft.rfft2(np.pad(pictures[batch], ((0, 0), (0, height), (0, width)), mode="symmetric"))
        for place, transfer in enumerate(transfers):
            responses[batch, ..., place] = scipy.fft.irfft2(spectrum * transfer, size)[:, :height, :width]
    return responses


def _folded(kernel: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The filter on a torus, its centre at the origin."""
    folded = np.zeros(size)
    rows, columns = ((np.arange(n) - n // 2) % period for n, period in zip(kernel.shape, size, strict=True))
    np.add.at(folded, (rows[:, None], columns), kernel)
    return folded


def pixel_features(images: Any) -> np.ndarray:
    r"""Describes every pixel by its colour and its surroundings: 107 numbers, those of Li's Chapter 5.

    In this order:

    - red, green and blue, from 0 to 1; and CIE Lab (sRGB, D65): L* from 0 to 100, a* and b*, about -100 to 100;
    - 40 Gabor filters of one octave, real part and imaginary part in turn, of 0.4, 0.28, 0.2, 0.14 and 0.1 cycles for
      each pixel, at 0, 45, 90 and 135 degrees;
    - the 48 filters of Leung and Malik: 18 edges, then 18 bars (first and second derivatives of Gaussians, three times
      as long as wide, scales √2, 2 and 2√2 pixels, 6 orientations), 8 Laplacians of Gaussians (√2, 2, 2√2, 4, 3√2, 6,
      6√2, 12 pixels), 4 Gaussians (√2, 2, 2√2, 4 pixels);
    - the 13 filters of Schmid, rings that no rotation changes, up to a standard deviation of 10 pixels.

    Filters see grey pictures from 0 to 1 (luminance of ITU-R BT.709), which go on beyond their borders as in a mirror.
    Edges, bars, Laplacians and rings have mean zero, and absolute values that add up to 1. The thesis does not print
    the sizes of its filters; those of the Gabor filters are ours, for pictures of about 32 x 32 pixels.

    No number depends on other pictures, and only the mirror on where in the picture the pixel is, unlike
    :func:`position_features`. But large filters see the mirror from far away: in small pictures, a classifier can learn
    from them about how far a pixel is from the border.

    :param images: Pictures: uint8, uint16, booleans, or floats from 0 to 1; in colour, shape ``(N, H, W, 3)``; grey,
        ``(N, H, W)`` or ``(N, H, W, 1)``, which is three equal colours; or with transparency, ``(N, H, W, 4)``, in
        front of white.
    :return: float32, shape ``(N, H, W, 107)``. Cost O(H W log(H W)) for each filter and picture.
    :raises ValueError: if the pictures have another shape or type, or numbers out of range.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Chapter 5.
    Leung, Malik (2001): Representing and recognizing the visual appearance of materials using three-dimensional
    textons. International Journal of Computer Vision.
    Schmid (2001): Constructing models for content-based image retrieval. CVPR. Equation 1.

    Example::

        >>> images = np.zeros((2, 8, 9, 3), dtype=np.uint8)
        >>> images[:, 2:5, 3:6] = [255, 128, 0]
        >>> pixel_features(images).shape
        (2, 8, 9, 107)
    """
    colours = checked_pictures(images)
    responses = mirrored_responses(grey_pictures(colours), _all_filters())
    return np.concatenate([colours.astype(np.float32), lab_pictures(colours).astype(np.float32), responses], -1)


@cache
def _all_filters() -> tuple[np.ndarray, ...]:
    return (*gabor_bank(), *leung_malik_bank(), *schmid_bank())


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
