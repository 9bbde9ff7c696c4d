"""Local files and downloads of a few landmarks; the published displacements, if the data are there."""

import io
import os

import numpy as np
import pytest
from scipy.io import savemat

from pyro_structured.datasets import load_lung_landmarks, lung_landmarks
from pyro_structured.datasets.public_file import PublicFile

# In rows, columns and slices.
EXHALE, INHALE = (np.random.default_rng(seed).integers(200, size=(4, 3), dtype=np.uint8) for seed in (1, 2))
# Mean distances in mm that registration papers state for the ten cases, and the numbers of dense landmarks.
DISPLACEMENTS = [3.89, 4.34, 6.94, 9.83, 7.48, 10.89, 11.03, 14.99, 7.92, 7.30]
NUM_DENSE = [1782, 2235, 1649, 1276, 1279, 2072, 2230, 3121, 1069, 2151]


def check(found, pixel):
    for positions, voxels in zip(found, (EXHALE, INHALE), strict=True):
        expected = np.stack([pixel * voxels[:, 1], pixel * voxels[:, 0], 2.5 * voxels[:, 2]], axis=1)
        assert positions.dtype == np.float64
        np.testing.assert_allclose(positions, expected, rtol=1e-14)


@pytest.mark.parametrize(("dense", "prefix"), [(False, "case4_"), (True, "case4_dense")])
def test_local_file(tmp_path, monkeypatch, dense, prefix):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "matching").mkdir()
    arrays = {f"{prefix}EE": EXHALE.astype(np.int16), f"{prefix}EI": INHALE.astype(np.int16)}
    np.savez_compressed(tmp_path / "matching" / "dirlab_landmarks.npz", **arrays)
    check(load_lung_landmarks(4, dense), 1.13)


@pytest.mark.parametrize(
    ("dense", "path", "inhale"),
    [
        (False, "New Landmark Pairs/case10.mat", "landmark_dirlab_EI"),
        (True, "Dense Sets of Landmark Pairs/case10.mat", "landmark_EI"),
    ],
)
def test_download(serve, monkeypatch, dense, path, inhale):
    content = io.BytesIO()
    savemat(content, {"landmark_EE": EXHALE, inhale: INHALE, "landmark_new_EI": INHALE + 0.5})
    digest = serve(PublicFile("", "", path, ""), content.getvalue()).sha256
    digests = ("", digest) if dense else (digest, "")
    monkeypatch.setattr(lung_landmarks, "SHA256", (*lung_landmarks.SHA256[:9], digests))
    check(load_lung_landmarks(10, dense), 0.97)


@pytest.mark.parametrize("case", [0, 11, "1", True])
def test_bad_case(case):
    with pytest.raises(ValueError, match=f"case: expected an integer from 1 to 10, got {case!r}"):
        load_lung_landmarks(case)


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = (
        "matching/dirlab_landmarks.npz: .* PYRO_STRUCTURED_DATA .* New Landmark Pairs/case3.mat of .* "
        "deshanyang/DIR-QA at commit b89bed65af"
    )
    with pytest.raises(FileNotFoundError, match=message):
        load_lung_landmarks(3)


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
@pytest.mark.parametrize("case", range(1, 11))
def test_true_landmarks(case):
    exhale, inhale = load_lung_landmarks(case)
    assert exhale.shape == inhale.shape == (300, 3)
    assert np.linalg.norm(exhale - inhale, axis=1).mean().round(2) == DISPLACEMENTS[case - 1]
    exhale, inhale = load_lung_landmarks(case, dense=True)
    assert exhale.shape == inhale.shape == (NUM_DENSE[case - 1], 3)
    assert 2 < np.linalg.norm(exhale - inhale, axis=1).mean() < 20


def test_dense_is_a_flag():
    with pytest.raises(ValueError, match="dense: expected True or False, got 2"):
        load_lung_landmarks(1, 2)
