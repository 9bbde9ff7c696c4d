"""Data as they come from files, frames, tensors and lists: the results are those of a plain array, or errors name X."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone

from pyro_structured.models import (
    ExchangeableSPN,
    JunctionTreeCRF,
    JunctionTreeMixture,
    LatentTreeDensity,
    MEVMClassifier,
    MEVMDensity,
    ThinJunctionTree,
)

ESTIMATORS = {
    "classifier": MEVMClassifier(random_state=0),
    "exchangeable": MEVMDensity(n_components=2, n_init=1, random_state=0),
    "network": ExchangeableSPN(n_networks=1, n_states=2, random_state=0),
    "tree": ThinJunctionTree(treewidth=1, penalty=1.0, smoothing=1.0, random_state=0),
    "mixture": JunctionTreeMixture(n_components=2, treewidth=1, max_iter=2, random_state=0),
    "latent": LatentTreeDensity(n_states=2, n_iter_no_change=1, random_state=0),
    "field": JunctionTreeCRF(edges=[(0, 1)], tol=0.01),
}
BINARY, CATEGORICAL = ("classifier", "exchangeable", "network"), ("tree", "mixture", "latent")
GAPS = ("classifier", "exchangeable", "tree", "mixture", "latent")
SPARSE = (*BINARY, *CATEGORICAL)
NAMES = list("abcd")


def plain_rows():
    rng = np.random.default_rng(0)
    rows = rng.integers(2, size=(40, 2)).repeat(2, axis=1)
    rows[:, 3] = rng.integers(2, size=40)
    rows[0, 1:3] = 1 - rows[0, 1:3]
    return rows.astype(np.float64)


PLAIN = plain_rows()
LABELS = np.stack([PLAIN.sum(1) > 2, PLAIN[:, 0] > 0], 1)
LABELS[:5] ^= True
GAPPY = PLAIN.copy()
GAPPY[0, 0] = GAPPY[3, 3] = np.nan
OBJECTS = np.where(np.isnan(GAPPY), None, GAPPY.astype(object))
WORDS = np.array(["no", "yes"])[PLAIN.astype(int)]


@dataclass
class Scores:
    """Results of an estimator for its training data, and for the first rows in the same form."""

    learned: np.ndarray
    applied: np.ndarray


def scores(name: str, X: Any, part: Any = None) -> Scores:
    """Results of an estimator that learns from X, with the first rows for validation where it takes any."""
    estimator, part = clone(ESTIMATORS[name]), X if part is None else part
    number = X.shape[0] if hasattr(X, "shape") else len(X)
    parameters = estimator.get_params()
    if name == "classifier":
        found = estimator.fit(X, LABELS[:number, 0])
    elif name == "field":
        found = estimator.fit(X, LABELS[:number])
    else:
        found = estimator.fit(X, X_val=X)
    assert estimator.get_params() == parameters
    if name == "field":
        return Scores(found.log_prob(X, LABELS[:number]), found.to_pyro(part).marginals.numpy())
    query = found.predict_log_proba if name == "classifier" else found.score_samples
    return Scores(query(X), query(part))


@pytest.fixture(scope="module")
def expected():
    """For plain arrays, with gaps and without."""
    without = {name: scores(name, PLAIN) for name in ESTIMATORS}
    return without, {name: scores(name, GAPPY) for name in GAPS}


def frame(values, kinds=None):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(values, columns=NAMES).astype({} if kinds is None else kinds)


def read_only():
    values = PLAIN.copy()
    values.flags.writeable = False
    return values


def mapped(folder):
    np.save(folder / "rows.npy", PLAIN)
    return np.load(folder / "rows.npy", mmap_mode="r")


COMPLETE = {
    "bool": lambda _: PLAIN.astype(bool),
    "int8": lambda _: PLAIN.astype(np.int8),
    "float16": lambda _: PLAIN.astype(np.float16),
    "float32": lambda _: PLAIN.astype(np.float32),
    "objects": lambda _: PLAIN.astype(object),
    "read-only": lambda _: read_only(),
    "memory-mapped": mapped,
    "strided": lambda _: np.repeat(PLAIN, 2, axis=0)[::2],
    "lists": lambda _: PLAIN.tolist(),
    "tuples": lambda _: tuple(map(tuple, PLAIN.astype(bool).tolist())),
    "tensor": lambda _: torch.tensor(PLAIN),
    "tensor with gradient": lambda _: torch.tensor(PLAIN, requires_grad=True),
    "booleans in a tensor": lambda _: torch.tensor(PLAIN).bool(),
    "bfloat16": lambda _: torch.tensor(PLAIN).bfloat16(),
    "frame": lambda _: frame(PLAIN),
    "frame of bool": lambda _: frame(PLAIN, "bool"),
    "frame of boolean": lambda _: frame(PLAIN.astype(bool), "boolean"),
    "frame of Int64": lambda _: frame(PLAIN, "Int64"),
    "frame of categories": lambda _: frame(PLAIN.astype(int), "category"),
    "frame of objects": lambda _: frame(PLAIN.astype(int), object),
    "frame of many kinds": lambda _: frame(PLAIN, {"a": "bool", "b": "Int64", "c": "float32"}),
}
MISSING = {
    "float32": lambda: GAPPY.astype(np.float32),
    "objects": lambda: OBJECTS,
    "lists": lambda: OBJECTS.tolist(),
    "tensor": lambda: torch.tensor(GAPPY),
    "frame": lambda: frame(GAPPY),
    "frame of Int64": lambda: frame(GAPPY, "Int64"),
    "frame of boolean": lambda: frame(OBJECTS, "boolean"),
    "frame of objects with NA": lambda: frame(GAPPY, "Int64").astype(object),
    "NA in an array": lambda: frame(GAPPY, "Int64").to_numpy(dtype=object),
}
COMPRESSED = {
    "csr": lambda: sparse.csr_matrix(PLAIN),
    "csc": lambda: sparse.csc_array(PLAIN),
    "coo": lambda: sparse.coo_matrix(np.where(PLAIN > 0, PLAIN, 0).astype(bool)),
}


def copied(values):
    return values.copy() if hasattr(values, "copy") else values.clone() if hasattr(values, "clone") else list(values)


def same(one, other):
    if sparse.issparse(one):
        return (one != other).nnz == 0
    if hasattr(one, "equals"):
        return one.equals(other)
    return one == other if isinstance(one, (list, tuple)) else bool((np.asarray(one) == np.asarray(other)).all())


@pytest.mark.parametrize("form", COMPLETE)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_complete_data(name, form, expected, tmp_path):
    data = COMPLETE[form](tmp_path)
    before = data.detach().clone() if isinstance(data, torch.Tensor) else copied(data)
    found = scores(name, data)
    np.testing.assert_array_equal(found.learned, expected[0][name].learned)
    np.testing.assert_array_equal(found.applied, expected[0][name].applied)
    after = data.detach() if isinstance(data, torch.Tensor) else data
    assert same(after.float() if form == "bfloat16" else after, before.float() if form == "bfloat16" else before) or (
        isinstance(data, tuple) and list(data) == before
    )


@pytest.mark.parametrize("form", MISSING)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_missing_values(name, form, expected):
    data = MISSING[form]()
    if name in GAPS:
        np.testing.assert_array_equal(scores(name, data).learned, expected[1][name].learned)
    else:
        with pytest.raises(ValueError, match="X: expected numbers, got missing ones|Input X contains NaN"):
            scores(name, data)


@pytest.mark.parametrize("form", COMPRESSED)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_sparse_data(name, form, expected):
    data = COMPRESSED[form]()
    before = data.copy()
    if name in SPARSE:
        np.testing.assert_array_equal(scores(name, data).learned, expected[0][name].learned)
        assert (before != data).nnz == 0
    else:
        with pytest.raises(TypeError, match="Sparse data was passed for X, but dense data is required. Use '.toarray"):
            scores(name, data)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("kind", ["array", "str", "category"])
def test_words(name, kind, expected):
    data = WORDS if kind == "array" else frame(WORDS, kind)
    if name in CATEGORICAL:
        np.testing.assert_array_equal(scores(name, data).learned, expected[0][name].learned)
    else:
        with pytest.raises(ValueError, match="X: expected numbers, got others: could not convert string to float"):
            scores(name, data)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_row(name):
    if name == "mixture":
        with pytest.raises(ValueError, match="n_components: expected at most as many as rows to learn from"):
            scores(name, PLAIN[:1])
    else:
        assert np.isfinite(scores(name, PLAIN[:1]).learned).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_rows(name):
    with pytest.raises(ValueError, match=r"0 sample\(s\).* minimum of 1 is required"):
        scores(name, PLAIN[:0])
    with pytest.raises(ValueError, match=r"0 sample\(s\).* minimum of 1 is required"):
        scores(name, PLAIN, PLAIN[:0])


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.filterwarnings("ignore:X. none of 40 values")
def test_constant_columns(name):
    """A value that was never seen has a small probability."""
    data = PLAIN.copy()
    data[:, 1], data[:, 2] = 0.0, 1.0
    unseen = 1 - data
    found = scores(name, data, unseen)
    assert np.isfinite(found.learned).all() and np.isfinite(found.applied).all()
    if name not in ("classifier", "field"):
        assert (found.applied < found.learned.max() - 2).all()


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("data", [{"a": 1}, None, 3.0, "rows", [[0, 1], [1]], PLAIN[0], PLAIN[None]])
def test_no_table(name, data):
    with pytest.raises((TypeError, ValueError), match="X: expected numbers|2D array|dim 3"):
        clone(ESTIMATORS[name]).fit(data, LABELS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_columns_of_one_name(name):
    data = frame(PLAIN).set_axis(list("abca"), axis=1)
    with pytest.raises(ValueError, match=r"X: expected columns with different names, got \['a', 'b', 'c', 'a'\]"):
        scores(name, data)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_values_that_no_estimator_can_use(name):
    for value in (10**400, torch.zeros(2), np.zeros(3)):
        data = PLAIN.astype(object)
        data[0, 0] = value
        if name not in CATEGORICAL or not isinstance(value, int):
            with pytest.raises(ValueError, match="X: expected "):
                scores(name, data)
    with pytest.raises(ValueError, match="X: expected a dense tensor of numbers, got another"):
        scores(name, torch.tensor(PLAIN).to_sparse())


@pytest.mark.parametrize("name", BINARY)
def test_dates_are_no_numbers(name):
    """Nor is a missing one a zero."""
    pandas = pytest.importorskip("pandas")
    dates = pandas.DataFrame({"first": pandas.to_datetime(["2020-01-01", None] * 10), "second": range(20)})
    first = dates[["first"]]
    lists = [[np.datetime64("2020-01-01")], [np.datetime64("NaT", "D")]] * 10
    for data in (dates, first, first.to_numpy(), first - pandas.Timestamp("2020-01-01"), lists):
        with pytest.raises(ValueError, match="X: expected numbers, got others: (datetime|timedelta)64"):
            clone(ESTIMATORS[name]).fit(data, np.arange(20) % 2)
    with pytest.raises(ValueError, match="X: expected numbers, got others: datetime64.* in column 0"):
        clone(ESTIMATORS[name]).fit(first.set_axis([0], axis=1), np.arange(20) % 2)
    if name != "classifier":
        with pytest.raises(ValueError, match="X_val: expected numbers, got others: datetime64.* in column 'first'"):
            clone(ESTIMATORS[name]).fit(np.eye(2).repeat(10, 0), X_val=dates)
