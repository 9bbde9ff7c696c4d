"""Sources of rows: what densities learn from them is what they learn from the same rows in an array or a frame."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pyro_structured import models
from pyro_structured.foundation.models.number_tables import number_rows

LIGHT = models.ThinJunctionTree(treewidth=1, penalty=1.0, smoothing=1.0, random_state=0)
CATEGORICAL = {
    "tree": LIGHT,
    "mixture": models.JunctionTreeMixture(n_components=2, treewidth=1, max_iter=2, random_state=0),
    "blocks": models.ExchangeableTreeMixture(n_components=1, max_iter=2, random_state=0),
    "latent": models.LatentTreeDensity(n_states=2, n_iter_no_change=1, random_state=0),
    "stack": models.StackedDensity(members=[("tree", LIGHT)], random_state=0),
}
BINARY = {
    "exchangeable": models.MEVMDensity(n_components=2, n_init=1, random_state=0),
    "network": models.ExchangeableSPN(n_networks=1, n_states=2, smoothing=1.0, max_iter=3, random_state=0),
}
ESTIMATORS = CATEGORICAL | BINARY
# One of either base class, through which the others read.
BASES = ("tree", "exchangeable")
# These learn from complete rows.
COMPLETE = ("blocks", "network")
NAMES = list("abcd")
pytestmark = pytest.mark.filterwarnings("ignore:no convergence")

RNG = np.random.default_rng(0)
PLAIN = RNG.integers(2, size=(60, 2)).repeat(2, axis=1).astype(np.float64)
PLAIN[:, 3] = RNG.integers(2, size=60)
PLAIN[0, 1:3] = 1 - PLAIN[0, 1:3]
GAPPY = np.where(RNG.random((60, 4)) < 0.1, np.nan, PLAIN)
WEIGHTS = np.arange(60) % 3
WORDS = np.where(np.isnan(GAPPY), None, np.array(["no", "yes"])[PLAIN.astype(int)])


class Stream(IterableDataset):
    """Rows of which nobody knows how many there are."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(torch.tensor(self.rows))


def loader(rows, kind=torch.float32):
    return DataLoader(TensorDataset(torch.tensor(rows).to(kind), torch.arange(len(rows))), batch_size=7)


def stored_nan(rows):
    """A sparse matrix in which all NaN are stored, and some zeros."""
    full = sparse.coo_matrix(np.ones_like(rows)).tocsr()
    full.data = rows.ravel().copy()
    return full


# For arrays of numbers.
COMPRESSED = {
    "csr": sparse.csr_matrix,
    "csc": sparse.csc_array,
    "coo": sparse.coo_matrix,
    "stored": stored_nan,
    "masked": lambda rows: np.ma.array(np.nan_to_num(rows, nan=-9).astype(int), mask=np.isnan(rows)),
    "loader": loader,
    "stream": lambda rows: DataLoader(Stream(rows), batch_size=11),
    "tensors": lambda rows: TensorDataset(torch.tensor(rows)),
}


def arrow_table(rows):
    pa = pytest.importorskip("pyarrow")
    gaps = [[None if value is None or value != value else value for value in column] for column in rows.T.tolist()]
    return pa.table([pa.array(column) for column in gaps], names=NAMES)


def parquet(rows, folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow_table(rows), folder / "rows.parquet", row_group_size=13)
    return folder / "rows.parquet"


def folder_of_files(rows, folder):
    for number, part in enumerate(np.array_split(rows, 3)):
        (folder / str(number)).mkdir()
        parquet(part, folder / str(number))
    return folder


def opened(rows, folder):
    from pyarrow.dataset import dataset

    return dataset(folder_of_files(rows, folder))


RECORDS = {
    "Table": lambda rows, _: arrow_table(rows),
    "RecordBatch": lambda rows, _: arrow_table(rows).combine_chunks().to_batches()[0],
    "RecordBatchReader": lambda rows, _: arrow_table(rows).to_reader(max_chunksize=17),
    "ParquetFile": lambda rows, folder: pytest.importorskip("pyarrow.parquet").ParquetFile(parquet(rows, folder)),
    "Dataset": lambda rows, folder: pytest.importorskip("pyarrow.dataset") and opened(rows, folder),
}


def learned(name, make):
    """Scores by an estimator that learned from a source, which ``make`` makes anew every time."""
    fitted = clone(ESTIMATORS[name]).fit(make(), X_val=make(), sample_weight=WEIGHTS)
    return np.append(fitted.score_samples(make()), fitted.score(make(), sample_weight=WEIGHTS))


def data(name):
    return PLAIN if name in COMPLETE else GAPPY


@pytest.fixture(scope="module")
def expected():
    return {name: learned(name, lambda name=name: data(name)) for name in ESTIMATORS}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("form", ["csr", "loader"])
