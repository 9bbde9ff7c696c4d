"""Landmarks of lungs at two phases of breathing."""

__all__ = ["load_lung_landmarks"]

import io

import numpy as np
from scipy.io import loadmat

from pyro_structured.datasets.argument_checks import check_number
from pyro_structured.datasets.local_archive import read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import ArrayKind
from pyro_structured.foundation.structures.argument_checks import check_flag

REPOSITORY = "deshanyang/DIR-QA"
COMMIT = "b89bed65afd6cfa94418e1f34a4d54761090c71b"

# Digests of the files with the 300 landmarks and with the dense ones, for every case.
SHA256 = (
    (
        "f5893eda639205a648f6dc4b4ae929c9cfdb8ed52646d535d257e4e6fba96936",
        "44ceeb170d4aa4819e1dd52fa88b6e3089634dc5696006781b3d40796258b116",
    ),
    (
        "61f44e7ba4f1eb3a95d10888c441168b03e3f22a798f1cf4f8d07f9f1d603d1b",
        "79e7c9b9584f650fc890303f1b5abaf5d63a3a8a1fc09a1791a8ac5f80c3172f",
    ),
    (
        "4a84c1feb33d2ff5ff17156d4a5cd6922e5eed4a8974a1eb388a5c39dfac34db",
        "d8f501d386351b86b675cb059d9d4881407c09fa4d26e57906fe4ec062ebe8ad",
    ),
    (
        "b916f1cbc32f3aee992b3563fb26c80430537d114960e9d570fcb2ee9c592010",
        "d400ff61c30405e5a893b9b1892e5d6a86c9d9a93104c1a51e50a27be0ba3330",
    ),
    (
        "c83918767dfa0bd2572cf78939a4d470f95f4cf4bc1144e8a8bcdffb1d75bb99",
        "94d511fe03c134cbb6f8ec5dccdcbcaf02103baf39b39603dd22c2681738e045",
    ),
    (
        "19406dce569478b7e98b200dbb01a876adbdc2196be279940f051f246bcfedfd",
        "7da8c250b937261d05b1f26b3df6146ca24419ac6d9634c9d0b9f9d8db6782a3",
    ),
    (
        "fdd601d6a082024cbd88c7af6799a632d864709533c44e99049a322ac66ca048",
        "1e09983ffc8ff2e8abbb7636421ded506b873bb03d1f5b586cf9e4b2be421feb",
    ),
    (
        "a4991fd242c908b922b219a4f6a4b06ab24b42e9e68067bb04e5828fa3b48e95",
        "5a08b811b27417af223dd4100ea6f171f5f8f1ebf7a61cdd99b267c828916274",
    ),
    (
        "31ad92691237c9332ceeeab2cad9baa9998bd8c3edc50916561699d80fa59a70",
        "72cb5d6570b15f20f6a19e648391391f948795f3e808be0dfa06e140360a1157",
    ),
    (
        "fa9cb10c2abded6a38b363997af9410de59a7d2b4fda81c841e4ae802a7ce71a",
        "85d6e97a969283a8c7e6478b16b2dbe977284b52d17acd90d24e8f9792a51161",
    ),
)
# Sides of the voxels; in the planes, both sides have one length, which depends on the case.
PIXEL_MM = (0.97, 1.16, 1.15, 1.13, 1.10, 0.97, 0.97, 0.97, 0.97, 0.97)
SLICE_MM = 2.5


def load_lung_landmarks(case: int, dense: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Loads corresponding landmarks of one of the ten DIR-Lab lungs at end-exhale and at end-inhale.

    Experts marked 300 landmarks in each of ten CT scans; a program found more: 1,069 to 3,121 dense landmarks.
    They are read from the local folder, if there is one; or else 5 kB, or 11 to 33 kB of dense landmarks,
    are downloaded from the GitHub repository deshanyang/DIR-QA, whose licence is GPL-3, checked and cached. DIR-Lab
    asks for a citation. The scans are not included.

    :param int case: Number of the scan, 1 to 10.
    :param bool dense: Whether to load the dense landmarks.
    :return: Positions x, y and z in mm from voxel 0 at end-exhale, and those of the same landmarks at end-inhale, both
        float64, shape ``(300, 3)``, or of as many rows as there are dense landmarks.
    :raises ValueError: if the case is out of range, a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``matching/dirlab_landmarks.npz``.
    :raises ConnectionError: if a download fails.

    **References**

    Castillo, Castillo, Guerra, Johnson, McPhail, Garg, Guerrero (2009): A framework for evaluation of deformable image
    registration spatial accuracy using large landmark point sets. Physics in Medicine and Biology.
    Fu, Wu, Thomas, Li, Yang (2019): Automatic large quantity landmark pairs detection in 4DCT lung images. Medical
    Physics. (Dense landmarks.)

    Example::

        >>> exhale, inhale = load_lung_landmarks(1)  # doctest: +SKIP
        >>> float(np.linalg.norm(exhale - inhale, axis=1).mean().round(2))  # doctest: +SKIP
        3.89
    """
    check_number("case", case, len(SHA256))
    check_flag("dense", dense)
    folder = "Dense Sets of Landmark Pairs" if dense else "New Landmark Pairs"
    file = PublicFile(REPOSITORY, COMMIT, f"{folder}/case{case}.mat", SHA256[case - 1][dense])
    prefix = f"case{case}_dense" if dense else f"case{case}_"
    kinds = {f"{prefix}{phase}": ArrayKind("iuf", ("landmarks", 3)) for phase in ("EE", "EI")}
    archive = read_archive("matching/dirlab_landmarks.npz", file, kinds)
    if archive is not None:
        exhale, inhale = (_positions(archive[name], case) for name in kinds)
        return exhale, inhale
    matrices = loadmat(io.BytesIO(file.read()))
    inhale = matrices["landmark_EI" if dense else "landmark_dirlab_EI"]
    return _positions(matrices["landmark_EE"], case), _positions(inhale, case)


def _positions(voxels: np.ndarray, case: int) -> np.ndarray:
    """Positions in mm; the files have the voxel's row first, then its column."""
    pixel = PIXEL_MM[case - 1]
    positions: np.ndarray = voxels[:, [1, 0, 2]] * np.array([pixel, pixel, SLICE_MM])
    return positions
