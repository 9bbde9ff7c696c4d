"""Labels of any type as numbers, and back."""

import numpy as np
import pytest

from pyro_structured.junction_trees.models.label_columns import LabelColumns


@pytest.mark.parametrize(
    "y",
    [
        np.array([[0, 5], [2, 5], [0, 7]]),
        np.array([["a", "x"], ["b", "y"], ["a", "x"]]),
        np.array([[True], [False], [True]]),
        np.array([3.0, 1.0, 3.0]),
        np.array(["b", "a", "b"]),
        [["a", 1], ["b", 2], ["a", 2]],
        [1, 0, 1],
    ],
)
def test_round_trip(y):
    columns = LabelColumns(y)
    states, known = columns.encode(y)
    decoded = columns.decode(states)
    assert known.all()
    assert decoded.shape == np.shape(y)
    assert decoded.tolist() == np.asarray(y, dtype=object if isinstance(y, list) else None).tolist()
    if not isinstance(y, list):
        assert decoded.dtype == y.dtype


def test_classes_are_sorted():
    columns = LabelColumns([["b", 2], ["a", 10], ["b", -1]])
    assert [each.tolist() for each in columns.classes] == [["a", "b"], [-1, 2, 10]]
    assert columns.encode([["a", 10]])[0].tolist() == [[0, 2]]


@pytest.mark.parametrize("y", [np.array([[1, np.nan], [np.nan, 0], [0, 0]]), [[1, None], [np.nan, 0], [0, 0]]])
def test_missing_labels(y):
    columns = LabelColumns(y)
    states, known = columns.encode(y)
    assert [each.tolist() for each in columns.classes] == [[0, 1], [0]]
    assert known.tolist() == [[True, False], [False, True], [True, True]]
    assert states.tolist() == [[1, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("kind", [object, "string"])
def test_na_of_pandas_is_missing(kind):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"one": ["a", pandas.NA, "b"], "other": ["c", "c", pandas.NA]}, dtype=kind)
    columns = LabelColumns(frame)
    states, known = columns.encode(frame)
    assert [each.tolist() for each in columns.classes] == [["a", "b"], ["c"]]
    assert known.tolist() == [[True, True], [False, True], [True, False]]
    assert states.tolist() == [[0, 0], [0, 0], [1, 0]]
    assert LabelColumns(frame["one"]).encode(frame["one"])[1].tolist() == [[True], [False], [True]]


def test_only_counted_rows_have_classes():
    columns = LabelColumns([[1], [2], [3]], np.array([True, False, True]))
    assert columns.encode([[3], [2]])[0].tolist() == [[1], [-1]]


def test_wrong_labels():
    with pytest.raises(ValueError, match=r"y: expected shape \(N, n\), a column for each label, or \(N,\), got"):
        LabelColumns(np.zeros((3, 0)))
    with pytest.raises(ValueError, match="y: expected at least one label in every column, got none in column 1"):
        LabelColumns([[1, None], [0, None]])
    with pytest.raises(ValueError, match="y: expected labels of one type in column 0: .*continuous"):
        LabelColumns([[0.5], [0.7]])
    with pytest.raises(ValueError, match="y: expected labels of one type in column 1: got a mixture"):
        LabelColumns([[1, "a"], [2, 3]])
    with pytest.raises(ValueError, match="y: expected 2 columns, got 1"):
        LabelColumns([[1, 2]]).encode([1, 2])
