"""Silhouettes of figures made of ellipses, in levels of variability."""

__all__ = ["ellipse_figures"]

import numpy as np

from pyro_structured.datasets.argument_checks import seeded_generator
from pyro_structured.foundation.structures.argument_checks import check_size

SIZE = 32
# Standard deviation, in pixels, of a figure's place; that of its parts' places, sizes and angles is in proportion.
JITTER = (0.45, 1.0, 1.55, 2.1, 2.8, 4.0)
# Row and column of the centre, and half the height and the width, of the body, the head and two arms.
PARTS = np.array([[20.0, 16.0, 7.5, 5.0], [8.0, 16.0, 4.0, 4.0], [17.0, 7.0, 2.5, 5.0], [17.0, 25.0, 2.5, 5.0]])
PLACES, SIZES, ANGLES = 0.8, 0.09, 0.12


def ellipse_figures(level: int, num_images: int, *, seed: int) -> np.ndarray:
    """Generates silhouettes of a body and a head, and of no, one or two arms, of which each is an ellipse.

    The figure's place, and the places, sizes and angles of its parts, vary more from level to level: the variability of
    the labels (:func:`label_variability`, 32 clusters, 2,000 images) grows from .06 to .29. Li (2013) describes such
    figures of two to four ellipses, without numbers; these are ours.

    :param int level: Level of variability, from 0, the easiest, to 5.
    :param int num_images: Number of images, at least 1.
    :param int seed: Seed of the generator, at least 0.
    :return: Zeros and ones, uint8, shape ``(num_images, 32, 32)``.
    :raises ValueError: if a number is out of range.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Section 5.1.

    Example::

        >>> masks = ellipse_figures(0, 2, seed=0)
        >>> masks.shape, bool(masks[:, 20, 16].all()), bool(masks[:, 0, 0].any())
        ((2, 32, 32), True, False)
    """
    if isinstance(level, bool) or not isinstance(level, (int, np.integer)) or not 0 <= level < len(JITTER):
        raise ValueError(f"level: expected an integer from 0 to {len(JITTER) - 1}, got {level!r}")
    check_size("num_images", num_images)
    generator, jitter = seeded_generator(seed), JITTER[level]
    parts = len(PARTS)
    places = PARTS[:, :2] + jitter * (
        generator.normal(size=(num_images, 1, 2)) + PLACES * generator.normal(size=(num_images, parts, 2))
    )
    radii = PARTS[:, 2:] * np.exp(SIZES * jitter * generator.normal(size=(num_images, parts, 2)))
    angles = ANGLES * jitter * generator.normal(size=(num_images, parts))
    # The first or the second arm, one as likely as the other, where there is only one.
    arms, first = generator.integers(3, size=num_images), generator.integers(2, size=num_images)
    there = np.ones((num_images, parts), dtype=bool)
    there[:, 2] = (arms == 2) | ((arms == 1) & (first == 0))
    there[:, 3] = (arms == 2) | ((arms == 1) & (first == 1))
    pixels = np.moveaxis(np.mgrid[:SIZE, :SIZE], 0, -1)
    masks = np.zeros((num_images, SIZE, SIZE), dtype=bool)
    for part in range(parts):
        offset = pixels - places[:, part, None, None]
        cosine, sine = (f(angles[:, part])[:, None, None] for f in (np.cos, np.sin))
        along = cosine * offset[..., 0] + sine * offset[..., 1], cosine * offset[..., 1] - sine * offset[..., 0]
        scaled = (a / radii[:, part, axis, None, None] for axis, a in enumerate(along))
        masks |= (sum(a**2 for a in scaled) <= 1) & there[:, part, None, None]
    return masks.astype(np.uint8)
