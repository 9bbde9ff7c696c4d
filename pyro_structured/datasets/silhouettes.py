"""Silhouettes of birds and persons."""

__all__ = ["load_silhouettes"]

import numpy as np

from pyro_structured.datasets.argument_checks import check_name
from pyro_structured.datasets.local_archive import missing_archive, read_archive
from pyro_structured.foundation.ops.data_file import ArrayKind

PATH = "images/voc_silhouettes32.npz"
SOURCE = "zzq96/Nested-unet at commit 57e85f6844, cut out of its label maps and resized to 32 x 32"
NAMES, SIZE = ("bird", "person"), 32


def load_silhouettes(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Loads silhouettes of PASCAL VOC, one for each connected component of a class, at 32 x 32 pixels.

    They are read from the local folder only: the public repository holds label maps of whole pictures. The crops are
    not those of the thesis, which are its bounding boxes; pictures are not included.

    :param str name: ``"bird"`` (909 silhouettes) or ``"person"`` (5,727).
    :return: Masks, uint8, shape ``(N, 32, 32)``; and the name of the picture that each is from, shape ``(N,)``: parts
        for learning and for tests should have no picture in common.
    :raises ValueError: if the name is unknown, or the file is damaged.
    :raises FileNotFoundError: if there is no local folder, or it lacks ``images/voc_silhouettes32.npz``.

    **References**

    Everingham, Van Gool, Williams, Winn, Zisserman (2010): The PASCAL visual object classes challenge. IJCV.

    Example::

        >>> masks, pictures = load_silhouettes("bird")  # doctest: +SKIP
        >>> masks.shape, len(set(pictures))  # doctest: +SKIP
        ((909, 32, 32), 717)
    """
    check_name(name, NAMES)
    kinds = {name: ArrayKind("u", ("masks", SIZE * SIZE // 8)), f"{name}_image": ArrayKind("U", ("masks",))}
    archive = read_archive(PATH, SOURCE, kinds)
    if archive is None:
        raise missing_archive(PATH, SOURCE)
    return np.unpackbits(archive[name], axis=1).reshape(-1, SIZE, SIZE), archive[f"{name}_image"]
