"""Silhouettes of objects of 101 classes."""

__all__ = ["load_caltech_silhouettes"]

import io

import numpy as np
from scipy.io import loadmat

from pyro_structured.datasets.density_data import DensityData
from pyro_structured.datasets.local_archive import read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import ArrayKind

PATH = "images/caltech101_silhouettes28.npz"
FILE = PublicFile(
    "markezorvaldez/rbm-experiment",
    "df8ff2ee56ee8791f9eb5dd1910d1d272ca677eb",
    "caltech101_silhouettes_28_split1.mat",
    "eb6735e8d84b1850fabc5590124aab1755e90c9fd28123585324398405e1e42a",
)
SIZE = 28
NAMES = ("train", "val", "test")
# Rows are packed bits.
KINDS = {name: ArrayKind("u", (f"images of {name}", SIZE * SIZE // 8)) for name in NAMES}


def load_caltech_silhouettes() -> DensityData:
    """Loads the Caltech 101 silhouettes, at 28 x 28 pixels, in the published split: 4,100, 2,264 and 2,307 images.

    They are read from the local folder, if there is one; or else .9 MB are downloaded from the GitHub repository
    markezorvaldez/rbm-experiment, which states no licence for the data, checked and cached. The public file goes down
    columns, and has ones for the background; here, ones are the object. Its classes are left out.

    :return: Training, validation and test images, uint8, a row of 784 pixels each, the rows of 28 pixels one after the
        other.
    :raises ValueError: if a local file is damaged, or the download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``images/caltech101_silhouettes28.npz``.
    :raises ConnectionError: if the download fails.

    **References**

    Marlin, Swersky, Chen, de Freitas (2010): Inductive principles for restricted Boltzmann machine learning. AISTATS.

    Example::

        >>> train, validation, test = load_caltech_silhouettes()  # doctest: +SKIP
        >>> train.reshape(-1, 28, 28).shape  # doctest: +SKIP
        (4100, 28, 28)
    """
    archive = read_archive(PATH, FILE, KINDS)
    if archive is not None:
        return DensityData(*(_upright(np.unpackbits(archive[name], axis=1)) for name in NAMES))
    content = loadmat(io.BytesIO(FILE.read()))
    return DensityData(*(_upright(content[f"{name}_data"]) for name in NAMES))


def _upright(background: np.ndarray) -> np.ndarray:
    """Objects in rows of pixels, from backgrounds in columns of pixels."""
    rows: np.ndarray = 1 - background.reshape(-1, SIZE, SIZE).transpose(0, 2, 1).reshape(-1, SIZE * SIZE)
    return rows
