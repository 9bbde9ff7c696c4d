"""Molecules that smell of musk, or not, in several shapes each."""

__all__ = ["MuskData", "load_musk1"]

from typing import NamedTuple

import numpy as np

from pyro_structured.datasets.local_archive import damaged_archive, missing_archive, read_archive
from pyro_structured.foundation.ops.data_file import ArrayKind

PATH = "mil/musk1.npz"
SOURCE = "Musk (Version 1) of the UCI Machine Learning Repository (CC BY 4.0), as in the Python package mil 1.0.5"
KINDS = {
    "X": ArrayKind("iuf", ("conformations", 166)),
    "bag": ArrayKind("iu", ("conformations",), 0),
    "y": ArrayKind("iu", ("molecules",), 0, 1),
    "cv_folds": ArrayKind("iu", ("splits", "folds", "molecules"), 0, 1),
}


class MuskData(NamedTuple):
    """Conformations of molecules; the fields have scikit-learn's names.

    :param numpy.ndarray data: Features of the conformations, most of them distances along rays, float64, shape ``(476,
        166)``.
    :param numpy.ndarray target: Whether the molecule smells of musk, int64, shape ``(476,)``.
    :param numpy.ndarray groups: Number of the molecule, int64 from 0 to 91, shape ``(476,)``.
    :param numpy.ndarray test_molecules: Five splits into ten folds: whether a molecule is tested on, bool, shape ``(5,
        10, 92)``.
    """

    data: np.ndarray
    target: np.ndarray
    groups: np.ndarray
    test_molecules: np.ndarray


def load_musk1() -> MuskData:
    """Loads Musk1: 92 molecules in 2 to 40 conformations each, of which 47 smell of musk.

    They are read from the local folder; there is no download.

    :return: The conformations, and five splits of the molecules into ten folds.
    :raises ValueError: if the local file is damaged.
    :raises FileNotFoundError: if the file is not in the local folder, or there is no folder.

    **References**

    Dietterich, Lathrop, Lozano-Perez (1997): Solving the multiple instance problem with axis-parallel rectangles.
    Artificial Intelligence.

    Example::

        >>> musk = load_musk1()  # doctest: +SKIP
        >>> musk.data.shape, len(np.unique(musk.groups))  # doctest: +SKIP
        ((476, 166), 92)
    """
    archive = read_archive(PATH, SOURCE, KINDS)
    if archive is None:
        raise missing_archive(PATH, SOURCE)
    groups, labels = archive["bag"].astype(np.int64), archive["y"].astype(np.int64)
    if not np.array_equal(np.unique(groups), np.arange(len(labels))):
        raise damaged_archive(PATH, "numbers in 'bag' of all the molecules in 'y'")
    return MuskData(archive["X"].astype(np.float64), labels[groups], groups, archive["cv_folds"] == 0)
