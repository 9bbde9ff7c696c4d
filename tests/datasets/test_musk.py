"""Local files of a few molecules; the true ones, if the data are there."""

import os

import numpy as np
import pytest

from pyro_structured.datasets import load_musk1

RNG = np.random.default_rng(0)
ARRAYS = {
    "X": RNG.integers(-300, 300, size=(7, 166)).astype(np.int16),
    "bag": np.array([0, 0, 1, 1, 1, 2, 2], np.int16),
    "y": np.array([0, 1, 1], np.uint8),
    "cv_folds": 1 - np.eye(3, dtype=np.uint8)[None],
}


@pytest.fixture
def store(tmp_path, monkeypatch):
    def put(**changes):
        monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
        (tmp_path / "mil").mkdir(exist_ok=True)
        np.savez_compressed(tmp_path / "mil" / "musk1.npz", **{**ARRAYS, **changes})

    return put


def test_local_file(store):
    store()
    musk = load_musk1()
    assert musk.data.dtype == np.float64 and musk.target.dtype == musk.groups.dtype == np.int64
    np.testing.assert_array_equal(musk.data, ARRAYS["X"])
    assert musk.target.tolist() == [0, 0, 1, 1, 1, 1, 1] and musk.groups.tolist() == [0, 0, 1, 1, 1, 2, 2]
    np.testing.assert_array_equal(musk.test_molecules, [np.eye(3, dtype=bool)])


def test_damaged_file(store):
    store(bag=np.array([0, 0, 1, 1, 1, 3, 3]))
    with pytest.raises(ValueError, match="musk1.npz: expected numbers in 'bag' of all the molecules in 'y'"):
        load_musk1()
    store(y=np.array([0, 1, 2], np.uint8))
    with pytest.raises(ValueError, match="musk1.npz"):
        load_musk1()


def test_missing_file(tmp_path, monkeypatch):
    for folder in ("", str(tmp_path)):
        monkeypatch.setenv("PYRO_STRUCTURED_DATA", folder)
        with pytest.raises(FileNotFoundError, match="mil/musk1.npz: .* PYRO_STRUCTURED_DATA .* Musk .*UCI"):
            load_musk1()


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_molecules():
    musk = load_musk1()
    assert musk.data.shape == (476, 166) and musk.test_molecules.shape == (5, 10, 92)
    assert np.bincount(musk.target[np.unique(musk.groups, return_index=True)[1]]).tolist() == [45, 47]
    assert (musk.test_molecules.sum(1) == 1).all()
