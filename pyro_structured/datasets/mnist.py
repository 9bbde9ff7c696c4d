"""Handwritten digits, the test images of MNIST."""

__all__ = ["load_mnist_test"]

import gzip

import numpy as np

from pyro_structured.datasets.local_archive import read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import ArrayKind

REPOSITORY = "unixpickle/mnistlite"
COMMIT = "7e77ce183b42950baacbe6de3986dbdc6ae771e8"
IMAGES = PublicFile(
    REPOSITORY,
    COMMIT,
    "data/t10k-images-idx3-ubyte.gz",
    "ba05d2d6e06f59dd97d2d5378250478bb5c9b64296a5c2681700569121e3a2d7",
)
LABELS = PublicFile(
    REPOSITORY,
    COMMIT,
    "data/t10k-labels-idx1-ubyte.gz",
    "94088eab8a64f51a9b34cc9716f54b6548ef8b2fd16ada6d1575091b933dbf4b",
)
NUM_PIXELS = 28 * 28
KINDS = {"X": ArrayKind("u", ("images", NUM_PIXELS), 0, 255), "y": ArrayKind("iu", ("images",), 0, 9)}

# The header of an IDX file has four bytes, then four for each axis.
IMAGES_HEADER = 16
LABELS_HEADER = 8


def load_mnist_test() -> tuple[np.ndarray, np.ndarray]:
    """Loads the 10,000 gray test images of MNIST and their labels; the training images are not included.

    They are read from the local folder, if there is one; or else 1.7 MB are downloaded from the GitHub repository
    unixpickle/mnistlite, checked and cached.

    :return: Gray values between 0 and 255, uint8, shape ``(10000, 784)``, the rows of 28 pixels one after the other;
        and the digits, int64, shape ``(10000,)``. Niepert and Domingos (2014) take pixels above 50 for ones.
    :raises ValueError: if a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``images/mnist_t10k_gray.npz``.
    :raises ConnectionError: if a download fails.

    **References**

    LeCun, Bottou, Bengio, Haffner (1998): Gradient-based learning applied to document recognition. IEEE.

    Example::

        >>> images, labels = load_mnist_test()  # doctest: +SKIP
        >>> images.shape, labels[:3]  # doctest: +SKIP
        ((10000, 784), array([7, 2, 1]))
    """
    archive = read_archive("images/mnist_t10k_gray.npz", IMAGES, KINDS)
    if archive is not None:
        return archive["X"], archive["y"].astype(np.int64)
    images = np.frombuffer(gzip.decompress(IMAGES.read()), np.uint8, offset=IMAGES_HEADER)
    labels = np.frombuffer(gzip.decompress(LABELS.read()), np.uint8, offset=LABELS_HEADER)
    return images.reshape(-1, NUM_PIXELS).copy(), labels.astype(np.int64)
