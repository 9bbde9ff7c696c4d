"""Batches that are joined, in the smallest type; what sources are not taken for rows."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from pyro_structured.foundation.models.argument_checks import plain_array
from pyro_structured.foundation.models.row_sources import RecordBatches, joined_batches, rows_of_source

NAN = float("nan")


class Stream(IterableDataset):
    """Rows one after the other, of which nobody knows how many."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


@pytest.mark.parametrize(
    "batches, kind",
    [
        ([[[0, 1]], [[255, 2]]], "uint8"),
        ([[[0, 1]], [[256, 2]]], "uint16"),
        ([[[0, 5]], [[-1, 2]]], "int8"),
        ([[[0, 200]], [[-1, 2]]], "int16"),
        ([[[0, 2**16]], [[1, 2]]], "uint32"),
        ([[[0, 2**16]], [[-1, 2]]], "int32"),
        ([[[2**53 + 1, 0]], [[-1, 2]]], "int64"),
        ([[[0.0, 1.0]], [[3, 2]]], "uint8"),
        ([[[0.0, NAN]], [[-3, 2]]], "float16"),
        ([[[NAN, NAN]], [[NAN, NAN]]], "float16"),
        ([[[0.0, 2049]], [[NAN, 2]]], "float32"),
        ([[[0.0, 2**24 + 1]], [[NAN, 2]]], "float64"),
        ([[[0.0, 1.0]], [[0.1, 2]]], "float64"),
        ([[[0.0, 1.0]], [[0.0, np.inf]]], "float64"),
        ([[[0.0, 1.0]], [[0.0, 1e300]]], "float64"),
        ([[[False, True]], [[True, True]]], "bool"),
        ([[[False, True]], [[3, 1]]], "int64"),
        ([[["a", "b"]], [["no", "a"]]], "<U2"),
    ],
)
def test_smallest_type(batches, kind):
    arrays = [np.array(batch) for batch in batches]
    found = joined_batches(arrays)
    assert found.dtype == kind
    np.testing.assert_array_equal(found, np.concatenate(arrays))


def test_fractions_keep_their_precision():
    whole = np.array([[70_000.0, 1.0]], dtype=np.float32)
    fractions = np.array([[0.1, NAN]], dtype=np.float32)
    found = joined_batches([whole, fractions])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.concatenate([whole, fractions]))


def test_empty_batches():
    empty = np.empty((0, 2))
    assert joined_batches([empty, np.array([[1, 2]]), empty]).tolist() == [[1, 2]]
    assert joined_batches([empty, np.array([[1, 2]]), empty]).dtype == np.uint8
    assert joined_batches([empty, empty]).shape == (0, 2)


def test_memory_of_batches_may_be_used_again():
    def batches():
        kept = np.empty((2, 3))
        for number in range(4):
            kept[:] = number / 3
            yield kept

    np.testing.assert_array_equal(joined_batches(batches())[:, 0], np.arange(4).repeat(2) / 3)


def test_loaders():
    rows = torch.arange(21.0).reshape(7, 3) % 4
    labels = torch.arange(7)
    for loader in (
        DataLoader(TensorDataset(rows, labels), batch_size=2),
        DataLoader(TensorDataset(rows), batch_size=3),
        DataLoader(rows, batch_size=3),
        DataLoader(Stream(rows.numpy()), batch_size=5),
        DataLoader(TensorDataset(rows.bfloat16(), labels), batch_size=7),
        DataLoader(Subset(TensorDataset(rows, labels), range(7)), batch_size=2),
        TensorDataset(rows, labels),
    ):
        assert rows_of_source(loader).tolist() == rows.tolist()
    assert rows_of_source(DataLoader(rows, batch_size=3)).dtype == np.uint8
    booleans = rows_of_source(DataLoader(rows > 1, batch_size=2))
    assert booleans.dtype == bool and booleans.tolist() == (rows > 1).tolist()


