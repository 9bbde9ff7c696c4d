"""Pictures of horses, and masks of their pixels."""

__all__ = ["load_horses"]

import io
from importlib.util import find_spec
from typing import Any

import numpy as np

from pyro_structured.datasets.local_archive import read_archive
from pyro_structured.datasets.public_archive import PublicArchive
from pyro_structured.foundation.ops.data_file import ArrayKind

PATH = "images/weizmann_horses32.npz"
ARCHIVE = PublicArchive(
    "shenshutao/image_segmentation",
    "2653401d6ea617026895aac17059eb57e017abcb",
    "archive.zip",
    "34f2bc13d4ee36c61bca17905509aec1d23950badc543f9e086edc36c8d85122",
)
PICTURES, MASKS = "weizmann_horse_db/rgb", "weizmann_horse_db/figure_ground"
SIZE = 32
KINDS = {"rgb": ArrayKind("u", ("pictures", SIZE, SIZE, 3)), "mask": ArrayKind("u", ("pictures", SIZE * SIZE // 8))}


def load_horses() -> tuple[np.ndarray, np.ndarray]:
    """Loads the 328 Weizmann horses, at 32 x 32 pixels.

    They are read from the local folder, if there is one; or else 20 MB are downloaded from the GitHub repository
    shenshutao/image_segmentation, which states no licence, checked and cached, and resized in two seconds: pictures by
    Lanczos' filter; a pixel of a mask is a horse's if at least half of its area is. Both ways give the same numbers.

    :return: Colours between 0 and 255, uint8, shape ``(328, 32, 32, 3)``; and masks, 1 where a horse is, uint8, shape
        ``(328, 32, 32)``.
    :raises ValueError: if a local file is damaged, or the download has other contents.
    :raises FileNotFoundError: if the local folder lacks ``images/weizmann_horses32.npz``.
    :raises ConnectionError: if the download fails.
    :raises ImportError: if the pictures have to be resized, and Pillow is not installed.

    **References**

    Borenstein, Ullman (2002): Class-specific, top-down segmentation. ECCV.
    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Section 5.1.

    Example::

        >>> images, masks = load_horses()  # doctest: +SKIP
        >>> images.shape, masks.shape  # doctest: +SKIP
        ((328, 32, 32, 3), (328, 32, 32))
    """
    archive = read_archive(PATH, ARCHIVE, KINDS)
    if archive is not None:
        return archive["rgb"], np.unpackbits(archive["mask"], axis=1).reshape(-1, SIZE, SIZE)
    if find_spec("PIL") is None:
        raise ImportError("Pillow is not installed; python -m pip install 'pyro-structured[plot]' installs it")
    pictures, masks = (ARCHIVE.read_files(folder).values() for folder in (PICTURES, MASKS))
    return np.stack([_picture(content) for content in pictures]), np.stack([_mask(content) for content in masks])


def _picture(content: bytes) -> np.ndarray:
    """Colours, shape ``(32, 32, 3)``."""
    from PIL import Image

    return np.asarray(_opened(content, "RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS))


def _mask(content: bytes) -> np.ndarray:
    """Zeros and ones, shape ``(32, 32)``; edges of the file's masks are blurred by its compression."""
    from PIL import Image

    horse = _opened(content, "L").point(lambda gray: 255 * (gray > 127))
    return (np.asarray(horse.resize((SIZE, SIZE), Image.Resampling.BOX)) > 127).astype(np.uint8)


def _opened(content: bytes, mode: str) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(content)).convert(mode)