def test_every_density(name, form, expected):
    assert ESTIMATORS[name].__sklearn_tags__().input_tags.sparse
    np.testing.assert_array_equal(learned(name, lambda: COMPRESSED[form](data(name))), expected[name])


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("form", sorted(COMPRESSED.keys() - {"csr", "loader"}))
def test_all_arrays(name, form, expected):
    np.testing.assert_array_equal(learned(name, lambda: COMPRESSED[form](GAPPY)), expected[name])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_density_from_records(name, expected):
    table = arrow_table(data(name))
    np.testing.assert_array_equal(learned(name, lambda: table), expected[name])


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("form", sorted(RECORDS.keys() - {"Table"}))
def test_all_records(name, form, expected, tmp_path):
    made = iter(range(9))

    def make():
        folder = tmp_path / str(next(made))
        folder.mkdir()
        return RECORDS[form](GAPPY, folder)

    np.testing.assert_array_equal(learned(name, make), expected[name])


def test_words():
    pandas = pytest.importorskip("pandas")
    frame, table = pandas.DataFrame(WORDS, columns=NAMES), arrow_table(WORDS)
    words, found = clone(LIGHT).fit(frame), clone(LIGHT).fit(table)
    np.testing.assert_array_equal(found.score_samples(table), words.score_samples(frame))
    np.testing.assert_array_equal(found.score_samples(frame), words.score_samples(table))
    assert [column.tolist() for column in found.categories_] == [["no", "yes"]] * 4


def mixed_frame():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame(
        {
            "word": rng.choice(["x", "y", "z"], 80),
            "whole": rng.integers(3, size=80),
            "flag": rng.random(80) < 0.5,
            "part": rng.choice([0.1, 1.5], 80),
            "large": rng.choice([2**53, 2**53 + 1], 80),
            "kind": pandas.Categorical(rng.choice(["u", "v"], 80), categories=["unused", "v", "u"]),
            "time": pandas.to_datetime(rng.choice(["2020-02-28", "2020-02-29"], 80)),
            "gaps": pandas.array(rng.integers(2, size=80), dtype="Int64"),
        }
    )
    for place, column in enumerate(("word", "kind", "time", "gaps")):
        frame.loc[place, column] = None
    return frame


def test_columns_of_many_kinds():
    pa, frame = pytest.importorskip("pyarrow"), mixed_frame()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    expected, found = clone(LIGHT).fit(frame), clone(LIGHT).fit(table)
    np.testing.assert_array_equal(found.score_samples(table), expected.score_samples(frame))
    np.testing.assert_array_equal(found.score_samples(frame), expected.score_samples(table))
    assert found.tree_ == expected.tree_ and (found.feature_names_in_ == expected.feature_names_in_).all()
    for one, other in zip(found.categories_, expected.categories_, strict=True):
        assert one.tolist() == other.tolist() and one.dtype == other.dtype


@pytest.mark.parametrize("form", ["csr", "loader", "Table"])
def test_unknown_values(form):
    forms = {"csr": sparse.csr_array, "loader": loader, "Table": arrow_table}
    strange = PLAIN.copy()
    strange[5, 2] = strange[7, 1] = 9.0
    model = clone(LIGHT).set_params(handle_unknown="error").fit(forms[form](PLAIN))
    with pytest.raises(ValueError, match=r"^X: expected categories of column 2 among \[0.*, 1.*\], got 9.* in row 5;"):
        model.score_samples(forms[form](strange))
    with pytest.raises(ValueError, match="^X_val: expected categories of column 2 among .* in row 5;"):
        model.fit(forms[form](PLAIN), X_val=forms[form](strange))
    model = model.set_params(handle_unknown="missing").fit(forms[form](PLAIN))
    gaps = np.where(strange == 9, np.nan, strange)
    np.testing.assert_array_equal(model.score_samples(forms[form](strange)), model.score_samples(forms[form](gaps)))


@pytest.mark.parametrize("form", ["csr", "loader", "Table"])
def test_categories_of_rows_without_weight_are_not_learned(form):
    forms = {"csr": sparse.csr_array, "loader": loader, "Table": arrow_table}
    strange = PLAIN.copy()
    strange[5] = 9.0
    weights = np.arange(60) != 5
    model = clone(LIGHT).fit(forms[form](strange), sample_weight=weights)
    assert [column.tolist() for column in model.categories_] == [[0, 1]] * 4


def test_pieces():
    """A model learns from a source piece by piece."""
    expected, found = (models.LatentTreeDensity(n_states=2, categories=2, random_state=0) for _ in range(2))
    for part in np.split(GAPPY, 2):
        expected.partial_fit(part)
        found.partial_fit(loader(part) if part is GAPPY[:30] else sparse.csr_array(part))
    np.testing.assert_array_equal(found.score_samples(GAPPY), expected.score_samples(GAPPY))


