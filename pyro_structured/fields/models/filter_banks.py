"""Banks of small filters that describe the surroundings of a pixel."""

__all__ = ["gabor_bank", "leung_malik_bank", "mirrored_responses", "schmid_bank"]

import math
from collections.abc import Sequence

import numpy as np
import scipy.fft

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
# Filters end at so many standard deviations.
REACH = 3
# Numbers that a transform takes at a time: more do not fit into caches.
CHUNK = 2**17


def _plane(sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns around a pixel as far as a Gaussian reaches."""
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
    found = []
    for frequency in FREQUENCIES:
        sigma = ENVELOPE / frequency
        rows, columns = _plane(sigma)
        envelope = np.exp(-(rows**2 + columns**2) / (2 * sigma**2)) / (2 * math.pi * sigma**2)
        for angle in np.arange(NUM_GABOR_ANGLES) * math.pi / NUM_GABOR_ANGLES:
            phase = 2 * math.pi * frequency * (columns * math.cos(angle) + rows * math.sin(angle))
            found += [envelope * np.cos(phase), envelope * np.sin(phase)]
    return found


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
    found = []
    for sigma, cycles in RINGS:
        rows, columns = _plane(sigma)
        radius = np.hypot(rows, columns)
        found.append(_band_pass(np.cos(math.pi * cycles * radius / sigma) * np.exp(-(radius**2) / (2 * sigma**2))))
    return found


def _band_pass(kernel: np.ndarray) -> np.ndarray:
    """With mean zero, and absolute values that add up to 1."""
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
    found = np.empty((number, height, width, len(kernels)), dtype=np.float32)
    chunk = max(1, CHUNK // (size[0] * size[1]))
    for first in range(0, number, chunk):
        part = slice(first, first + chunk)
        spectrum = scipy.fft.rfft2(np.pad(pictures[part], ((0, 0), (0, height), (0, width)), mode="symmetric"))
        for place, transfer in enumerate(transfers):
            found[part, ..., place] = scipy.fft.irfft2(spectrum * transfer, size)[:, :height, :width]
    return found


def _folded(kernel: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The filter on a torus, its centre at the origin."""
    folded = np.zeros(size)
    rows, columns = ((np.arange(n) - n // 2) % period for n, period in zip(kernel.shape, size, strict=True))
    np.add.at(folded, (rows[:, None], columns), kernel)
    return folded
