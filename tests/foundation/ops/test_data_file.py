"""Damaged files, archives and arrays of other kinds."""

import gzip
import io
import zipfile

import numpy as np
import pytest

from pyro_structured.datasets import load_borlange_trips, load_density, load_sioux_falls, load_text
from pyro_structured.foundation.ops import data_file
from pyro_structured.foundation.ops.data_file import ArrayKind, read_arrays, read_content

KINDS = {
    "rows": ArrayKind("u", ("number", 3)),
    "labels": ArrayKind("iu", ("number",), 0, 9),
    "weights": ArrayKind("f", ("number",), optional=True),
}
ROWS, LABELS = np.zeros((2, 3), np.uint8), np.array([0, 9])


def test_right_arrays(tmp_path):
    """Arrays that are not asked for are not read."""
    path = tmp_path / "right.npz"
    np.savez(path, rows=np.asfortranarray(ROWS), labels=LABELS, other=np.array([None]))
    found = read_arrays(path, KINDS)
    assert list(found) == ["rows", "labels"] and all(array.flags.writeable for array in found.values())
    np.testing.assert_array_equal(found["rows"], ROWS)
    np.savez_compressed(path, rows=ROWS, labels=LABELS, weights=np.ones(2))
    assert list(read_arrays(path, KINDS)) == ["rows", "labels", "weights"]


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"labels": LABELS}, r"expected the arrays \['labels', 'rows', 'weights'\], got none of the name 'rows'"),
        ({"rows": ROWS.T}, r"rows: expected unsigned integers of shape \(number, 3\), got uint8 of shape \(3, 2\)"),
        ({"rows": ROWS[:0]}, r"rows: expected .* of shape \(number, 3\), got uint8 of shape \(0, 3\)"),
        ({"rows": ROWS[0]}, r"rows: expected .* of shape \(number, 3\), got uint8 of shape \(3,\)"),
        ({"rows": ROWS.astype(float)}, r"rows: expected unsigned integers .* got float64 of shape \(2, 3\)"),
        ({"labels": np.arange(3)}, r"labels: expected integers of shape \(2,\), got int64 of shape \(3,\)"),
        ({"labels": np.array([0, 10])}, "labels: expected finite numbers from 0 to 9, got others"),
        ({"weights": np.array([1, np.nan])}, "weights: expected finite numbers from -inf to inf, got others"),
        ({"labels": np.array([0, None])}, r"labels: expected integers of shape \(2,\), got object of shape \(2,\)"),
    ],
)
def test_other_arrays(arrays, message, tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, **arrays if "none" in message else {"rows": ROWS, "labels": LABELS} | arrays)
    with pytest.raises(ValueError, match=f"other.npz: {message}"):
        read_arrays(path, KINDS)


def test_damaged_archives(tmp_path):
    """Whatever the standard library raises."""
    path = tmp_path / "damaged.npz"
    np.savez_compressed(path, rows=np.arange(300, dtype=np.uint8).reshape(-1, 3), labels=np.zeros(100, int))
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for damaged in (b"", content[: len(content) // 2], content[:-30], b"PK" + content[:40], bytes(100)):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged.npz: expected an archive of numpy's arrays \(.npz\), got other"):
            read_arrays(path, KINDS)
    refused = 0
    for place in generator.integers(len(content), size=50):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            read_arrays(path, KINDS)
        except ValueError as error:
            assert f"{path}: " in str(error) and "expected" in str(error)
            refused += 1
    assert refused > 20


def write_member(path, shape, content):
    """An archive whose arrays say that they have a shape."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rows.npy", member.getvalue() + content)


def test_sizes_are_known_before_memory_is_taken(tmp_path, monkeypatch):
    path = tmp_path / "large.npz"
    kinds = {"rows": ArrayKind("u", ("number", 3))}
    write_member(path, (10**12, 3), bytes(300))
    with pytest.raises(ValueError, match=r"large.npz: expected at most 67108864 bytes in arrays, got 3000000000000"):
        read_arrays(path, kinds)
    write_member(path, (200, 3), bytes(300))
    with pytest.raises(ValueError, match=r"large.npz: expected an array in numpy's format in 'rows', got other bytes"):
        read_arrays(path, kinds)
    monkeypatch.setattr(data_file, "LARGEST_CONTENT", 2**10)
    write_member(path, (2**10, 3), bytes(3 * 2**10))
    with pytest.raises(ValueError, match="large.npz: expected at most 1024 bytes in arrays, got 3072"):
        read_arrays(path, kinds)


def test_contents(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"abc"))
    assert read_content(path) == read_content(path, 3) == b"abc"
    with pytest.raises(ValueError, match="text.gz: expected at most 2 bytes, decompressed, got more"):
        read_content(path, 2)
    path.write_bytes(gzip.compress(b"abc")[:-6])
    with pytest.raises(ValueError, match="text.gz: expected what gzip has compressed, got other bytes"):
        read_content(path)


@pytest.mark.parametrize(
    "load, path, arrays, message",
    [
        (
            lambda: load_density("nltcs"),
            "debd/nltcs.npz",
            {"n_vars": 100, "train": ROWS, "valid": ROWS, "test": ROWS},
            "a number of variables in 'n_vars' that are packed in 24 bits",
        ),
        (
            lambda: load_text("enron"),
            "text/enron1.npz",
            {
                "indices": [4],
                "indptr": [0, 1],
                "shape": [1, 2],
                "y": [0],
                "names": ["a"],
                "vocab": ROWS[0],
                "split": [0],
            },
            "as many words in 'vocab' as in 'shape'",
        ),
        (
            load_borlange_trips,
            "paths/borlange_gps.npz",
            {
                "incidence": [[1, 2], [2, 3]],
                "time": [[1.0, 2.0, 0.5]],
                "angle": [[1.0, 2.0, 0.5]],
                "paths": [3, 1, 3, 3],
                "ptr": [0, 4],
            },
            "paths from and to their destinations along the edges of 'incidence'",
        ),
    ],
)
def test_numbers_that_do_not_fit_together(load, path, arrays, message, tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / path).parent.mkdir()
    np.savez(tmp_path / path, **{name: np.array(array) for name, array in arrays.items()})
    with pytest.raises(ValueError, match=f"{tmp_path / path}: expected {message}.*, got others"):
        load()


def test_damaged_tables(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "paths").mkdir()
    path = tmp_path / "paths" / "SiouxFalls_net.tntp.gz"
    for text in ("", "<END OF METADATA>\n1 2 3\n", "<END OF METADATA>\n1 2 x 4 5 6 7 8 9 10\n"):
        path.write_bytes(gzip.compress(text.encode()))
        with pytest.raises(ValueError, match=f"{path}: expected rows of 10 finite numbers, got other bytes"):
            load_sioux_falls()
