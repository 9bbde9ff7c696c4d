"""Copies of pictures that are mirrored and moved a little."""

__all__ = ["moved_copies"]

import numpy as np

from pyro_structured.datasets.argument_checks import seeded_generator
from pyro_structured.foundation.structures.argument_checks import check_flag, check_size


def moved_copies(
    *arrays: np.ndarray, num_copies: int = 5, farthest: int = 2, mirrored: bool = True, seed: int
) -> tuple[np.ndarray, ...]:
    """Adds copies of pictures, of their masks, and so on, that are moved by random numbers of pixels, and mirrors all.

    There are ``2 * (num_copies + 1)`` times as many pictures as before, or ``num_copies + 1`` times as many if they are
    not mirrored; the given ones come first, then those of each copy, and then the mirror images of all. What comes in
    at a border repeats it. All arrays are moved alike.

    :param np.ndarray arrays: One or several arrays, each of shape ``(N, H, W, ...)``.
    :param int num_copies: Number of copies of each picture, at least 0.
    :param int farthest: The largest number of pixels, up or down and left or right, at least 0.
    :param bool mirrored: Whether left and right are exchanged in as many pictures again.
    :param int seed: Seed of the generator, at least 0.
    :return: The enlarged arrays, one for each of ``arrays`` and of its dtype.
    :raises ValueError: if an argument is out of range, or the arrays differ in N, H or W.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Section 5.1.

    Example::

        >>> (masks,) = moved_copies(np.array([[[0, 0, 1]]]), num_copies=2, farthest=1, seed=0)
        >>> masks[:, 0].tolist()
        [[0, 0, 1], [0, 1, 1], [0, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]]
    """
    pictures = [np.asarray(array) for array in arrays]
    if not pictures:
        raise ValueError("arrays: expected at least one, got none")
    for picture in pictures:
        if picture.ndim < 3 or 0 in picture.shape[1:3] or picture.shape[:3] != pictures[0].shape[:3]:
            shapes = ", ".join(str(array.shape) for array in pictures)
            raise ValueError(f"arrays: expected shapes (N, H, W, ...) that agree in N, H and W, got {shapes}")
    check_size("num_copies", num_copies, 0)
    check_size("farthest", farthest, 0)
    check_flag("mirrored", mirrored)
    number, height, width = pictures[0].shape[:3]
    generator = seeded_generator(seed)
    down, across = generator.integers(-farthest, farthest + 1, size=(2, num_copies + 1, number, 1))
    down[0] = across[0] = 0
    rows = np.clip(np.arange(height) - down, 0, height - 1)[..., :, None]
    columns = np.clip(np.arange(width) - across, 0, width - 1)[..., None, :]
    index = np.arange(number)[:, None, None]
    moved = [picture[index, rows, columns].reshape(-1, *picture.shape[1:]) for picture in pictures]
    return tuple(np.concatenate([copies, copies[:, :, ::-1]]) if mirrored else copies for copies in moved)
