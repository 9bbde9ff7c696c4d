"""Numbers of kinds against the values that they stand for, and the memory that reading takes."""

import datetime
import decimal
import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from torch.utils.data import DataLoader, Dataset

from pyro_structured.foundation.models.row_sources import rows_of_source
from pyro_structured.junction_trees.models.categorical_estimator import CategoricalEstimator
from pyro_structured.junction_trees.models.coded_columns import CodedColumns


def decoded(table):
    """Lists of the columns' values, ``None`` where one is missing."""
    pairs = zip(table.codes, table.different, strict=True)
    return [[None if code < 0 else values.tolist()[code] for code in codes] for codes, values in pairs]


def gappy(seed, kind):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-1, 3, size=(rng.integers(1, 9), rng.integers(1, 5))).astype(kind)
    if np.dtype(kind).kind == "f":
        rows[rng.random(rows.shape) < 0.2] = np.nan
    return rows


@pytest.mark.parametrize("kind", ["float64", "float32", "int8", "bool"])
@pytest.mark.parametrize("seed", range(5))
def test_sparse_matrices(kind, seed):
    rows = gappy(seed, kind)
    table = CodedColumns.from_sparse(sparse.csc_matrix(rows))
    expected = [[None if value != value else value for value in column] for column in rows.T.tolist()]
    assert decoded(table) == expected and table.shape == rows.shape and len(table) == len(rows)
    assert [set(column) - {None} for column in expected] == list(table.present())
    assert all(codes.dtype == np.int8 for codes in table.codes)
    chosen = np.random.default_rng(seed).random(len(rows)) < 0.5
    part = table[chosen]
    assert decoded(part) == [np.array(column, dtype=object)[chosen].tolist() for column in expected]
    assert list(part.present()) == [set(column) - {None} for column in decoded(part)]


def test_entries_that_are_stored_twice_are_added():
    matrix = sparse.csc_matrix((np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1]), np.array([0, 3, 3])), shape=(3, 2))
    before = matrix.data.copy()
    assert decoded(CodedColumns.from_sparse(matrix)) == [[3, 4, 0], [0, 0, 0]]
    np.testing.assert_array_equal(matrix.data, before)


def test_many_kinds():
    rows = np.arange(300.0)[:, None]
    table = CodedColumns.from_sparse(sparse.csc_matrix(rows))
    assert table.codes[0].dtype == np.int16 and decoded(table) == rows.T.tolist()


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow")


def columns_of_all_kinds(pa):
    day = datetime.date(2020, 2, 29)
    words = pa.array(["b", None, "a", "b", "c"])
    return {
        "words": words,
        "views": words.cast(pa.large_string()),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([2, None, 0, 0, 2], pa.uint8()), ["x", "unused", "y"]),
        "gap in it": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2, 2], pa.int16()), ["x", None, "x"]),
        "large": pa.array([2**53, 2**53 + 1, None, 0, 2**63 - 1]),
        "half": pa.array(np.array([0, 1, np.nan, 0.5, 1], dtype=np.float16)),
        "fractions": pa.array([0.1, np.nan, None, -0.0, 0.0]),
        "flags": pa.array([True, None, False, True, True]),
        "days": pa.array([day, None, day, day, day + datetime.timedelta(1)]),
        "times": pa.array([1, None, 2, 1, 1], pa.timestamp("us")),
        "zones": pa.array([1, None, 2, 1, 1], pa.timestamp("s", "UTC")),
        "lasts": pa.array([1, None, 2, 1, 1], pa.duration("s")),
        "decimals": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2.25"), None, None]),
        "bytes": pa.array([b"a", None, b"", b"a", b"b"]),
        "nothing": pa.nulls(5),
    }


def test_records(arrow):
    columns = columns_of_all_kinds(arrow)
    table = arrow.table(columns)
    several = arrow.concat_tables([table.slice(0, 2), table.slice(2, 0), table.slice(2)])
    expected = [[None if value != value else value for value in column.to_pylist()] for column in columns.values()]
    for source in (table, several, several.slice(0), table.to_reader(max_chunksize=3)):
        found = CodedColumns.from_records(rows_of_source(source))
        assert decoded(found) == expected and found.shape == (5, len(columns))
        assert [set(column) - {None} for column in expected] == list(found.present())
    part = CodedColumns.from_records(rows_of_source(table.slice(1, 3)))
    assert decoded(part) == [column[1:4] for column in expected]
    assert part.value(1, 0) == "a"
    assert "unused" not in {value for values in part.different for value in values.tolist()}


def test_many_words(arrow):
    words = [f"word {number}" for number in range(400)]
    found = CodedColumns.from_records(rows_of_source(arrow.table({"a": words}).to_reader(max_chunksize=100)))
    assert decoded(found) == [words] and found.codes[0].dtype == np.int16


def test_values_that_are_no_categories(arrow):
    for values, kind in (([[1], [2]], "list<"), ([{"x": 1}], "struct<x")):
        table = arrow.table({"fine": [1] * len(values), "bad": values})
        message = f"data: expected numbers, strings or other categories in column 'bad', got {kind}.*unhashable"
        with pytest.raises(ValueError, match=message):
            CodedColumns.from_records(rows_of_source(table, "data"))


class Reader(CategoricalEstimator):
    """Keeps the codes that it reads."""

    def __init__(self, categories="auto", handle_unknown="other"):
        self.categories, self.handle_unknown = categories, handle_unknown

    def fit(self, X):
        self.codes, _ = self._learn_categories(X, None)
        return self


class Batches(Dataset):
    """Batches of rows."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place]


def file_of_rows(rows, folder):
    np.save(folder / "rows.npy", rows)
    return np.load(folder / "rows.npy", mmap_mode="r")


SOURCES = {
    "sparse": lambda rows, _: sparse.csr_array(rows),
    "loader": lambda rows, _: DataLoader(Batches(np.split(rows, 20)), batch_size=None, collate_fn=lambda rows: rows),
    "file": file_of_rows,
    "table": lambda rows, _: pytest.importorskip("pyarrow").table([*rows.T], names=[f"x{d}" for d in range(200)]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_memory_is_that_of_codes(name, tmp_path):
    rows = (np.random.default_rng(0).random((20_000, 200)) < 0.03).astype(np.float32)
    expected = rows.astype(np.int8)
    source = SOURCES[name](rows, tmp_path)
    tracemalloc.start()
    try:
        codes = Reader().fit(source).codes
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(codes, expected)
    assert codes.dtype == np.int8
    # A copy in single precision takes four times as much as the codes. One column is converted at once; and of arrays,
    # a piece of rows is looked through for gaps.
    assert most < 3.5 * codes.nbytes < rows.nbytes
