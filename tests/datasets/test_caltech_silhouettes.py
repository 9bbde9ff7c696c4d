"""Local files and downloads of a few silhouettes; the true ones, if the data are there."""

import io
import os

import numpy as np
import pytest
from scipy.io import savemat

from pyro_structured.datasets import caltech_silhouettes, load_caltech_silhouettes

PARTS = [np.random.default_rng(n).integers(2, size=(n, 28, 28), dtype=np.uint8) for n in (3, 1, 2)]
# Columns of pixels, 1 where the background is.
STORED = {
    name: 1 - part.transpose(0, 2, 1).reshape(-1, 784)
    for name, part in zip(("train", "val", "test"), PARTS, strict=True)
}


def check(found):
    for rows, part in zip(found, PARTS, strict=True):
        assert rows.dtype == np.uint8
        np.testing.assert_array_equal(rows.reshape(-1, 28, 28), part)


def test_local_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "images").mkdir()
    packed = {name: np.packbits(rows, axis=1) for name, rows in STORED.items()}
    np.savez_compressed(tmp_path / "images" / "caltech101_silhouettes28.npz", **packed)
    check(load_caltech_silhouettes())


def test_download(serve, monkeypatch):
    content = io.BytesIO()
    savemat(content, {f"{name}_data": rows for name, rows in STORED.items()})
    monkeypatch.setattr(caltech_silhouettes, "FILE", serve(caltech_silhouettes.FILE, content.getvalue()))
    check(load_caltech_silhouettes())


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = "caltech101_silhouettes28.npz: .* markezorvaldez/rbm-experiment at commit .*; unset PYRO_STRUCTURED_DATA"
    with pytest.raises(FileNotFoundError, match=message):
        load_caltech_silhouettes()


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_silhouettes():
    parts = load_caltech_silhouettes()
    assert [part.shape for part in parts] == [(4100, 784), (2264, 784), (2307, 784)]
    # Objects are in the middle.
    shares = parts.train.reshape(-1, 28, 28).mean(0)
    assert shares[10:18, 10:18].min() > 0.7 > 0.5 > shares[[0, 0, -1, -1], [0, -1, 0, -1]].max()
