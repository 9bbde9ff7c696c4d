"""Local files and downloads of small matrices; the published table, if the data are there."""

import gzip
import os

import numpy as np
import pytest

from pyro_structured.datasets import DensityData, density_data, load_density
from pyro_structured.datasets.public_file import PublicFile

# Variables and rows, as published by Van Haaren and Davis (2012).
TABLE = {
    "nltcs": (16, 16181, 2157, 3236),
    "msnbc": (17, 291326, 38843, 58265),
    "kdd": (64, 180092, 19907, 34955),
    "plants": (69, 17412, 2321, 3482),
    "baudio": (100, 15000, 2000, 3000),
    "jester": (100, 9000, 1000, 4116),
    "bnetflix": (100, 15000, 2000, 3000),
    "msweb": (294, 29441, 3270, 5000),
    "book": (500, 8700, 1159, 1739),
    "cwebkb": (839, 2803, 558, 838),
    "cr52": (889, 6532, 1028, 1540),
    "c20ng": (910, 11293, 3764, 3764),
}


def make_data(num_variables=11):
    generator = np.random.default_rng(1)
    return DensityData(*(generator.integers(2, size=(n, num_variables), dtype=np.uint8) for n in (5, 2, 3)))


def write_archive(folder, data, num_variables):
    (folder / "debd").mkdir()
    packed = {key: np.packbits(rows, axis=1) for key, rows in zip(("train", "valid", "test"), data, strict=True)}
    np.savez_compressed(folder / "debd" / "nltcs.npz", n_vars=np.int32(num_variables), **packed)


def assert_equal(found, expected):
    assert isinstance(found, DensityData)
    for rows, wanted in zip(found, expected, strict=True):
        assert rows.dtype == np.uint8 and rows.flags.writeable
        np.testing.assert_array_equal(rows, wanted)


def test_local_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    write_archive(tmp_path, make_data(), 11)
    assert_equal(load_density("nltcs"), make_data())


def test_too_many_variables(tmp_path, monkeypatch):
    """A converted file that counts more variables than it has bits gets no column of zeros."""
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    write_archive(tmp_path, make_data(8), 9)
    assert_equal(load_density("nltcs"), make_data(8))


def test_download(serve, monkeypatch):
    digests = []
    for split, rows in zip(("ts", "valid", "test"), make_data(), strict=True):
        content = gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows).encode())
        file = PublicFile("", "", f"data/generative/nltcs.{split}.data.gz", "")
        digests.append(serve(file, content).sha256)
    monkeypatch.setitem(density_data.SHA256, "nltcs", tuple(digests))
    assert_equal(load_density("nltcs"), make_data())


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name: expected one of \('nltcs', 'msnbc', .*'c20ng'\), got 'iris'"):
        load_density("iris")


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = (
        "debd/book.npz: expected in the folder .* PYRO_STRUCTURED_DATA names, which is .*; .* nicoladimauro/dcsn at"
    )
    with pytest.raises(FileNotFoundError, match=message):
        load_density("book")


def test_table_is_documented():
    lines = [line.split() for line in load_density.__doc__.splitlines() if line.strip().startswith("``")]
    documented = {name.strip("`"): tuple(int(number.replace(",", "")) for number in row) for name, *row in lines}
    assert documented == TABLE
    assert list(density_data.SHA256) == list(TABLE)


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
@pytest.mark.parametrize("name", TABLE)
def test_published_table(name):
    found = load_density(name)
    assert (found.train.shape[1], *map(len, found)) == TABLE[name]
    assert {rows.shape[1] for rows in found} == {TABLE[name][0]}
    assert {int(value) for rows in found for value in np.unique(rows)} == {0, 1}
