"""Local files and downloads of a small file; the published table, if the data are there."""

import gzip
import os

import numpy as np
import pytest

from pyro_structured.datasets import NetworkSamples, bayesian_networks, load_alarm_samples, network_file
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.models import read_bif

CONTENT = gzip.compress(b"variable c { type discrete [1] { t }; } probability (c) { table 1; }")
# Variables, edges and free parameters, as the bnlearn repository states them.
TABLE = {
    "cancer": (5, 4, 10),
    "earthquake": (5, 4, 10),
    "survey": (6, 6, 21),
    "asia": (8, 8, 18),
    "sachs": (11, 17, 178),
    "alarm": (37, 46, 509),
}


def test_local_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "bif").mkdir()
    (tmp_path / "bif" / "asia.bif.gz").write_bytes(CONTENT)
    assert network_file("asia") == tmp_path / "bif" / "asia.bif.gz"


def test_download(serve, monkeypatch):
    file = serve(PublicFile("", "", "pgmpy/utils/example_models/asia.bif.gz", ""), CONTENT)
    monkeypatch.setitem(bayesian_networks.SHA256, "asia", file.sha256)
    assert read_bif(network_file("asia")).names == ["c"]


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name: expected one of \('cancer', .*'alarm'\), got 'iris'"):
        network_file("iris")


def test_missing_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = (
        "bif/asia.bif.gz: expected in the folder .* PYRO_STRUCTURED_DATA names, .* pgmpy/pgmpy at commit 94105f10d4"
    )
    with pytest.raises(FileNotFoundError, match=message):
        network_file("asia")
    with pytest.raises(FileNotFoundError, match="alarm_samples.npz: .*; unset PYRO_STRUCTURED_DATA, and it is downl"):
        load_alarm_samples()


def test_samples(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "bif").mkdir()
    parts = {name: np.full((2, 2), i, np.uint8) for i, name in enumerate(("train", "valid", "test"))}
    rest = {"card": np.array([3, 4], np.uint8), "names": np.array(["a", "b"]), "true_test_ll": np.float64(-1.5)}
    np.savez_compressed(tmp_path / "bif" / "alarm_samples.npz", **parts, **rest)
    found = load_alarm_samples()
    assert isinstance(found, NetworkSamples) and found[3:] == ((3, 4), ("a", "b"), -1.5)
    for i, rows in enumerate(found[:3]):
        np.testing.assert_array_equal(rows, np.full((2, 2), i))


def test_table_is_documented():
    lines = [line.split() for line in network_file.__doc__.splitlines() if line.strip().startswith("``")]
    assert {name.strip("`"): tuple(map(int, row)) for name, *row in lines} == TABLE
    assert list(bayesian_networks.SHA256) == list(TABLE)


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
@pytest.mark.parametrize("name", TABLE)
def test_published_table(name):
    network = read_bif(network_file(name))
    assert (len(network.names), sum(map(len, network.parents)), network.num_parameters) == TABLE[name]


def test_drawn_samples(serve, monkeypatch):
    """Shares of rows are the network's probabilities, and the same rows are drawn again."""
    text = """
        variable c { type discrete [2] { t, f }; } variable p { type discrete [3] { x, y, z }; }
        probability (c | p) { (x) 1, 0; (y) 0.5, 0.5; (z) 0.25, 0.75; } probability (p) { table 0.2, 0.3, 0.5; }
    """
    file = serve(PublicFile("", "", "pgmpy/utils/example_models/alarm.bif.gz", ""), gzip.compress(text.encode()))
    monkeypatch.setitem(bayesian_networks.SHA256, "alarm", file.sha256)
    samples = load_alarm_samples()
    assert [len(rows) for rows in samples[:3]] == [10_000, 2_000, 10_000] and samples.names == ("c", "p")
    joint = np.array([[0.2, 0.15, 0.125], [0.0, 0.15, 0.375]])
    drawn = np.histogram2d(*samples.train.T, bins=(2, 3), range=((0, 2), (0, 3)))[0] / 10_000
    np.testing.assert_allclose(drawn, joint, atol=0.03)
    expected = np.log(joint[tuple(samples.test.T)]).mean()
    np.testing.assert_allclose(samples.log_likelihood, expected)
    assert all(np.array_equal(rows, again) for rows, again in zip(samples[:3], load_alarm_samples()[:3], strict=True))


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_drawn_samples_are_those_of_the_file():
    drawn = bayesian_networks._draw_samples(read_bif(network_file("alarm")))
    samples = load_alarm_samples()
    assert all(np.array_equal(rows, others) for rows, others in zip(drawn[:3], samples[:3], strict=True))
    assert drawn[3:5] == samples[3:5] and abs(drawn.log_likelihood - samples.log_likelihood) < 1e-6


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_samples():
    """The test rows have the probability under the network that the file states."""
    found, network = load_alarm_samples(), read_bif(network_file("alarm"))
    assert found.names == tuple(network.names) and found.cardinalities == network.cardinalities
    assert tuple(map(len, found[:3])) == (10000, 2000, 10000)
    log_prob = 0.0
    for parents, table, d in zip(network.parents, network.tables, range(37), strict=True):
        rows = found.test.T[[*parents, d]]
        log_prob = log_prob + np.log((table / table.sum(-1, keepdims=True))[tuple(rows)])
    np.testing.assert_allclose(log_prob.mean(), found.log_likelihood, atol=1e-6)
