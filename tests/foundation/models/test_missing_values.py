"""Missing values in columns of any kind."""

import numpy as np
import pytest

from pyro_structured.foundation.models.missing_values import find_missing


class Unknown:
    """Compared as pandas' NA is."""

    def __ne__(self, other):
        return self

    def __bool__(self):
        raise TypeError("ambiguous")


@pytest.mark.parametrize(
    "values, expected",
    [
        (np.array([1, 0]), [False, False]),
        (np.array([True, False]), [False, False]),
        (np.array(["nan", ""]), [False, False]),
        (np.array([0.0, np.nan], dtype=np.float32), [False, True]),
        (np.array([np.inf, -np.nan]), [False, True]),
        (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), [False, True]),
        (np.array(["a", None, np.nan, Unknown(), False, 0], dtype=object), [False, True, True, True, False, False]),
        (np.zeros((2, 0)), [[], []]),
        (np.array([[None], [1]], dtype=object), [[True], [False]]),
    ],
)
def test_find_missing(values, expected):
    found = find_missing(values)
    assert found.dtype == bool and found.tolist() == expected


def test_na_of_pandas():
    pandas = pytest.importorskip("pandas")
    assert find_missing(np.array([pandas.NA, "a", pandas.NaT], dtype=object)).tolist() == [True, False, True]
