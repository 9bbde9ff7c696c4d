"""Descriptors of pixels: colours and responses of filters."""

__all__ = ["pixel_features"]

from functools import cache
from typing import Any

import numpy as np

from pyro_structured.fields.models.colour_spaces import grey_pictures, lab_pictures
from pyro_structured.fields.models.filter_banks import gabor_bank, leung_malik_bank, mirrored_responses, schmid_bank
from pyro_structured.foundation.models.argument_checks import checked_pictures


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