@pytest.mark.parametrize(
    "loader, message",
    [
        (DataLoader(Stream([]), batch_size=2), "at least one batch of rows, got none"),
        (
            DataLoader([{"a": torch.ones(3)}] * 4, batch_size=2),
            "batches that are tensors of rows, or tuples that begin with one, got a dict in batch 0",
        ),
        (DataLoader(["a", "b"], batch_size=2), "batches that are tensors of rows, .* got a str in batch 0"),
        (
            DataLoader(TensorDataset(torch.ones(3, 1, 4, 5)), batch_size=2),
            r"shape \(number, columns\), got \(2, 1, 4, 5\) in batch 0; pictures are flattened, as by torch.flatten",
        ),
        (DataLoader(torch.ones(3), batch_size=2), r"shape \(number, columns\), got \(2,\) in batch 0$"),
        (DataLoader(torch.ones(3, 4), batch_size=None), r"shape \(number, columns\), got \(4,\) in batch 0$"),
        (
            DataLoader([torch.ones(2, 4), torch.ones(1, 4), torch.ones(2, 3)], batch_size=None),
            "batches of 4 columns, as the first one, got 3 in batch 2",
        ),
        (Subset(TensorDataset(torch.ones(3, 4)), [0, 2]), "got a Subset; .* as torch.utils.data.DataLoader"),
        ("rows.parquet", r"got 'rows.parquet'; a file is given as pyarrow.parquet.ParquetFile\(path\)"),
        (Path("rows.parquet"), r"got .*Path\('rows.parquet'\); a file is given as pyarrow.parquet.ParquetFile\(path\)"),
    ],
)
def test_sources_that_are_no_rows(loader, message):
    with pytest.raises(ValueError, match=f"^data: expected .*{message}"):
        rows_of_source(loader, "data")


def test_errors_of_loaders_pass():
    def broken():
        yield torch.ones(2)
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        rows_of_source(DataLoader(Stream(broken()), batch_size=1))


def test_other_values_are_left_alone():
    for values in (np.eye(2), [[1, 2]], torch.eye(2), None, 3.0, {"a": 1}):
        assert rows_of_source(values) is values


def test_memory_is_that_of_small_integers():
    rows = np.random.default_rng(0).integers(3, size=(20_000, 100)).astype(np.float32)
    loader = DataLoader(Stream(np.split(rows, 20)), batch_size=None, collate_fn=lambda batch: batch)
    tracemalloc.start()
    try:
        found = rows_of_source(loader)
        assert tracemalloc.get_traced_memory()[1] < 2.5 * found.nbytes < 0.7 * rows.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int8", "bool", "uint16"])
def test_types_of_tensors(name):
    values = torch.tensor([[0, 1], [1, 0]]).to(getattr(torch, name))
    assert plain_array(values).tolist() == [[0, 1], [1, 0]]


def test_tensors_without_numbers():
    with pytest.raises(ValueError, match="X: expected a dense tensor of numbers, got another: Cannot copy out of meta"):
        plain_array(torch.zeros(2, 2, device="meta"))


class TestArrow:
    """Batches of records."""

    @pytest.fixture
    def arrow(self):
        return pytest.importorskip("pyarrow")

    def test_pieces(self, arrow):
        """Large batches come in pieces, and views of tables stay views."""
        table = arrow.table({"a": np.arange(100_000), "b": np.zeros(100_000)}).slice(5)
        for source in (table, table.to_reader(), table.combine_chunks().to_batches()[0]):
            records = rows_of_source(source)
            assert isinstance(records, RecordBatches) and records.header.shape == (0, 2)
            pieces = [piece.column(0).to_numpy() for piece in records.pieces]
            assert max(map(len, pieces)) <= 2**16 and len(pieces) > 1
            np.testing.assert_array_equal(np.concatenate(pieces), np.arange(5, 100_000))

    def test_columns_of_one_name(self, arrow):
        table = arrow.table([[1], [2]], names=["a", "a"])
        with pytest.raises(ValueError, match=r"X: expected columns with different names, got \['a', 'a'\]"):
            rows_of_source(table)

    def test_arrays_are_left_alone(self, arrow):
        values = arrow.array([1, 2])
        assert rows_of_source(values) is values
