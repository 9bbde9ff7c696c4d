"""Colours of pictures as other numbers."""

__all__ = ["grey_pictures", "lab_pictures"]

import numpy as np

# sRGB (IEC 61966-2-1): XYZ of the three colours at full intensity, and of white (D65, as seen by the observer of 1931).
PRIMARIES = np.array([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]])
WHITE = np.array([0.95047, 1.0, 1.08883])
# How bright the three colours look (ITU-R BT.709).
LUMINANCE = np.array([0.2125, 0.7154, 0.0721])
# CIE 1976: where the cube root ends, and the line with the same slope begins.
SMALL = 6 / 29


def grey_pictures(colours: np.ndarray) -> np.ndarray:
    """Luminance of colours, from 0 to 1, shape ``(..., 3)``."""
    grey: np.ndarray = colours @ LUMINANCE
    return grey


def lab_pictures(colours: np.ndarray) -> np.ndarray:
    """CIE Lab of sRGB colours from 0 to 1, shape ``(..., 3)``."""
    linear = np.where(colours > 0.04045, ((colours + 0.055) / 1.055) ** 2.4, colours / 12.92)
    shares = linear @ PRIMARIES.T / WHITE
    roots = np.where(shares > SMALL**3, np.cbrt(shares), shares / (3 * SMALL**2) + 4 / 29)
    x, y, z = np.moveaxis(roots, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)
