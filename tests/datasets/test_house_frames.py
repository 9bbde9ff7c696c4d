"""Local files and downloads of a few points; the true frames, if the data are there."""

import io
import os

import numpy as np
import pytest
from scipy.io import savemat

from pyro_structured.datasets import house_frames, load_house_frames
from pyro_structured.datasets.shape_context import shape_contexts

POINTS = np.random.default_rng(1).normal(size=(4, 3, 2))
CONTEXTS = np.random.default_rng(2).integers(3, size=(4, 3, 60), dtype=np.uint8)


def check(found, points, contexts):
    for array, dtype, expected in zip(found, (np.float64, np.int64), (points, contexts), strict=True):
        assert array.dtype == dtype and array.flags.writeable
        np.testing.assert_array_equal(array, expected)


def test_local_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "matching").mkdir()
    points = POINTS.astype(np.float32)
    np.savez_compressed(tmp_path / "matching" / "cmu_house.npz", points=points, shape_context=CONTEXTS)
    check(load_house_frames(), points, CONTEXTS)


def test_download(serve, monkeypatch):
    content = io.BytesIO()
    frames = np.empty(len(POINTS), dtype=object)
    for i, points in enumerate(POINTS):
        frames[i] = points.T
    savemat(content, {"CMUM": {"house": {"XTs": frames}, "hotel": {"XTs": frames[:1]}}})
    monkeypatch.setattr(house_frames, "LANDMARKS", serve(house_frames.LANDMARKS, content.getvalue()))
    check(load_house_frames(), POINTS, shape_contexts(POINTS))


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = "matching/cmu_house.npz: .* PYRO_STRUCTURED_DATA .* repository zhfe99/fgm at commit 06ebf17787"
    with pytest.raises(FileNotFoundError, match=message):
        load_house_frames()


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_frames():
    """The published shape contexts are those that a download computes."""
    points, contexts = load_house_frames()
    assert points.shape == (111, 30, 2) and points.min() > 0 and points.max() < 600
    assert contexts.shape == (111, 30, 60)
    np.testing.assert_array_equal(shape_contexts(points), contexts)
