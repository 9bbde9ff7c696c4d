"""Pictures of horses, and masks of their pixels."""

__all__ = ["load_horses"]

import numpy as np

from pyro_structured.datasets.local_archive import missing_archive, read_archive
from pyro_structured.foundation.ops.data_file import ArrayKind

PATH, SOURCE = "images/weizmann_horses32.npz", "shenshutao/image_segmentation at commit 2653401d6e, resized to 32 x 32"
SIZE = 32
KINDS = {"rgb": ArrayKind("u", ("pictures", SIZE, SIZE, 3)), "mask": ArrayKind("u", ("pictures", SIZE * SIZE // 8))}


def load_horses() -> tuple[np.ndarray, np.ndarray]:
    """Loads the 328 Weizmann horses, at 32 x 32 pixels.

    They are read from the local folder only: the public repository holds the pictures one by one, in their full size.

    :return: Colours between 0 and 255, uint8, shape ``(328, 32, 32, 3)``; and masks, 1 where a horse is, uint8, shape
        ``(328, 32, 32)``.
    :raises ValueError: if the file is damaged.
    :raises FileNotFoundError: if there is no local folder, or it lacks ``images/weizmann_horses32.npz``.

    **References**

    Borenstein, Ullman (2002): Class-specific, top-down segmentation. ECCV.
    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Section 5.1.

    Example::

        >>> images, masks = load_horses()  # doctest: +SKIP
        >>> images.shape, masks.shape  # doctest: +SKIP
        ((328, 32, 32, 3), (328, 32, 32))
    """
    archive = read_archive(PATH, SOURCE, KINDS)
    if archive is None:
        raise missing_archive(PATH, SOURCE)
    return archive["rgb"], np.unpackbits(archive["mask"], axis=1).reshape(-1, SIZE, SIZE)
