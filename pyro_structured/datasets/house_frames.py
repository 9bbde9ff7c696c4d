"""Landmarks of a house in the frames of a video."""

__all__ = ["load_house_frames"]

import io

import numpy as np
from scipy.io import loadmat

from pyro_structured.datasets.local_archive import read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.datasets.shape_context import shape_contexts
from pyro_structured.foundation.ops.data_file import ArrayKind

LANDMARKS = PublicFile(
    "zhfe99/fgm",
    "06ebf17787b3e0b05ec612a3ba859eda80232032",
    "data/cmum/cmum.mat",
    "d428f3a01bee927dfeb71deaeb5229dbcf0cd2da07d3842e820a84f23ec50091",
)
ARCHIVE = "matching/cmu_house.npz"
KINDS = {
    "points": ArrayKind("f", ("frames", "landmarks", 2)),
    "shape_context": ArrayKind("iu", ("frames", "landmarks", 60), 0),
}


def load_house_frames() -> tuple[np.ndarray, np.ndarray]:
    """Loads 30 landmarks in each of the 111 frames of the CMU house sequence, and their shape contexts.

    A camera moves around a toy house. Row k is the same landmark in every frame. The points are read from the local
    folder, if there is one (in single precision); or else 29 kB are downloaded from the GitHub repository zhfe99/fgm,
    which states no licence, checked and cached. After a download, the shape contexts are computed; all of them agree
    with those that the repository holds.

    :return: Positions x and y in pixels, float64, shape ``(111, 30, 2)``; and shape contexts, int64, shape
        ``(111, 30, 60)``: numbers of other landmarks in each of twelve sectors of five rings around a landmark, the
        innermost ring first. The rings end at 1/8, 1/4, 1/2, 1 and 2 times the mean distance of the frame's landmarks.
    :raises ValueError: if a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``matching/cmu_house.npz``.
    :raises ConnectionError: if a download fails.

    **References**

    Caetano, McAuley, Cheng, Le, Smola (2009): Learning graph matching. IEEE PAMI.
    Belongie, Malik, Puzicha (2002): Shape matching and object recognition using shape contexts. IEEE PAMI.

    Example::

        >>> points, contexts = load_house_frames()  # doctest: +SKIP
        >>> points.shape, contexts.shape  # doctest: +SKIP
        ((111, 30, 2), (111, 30, 60))
    """
    archive = read_archive(ARCHIVE, LANDMARKS, KINDS)
    if archive is not None:
        return archive["points"].astype(np.float64), archive["shape_context"].astype(np.int64)
    frames = loadmat(io.BytesIO(LANDMARKS.read()), simplify_cells=True)["CMUM"]["house"]["XTs"]
    points = np.stack([frame.T for frame in frames])
    return points, shape_contexts(points)
