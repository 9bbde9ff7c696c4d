"""Local files and downloads of a few speeds; the true ones, if the data are there."""

import os

import numpy as np
import pytest

from pyro_structured.datasets import load_traffic_speeds, traffic_speeds

SPEEDS = np.array([[64.375, 67.5], [1.0, 0.1], [62.666667, 70.0]])


def check(found):
    speeds, detectors = found
    assert speeds.dtype == np.float32 and detectors == ("773869", "767541")
    np.testing.assert_array_equal(speeds, SPEEDS.astype(np.float32))


def test_local_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "sensors").mkdir()
    archive = {"speed": SPEEDS.astype(np.float32), "sensor_id": np.array(["773869", "767541"])}
    np.savez_compressed(tmp_path / "sensors" / "la_traffic_207x2016.npz", **archive)
    check(load_traffic_speeds())


def test_download(serve, monkeypatch):
    lines = ["773869,767541", *(",".join(map(repr, row)) for row in SPEEDS.tolist())]
    content = ("\n".join(lines) + "\n").encode()
    monkeypatch.setattr(traffic_speeds, "SPEEDS", serve(traffic_speeds.SPEEDS, content))
    check(load_traffic_speeds())


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = "sensors/la_traffic_207x2016.npz: .* PYRO_STRUCTURED_DATA .* lehaifeng/T-GCN at commit 219a2346f5"
    with pytest.raises(FileNotFoundError, match=message):
        load_traffic_speeds()


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_speeds():
    speeds, detectors = load_traffic_speeds()
    assert speeds.shape == (2016, 207) and len(set(detectors)) == 207
    assert speeds.min() >= 0 and speeds.max() == 70