def test_thresholds_are_not_rounded_to_small_types():
    """An entry of 1.0001 in half precision is not above itself."""
    rows = np.where(PLAIN > 0, np.nan, 1.0)
    rows[::2] = 2 * PLAIN[::2]
    for number in (0.9999999, 1.0000001):
        model = models.MEVMDensity(n_components=1, binarize=number, random_state=0)
        expected = clone(model).fit(rows).score_samples(rows)
        np.testing.assert_array_equal(clone(model).fit(loader(rows)).score_samples(loader(rows)), expected)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_paths_and_batches_that_are_no_rows(name):
    pictures = DataLoader(torch.zeros(4, 2, 2), batch_size=2)
    for wrong, message in (
        ("rows.parquet", r"got 'rows.parquet'; a file is given as pyarrow.parquet.ParquetFile\(path\)"),
        (pictures, r"batches of rows, .* got \(2, 2, 2\)"),
    ):
        with pytest.raises(ValueError, match=f"^X: expected .*{message}"):
            clone(ESTIMATORS[name]).fit(wrong)
        with pytest.raises(ValueError, match=f"^X_val: expected .*{message}"):
            clone(ESTIMATORS[name]).fit(PLAIN, X_val=wrong)


@pytest.mark.parametrize("name", BASES)
def test_names_and_rows_of_tables_are_checked(name):
    table, estimator = arrow_table(PLAIN), clone(ESTIMATORS[name])
    fitted = clone(estimator).fit(table)
    assert fitted.feature_names_in_.tolist() == NAMES
    for wrong, message in (
        (table.select(["b", "a", "c", "d"]), "feature names should match"),
        (table.select(["a", "b"]), "missing|expected 4 columns, as in X, got 2"),
        (table.slice(0, 0), r"Found array with 0 sample\(s\) \(shape=\(0, 4\)\)"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.score_samples(wrong)
        with pytest.raises(ValueError, match=f"^X_val: .*({message})"):
            clone(estimator).fit(table, X_val=wrong)
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\)"):
        clone(estimator).fit(table.slice(0, 0))
    with pytest.raises(ValueError, match="feature names should match"):
        clone(estimator).fit(table, X_val=table.rename_columns(list("bacd")))


def test_words_are_no_numbers():
    pa = pytest.importorskip("pyarrow")
    for name in BINARY:
        with pytest.raises(ValueError, match="X: expected numbers, got others: could not convert string to float: '"):
            clone(ESTIMATORS[name]).fit(arrow_table(WORDS))
        dates = pa.table({"a": pa.array([1, 2], pa.timestamp("s"))})
        with pytest.raises(ValueError, match=r"X: expected numbers, got others: could not convert timestamp\[s\] to"):
            clone(ESTIMATORS[name]).fit(dates)


def test_gaps_are_refused_where_rows_have_to_be_complete():
    """Queries take them."""
    for name in COMPLETE:
        fitted = clone(ESTIMATORS[name]).fit(arrow_table(PLAIN))
        expected = fitted.score_samples(arrow_table(GAPPY))
        plain = clone(ESTIMATORS[name]).fit(PLAIN)
        for form in (np.asarray, loader, sparse.csr_array):
            np.testing.assert_array_equal(plain.score_samples(form(GAPPY)), expected)
        for form in (loader, sparse.csr_array, arrow_table):
            with pytest.raises(ValueError, match="Input X contains NaN"):
                clone(ESTIMATORS[name]).fit(form(GAPPY))


def test_classifier_of_exchangeable_blocks():
    expected = models.MEVMClassifier(random_state=0).fit(GAPPY, PLAIN[:, 0]).predict_log_proba(GAPPY)
    for form in (loader, arrow_table):
        found = models.MEVMClassifier(random_state=0).fit(form(GAPPY), PLAIN[:, 0]).predict_log_proba(form(GAPPY))
        np.testing.assert_array_equal(found, expected)


OTHERS: dict[str, Any] = {
    "bags": models.MultipleInstanceClassifier(),
    "labels": models.JunctionTreeCRF(),
    "pixels": models.PixelClassifier(),
    "pictures": models.SegmentationCRF(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_estimators_refuse_loaders(name):
    with pytest.raises((TypeError, ValueError), match="^(X|images): expected "):
        clone(OTHERS[name]).fit(loader(PLAIN), PLAIN[:, :2])


def test_memory_of_numbers_is_that_of_the_smallest_type():
    rows = (np.random.default_rng(0).random((20_000, 200)) < 0.3).astype(np.float64)
    rows[::100, 0] = np.nan
    table = pytest.importorskip("pyarrow").table([*rows.T], [*map(str, range(200))])
    tracemalloc.start()
    try:
        found = number_rows(table).values
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, rows)
    assert found.dtype == np.float16 and most < 3.5 * found.nbytes < rows.nbytes
