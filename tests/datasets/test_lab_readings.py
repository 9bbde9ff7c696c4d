"""Local files and downloads of a few readings; the true ones, if the data are there."""

import os

import numpy as np
import pytest

from pyro_structured.datasets import lab_readings, load_lab_readings

TRAIN, TEST = np.array([[18.3, 18.7], [18.2, 18.6], [18.1, 18.5]]), np.array([[44.0, 44.3]])


def check(found):
    for readings, expected in zip(found, (TRAIN, TEST), strict=True):
        assert readings.dtype == np.float32
        np.testing.assert_array_equal(readings, expected.astype(np.float32))


@pytest.mark.parametrize("name", ["temperature", "humidity"])
def test_local_file(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "sensors").mkdir()
    archive = {
        f"{quantity}{part}": rows.astype(np.float32) + 100 * (quantity.lower() != name)
        for quantity in ("Temperature", "Humidity")
        for part, rows in (("Train", TRAIN), ("Test", TEST))
    }
    np.savez_compressed(tmp_path / "sensors" / "intel_lab_50x240.npz", **archive)
    check(load_lab_readings(name))


def test_download(serve, monkeypatch):
    digests = []
    for part, rows in (("Train", TRAIN), ("Test", TEST)):
        content = "".join(",".join(f"{number:.2E}" for number in column) + "\n" for column in rows.T).encode()
        file = lab_readings.PublicFile("", "", f"intelHumidity{part}.csv", "")
        digests.append(serve(file, content).sha256)
    monkeypatch.setitem(lab_readings.SHA256, "humidity", tuple(digests))
    check(load_lab_readings("humidity"))


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name: expected one of \('temperature', 'humidity'\), got 'light'"):
        load_lab_readings("light")


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = "sensors/intel_lab_50x240.npz: .* PYRO_STRUCTURED_DATA .* littlepretty/SensorPGM at commit 06c8c980b0"
    with pytest.raises(FileNotFoundError, match=message):
        load_lab_readings()


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_readings():
    for name, lowest, highest in (("temperature", 13, 37), ("humidity", 14, 56)):
        train, test = load_lab_readings(name)
        assert train.shape == (144, 50) and test.shape == (96, 50)
        assert lowest < min(train.min(), test.min()) and max(train.max(), test.max()) < highest
