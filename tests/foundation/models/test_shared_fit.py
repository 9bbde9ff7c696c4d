"""Several processes fit what one fits, and fail together."""

import numpy as np
import pytest
import torch

from pyro_structured.models import MEVMDensity, ThinJunctionTree
from tests.foundation.inference.together import outcomes
from tests.foundation.models import fitted_together
from tests.foundation.models.fitted_together import BITS, CASES, CATEGORIES, MIXTURES, NUM_ROWS, TREES


@pytest.fixture(scope="module")
def single():
    return fitted_together.fits()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_fits(size, single, tmp_path):
    """Structures are equal, and numbers up to rounding; after errors of one process all go on."""
    found = outcomes(fitted_together.fits, size, tmp_path, size)
    generators = np.random.RandomState(np.random.RandomState(0).randint(2**31)), np.random.RandomState(0)
    seeded = [MEVMDensity(**MIXTURES | {"random_state": each}).fit(BITS).score_samples(BITS) for each in generators]
    for each in found:
        for name, (*structure, numbers) in single.items():
            assert each[name][:-1] == tuple(structure), name
            np.testing.assert_allclose(each[name][-1], numbers, rtol=0, atol=1e-9, err_msg=name)
        for name in ("tree", "tree, repeated", "tree, validated", "cuts"):
            assert each[name] == single[name], name
        np.testing.assert_allclose(each["seeded"][:2], seeded, rtol=0, atol=1e-9)
        assert each["seeded"][2] == found[0]["seeded"][2]
    check_errors([each["said"] for each in found])
    for rank, each in enumerate(found):
        check_lone_fits(each["alone"], CATEGORIES[rank::size], size)
        named = "RuntimeError: rank 1: KeyboardInterrupt"
        assert each["stopped"] == ("KeyboardInterrupt: " if rank == 1 else named)


ERRORS = {
    "value": "Input X contains infinity",
    "validation": "X_val: expected 6 columns, as in X, got 5",
    "known": "X: expected categories of column 0 among [0, 1, 2], got 7.0 in row 0",
    "weight": "sample_weight: expected numbers from 0",
    "length": "rows: expected the numbers of the",
    "range": f"rows: expected numbers below that of the rows of all processes, {NUM_ROWS}, got",
}
ERRORS_OF_ALL = {
    "some": "ValueError: X_val: expected the same in all processes, got 'some' in rank 0 and 'none' in rank 1",
    "parameter": "ValueError: smoothing: expected the same in all processes, got 0.0 in rank 0 and 1.0 in rank 1",
    "seed": "ValueError: random_state: expected the same in all processes, got 0 in rank 0 and 1 in rank 1",
    "columns": "ValueError: X: expected the same in all processes, got columns [0, 1, 2, 3, 4, 5] in rank 0 and",
    "order": "ValueError: rows: expected the numbers of the",
    "twice": "ValueError: rows: expected each row in one process, got row 0 in 2",
    "n_jobs": "NotImplementedError: n_jobs: expected 1 where processes learn together, got 2",
    "counts": "NotImplementedError: counts: expected False in several processes",
}


def check_errors(said):
    for rank, texts in enumerate(said):
        assert texts.keys() == ERRORS.keys() | ERRORS_OF_ALL.keys()
        for name, text in ERRORS.items():
            assert texts[name].startswith(f"ValueError: {text}" if rank == 1 else f"ValueError: rank 1: {text}"), name
        for name, text in ERRORS_OF_ALL.items():
            assert texts[name].startswith(text), name


def check_lone_fits(told, X, size):
    """Each process says so once, at the line of the call, and learns from its own rows."""
    start = f"each of {size} processes learns by itself, from the rows that it is given; "
    remedies = "with rows=shard_rows(n) in fit all learn together", "this method has no rows="
    (texts, path, scores), (others, other_path, _) = told
    assert path == other_path == fitted_together.__file__
    assert texts == [f"ThinJunctionTree: {start}{remedies[0]}"]
    assert len(others) == 1 and others[0].startswith(f"StackedDensity: {start}{remedies[1]}")
    assert scores == ThinJunctionTree(**TREES).fit(X).score_samples(X).tolist()


@pytest.mark.parametrize("name", CASES)
def test_all_rows_in_one_process(name, single):
    assert fitted_together.learned(name, rows=torch.arange(NUM_ROWS)) == single[name]


@pytest.mark.parametrize("estimator, X", [(ThinJunctionTree(**TREES), CATEGORIES), (MEVMDensity(**MIXTURES), BITS)])
def test_wrong_rows(estimator, X):
    for rows in (range(3), [0, 2, 1], [-1, 0, 1], [0, 1, 1], [0.0, 1.0, 2.0], [[0, 1, 2]], "abc", None, 3):
        if rows is None or rows == range(3):
            estimator.fit(X[:3], rows=rows)
            continue
        with pytest.raises(ValueError, match="^rows: expected the numbers of the 3 rows of X"):
            estimator.fit(X[:3], rows=rows)
    with pytest.raises(ValueError, match="^rows: expected numbers below that of the rows of all processes, 3, got 4"):
        estimator.fit(X[:3], rows=[0, 2, 4])
