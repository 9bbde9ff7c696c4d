"""Columns of one table that have different types, and dates of all units, through all estimators of categories."""

import datetime
import warnings

import numpy as np
import pytest

from pyro_structured.foundation.models.argument_checks import checked_pictures
from pyro_structured.junction_trees.models.typed_columns import typed_columns
from pyro_structured.models import JunctionTreeCRF, JunctionTreeMixture, ThinJunctionTree

pandas = pytest.importorskip("pandas")
DENSITIES = [ThinJunctionTree(treewidth=1, random_state=0), JunctionTreeMixture(n_components=1, random_state=0)]
FEATURES = np.random.default_rng(0).normal(size=(100, 2))


def dates(unit):
    days = pandas.date_range("2020-02-28", periods=4).repeat(25).to_series(index=range(100))
    return pandas.DataFrame({"seen": days, "again": days}).astype(f"datetime64[{unit}]")


@pytest.mark.parametrize("model", DENSITIES, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_dates_of_all_units_are_the_same(model, unit):
    given = dates(unit)
    model = model.fit(given)
    expected = model.score_samples(given)
    for other in ("s", "ms", "us", "ns"):
        assert (model.score_samples(dates(other)) == expected).all()
        assert (model.fit(given.to_numpy()).score_samples(dates(other).to_numpy()) == expected).all()
        model.fit(given)
    (drawn,) = model.sample(1)[:, 0]
    assert datetime.datetime(2020, 2, 28) <= drawn <= datetime.datetime(2020, 3, 2)
    gappy = model.fit(given.mask(given.index.to_series() == 3))
    if isinstance(model, ThinJunctionTree):
        assert gappy.predict_missing_proba(given)[3, 0].max() > 0.9


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_labels_that_are_dates(unit):
    model = JunctionTreeCRF().fit(FEATURES, dates(unit))
    assert model.score(FEATURES, dates("ns")) == model.score(FEATURES, dates("us")) > 0.1
    assert model.fit(FEATURES, dates(unit)["seen"]).predict(FEATURES)[0] in set(dates("us")["seen"])


def test_dates_given_as_categories():
    days = np.array(["2020-02-28", "2020-02-29", "2020-03-01", "2020-03-02"], dtype="datetime64[ns]")
    model = ThinJunctionTree(treewidth=1, categories=[days, days]).fit(dates("us"))
    assert model.categories_[0].tolist() == days.astype("datetime64[us]").tolist()


def test_dates_finer_than_microseconds():
    with pytest.raises(ValueError, match="X: expected dates and durations in whole microseconds, got finer ones"):
        ThinJunctionTree(treewidth=1).fit(np.full((3, 1), np.datetime64("2020-01-01T00:00:00.000000001")))


@pytest.mark.parametrize("model", DENSITIES, ids=lambda model: type(model).__name__)
def test_columns_of_different_types(model):
    frame = dates("ns").assign(lasts=pandas.to_timedelta([1, 2] * 50, unit="h"), k=[0, 1] * 50, b=[True, False] * 50)
    frame = frame.assign(large=[2**53, 2**53 + 1] * 50, part=[0.5, 1.5] * 50, word=["x", "y"] * 50)
    assert list(map(len, model.fit(frame).categories_)) == [4, 4, 2, 2, 2, 2, 2, 2]
    for _, _, lasts, k, b, large, part, word in model.sample(20):
        assert type(b) is bool and type(k) is int and type(large) is int and type(part) is float and type(word) is str
        assert lasts in set(frame["lasts"]) and large in (2**53, 2**53 + 1)


@pytest.mark.parametrize(
    "columns, kind",
    [
        ({"a": [1, 2], "b": [0.5, 1.5]}, "f"),
        ({"a": [1, 2], "b": [3, 4]}, "i"),
        ({"a": [True, False], "b": [False, True]}, "b"),
        ({"a": [True, False], "b": [0.5, 1.5]}, "O"),
        ({"a": [2**53 + 1, 2], "b": [0.5, 1.5]}, "O"),
        ({"a": ["x", "y"], "b": [0.5, 1.5]}, "O"),
    ],
)
def test_types_of_samples(columns, kind):
    frame = pandas.DataFrame({name: values * 10 for name, values in columns.items()})
    drawn = ThinJunctionTree(treewidth=1, random_state=0).fit(frame).sample(30)
    assert drawn.dtype.kind == kind
    for place, values in enumerate(columns.values()):
        assert set(drawn[:, place].tolist()) == set(values)


def test_columns_of_which_nothing_was_seen():
    """The numbers of a table in single precision are others."""
    rows = np.array([[0.1, 1.0], [0.2, 2.0], [0.3, 3.0]] * 4)
    model = ThinJunctionTree(treewidth=1, random_state=0).fit(rows.astype(np.float32))
    with pytest.warns(
        UserWarning, match="X: none of 12 values is among the categories of column 0, such as 0.1000000"
    ) as found:
        model.score(rows)
    assert len(found) == 1 and found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.score_samples(rows[:9])
        model.score_samples(np.where(np.isnan(rows), rows, np.nan))


@pytest.mark.parametrize("first", [[1, 2], [1.0, 2.0], [True, False], ["x", "y"]])
def test_infinity_is_no_category(first):
    frame = pandas.DataFrame({"a": first, "b": [0.5, np.inf]})
    for values in (frame, frame.to_numpy(), frame.to_numpy().tolist()):
        with pytest.raises(ValueError, match="infinity"):
            ThinJunctionTree(treewidth=1).fit(values)


def test_others_are_left_alone():
    for values in (np.eye(2), [1, 2], pandas.DataFrame({"a": [1, 2], "b": [3, 4]}), pandas.Series(["x", "y"])):
        assert typed_columns(values) is values


@pytest.mark.parametrize(
    "values",
    [
        np.array([2**53, 2**53 + 1]),
        np.array([1, 2]),
        np.array([False, True]),
        np.array(["x", "long"]),
        np.array([0.5, 1.5], dtype=np.float32),
        np.array(["2020-02-28", "2020-03-01"], dtype="datetime64[ns]"),
        np.array([1, 2], dtype="timedelta64[D]"),
    ],
    ids=lambda values: str(values.dtype),
)
def test_hidden_entries_do_not_change_the_others(values):
    table = values[np.random.default_rng(0).integers(2, size=(60, 1))].repeat(2, axis=1)
    plain = ThinJunctionTree(treewidth=1).fit(table)
    masked = np.ma.array(table, mask=np.arange(120).reshape(60, 2) == 7)
    model = ThinJunctionTree(treewidth=1).fit(masked)
    for found, expected in zip(model.categories_, plain.categories_, strict=True):
        assert found.tolist() == expected.tolist()
        # Small integers beside gaps are floating point numbers, which are equal to them.
        assert found.dtype == expected.dtype or values.dtype.kind == "i"
    assert len(model.categories_[0]) == 2
    # The row that has a gap is as likely as its other column alone.
    assert model.score_samples(masked)[3] > model.score_samples(table)[3] - 1e-9


def test_masked_values_that_are_none():
    fields = np.ma.array(np.zeros(3, dtype=[("a", "i4"), ("b", "i4")]), mask=[(0, 1)] * 3)
    with pytest.raises(ValueError, match="^X: expected a masked array of single values, got"):
        ThinJunctionTree().fit(fields)
    fine = np.array([["2020-01-01T00:00:00.000000001"], ["2020-01-02"]], dtype="datetime64[ns]")
    with pytest.raises(ValueError, match="X: expected dates and durations in whole microseconds, got finer ones"):
        ThinJunctionTree(treewidth=1).fit(np.ma.array(fine, mask=[[False], [True]]))
    pictures = np.ma.array(np.zeros((1, 4, 5), np.uint8), mask=np.arange(20).reshape(1, 4, 5) == 0)
    with pytest.raises(ValueError, match="^images: expected an array without masked entries, got some"):
        checked_pictures(pictures)
