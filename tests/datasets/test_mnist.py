"""Local files and downloads of a few pixels; the true images, if the data are there."""

import gzip
import os
import struct

import numpy as np
import pytest

from pyro_structured.datasets import load_mnist_test, mnist

IMAGES = np.random.default_rng(1).integers(256, size=(3, 784), dtype=np.uint8)
LABELS = np.array([7, 2, 1], np.uint8)


def check(found):
    images, labels = found
    assert images.dtype == np.uint8 and images.flags.writeable
    np.testing.assert_array_equal(images, IMAGES)
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels, LABELS)


def test_local_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "images").mkdir()
    np.savez_compressed(tmp_path / "images" / "mnist_t10k_gray.npz", X=IMAGES, y=LABELS)
    check(load_mnist_test())


def test_download(serve, monkeypatch):
    headers = {"IMAGES": struct.pack(">4I", 0x803, 3, 28, 28), "LABELS": struct.pack(">2I", 0x801, 3)}
    for name, values in (("IMAGES", IMAGES), ("LABELS", LABELS)):
        content = gzip.compress(headers[name] + values.tobytes())
        monkeypatch.setattr(mnist, name, serve(getattr(mnist, name), content))
    check(load_mnist_test())


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = "images/mnist_t10k_gray.npz: .* PYRO_STRUCTURED_DATA .* unixpickle/mnistlite at commit 7e77ce183b"
    with pytest.raises(FileNotFoundError, match=message):
        load_mnist_test()


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_images():
    images, labels = load_mnist_test()
    assert images.shape == (10000, 784)
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
