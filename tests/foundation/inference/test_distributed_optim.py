"""Several processes learn what one learns, and fail together."""

import pytest
import torch

from tests.foundation.inference import together
from tests.foundation.inference.together import outcomes


def assert_close(first, second, tolerance=1e-6):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.allclose(value, second[name], rtol=tolerance, atol=tolerance), name


@pytest.mark.parametrize("size, kind", [(2, "svi"), (3, "schedule")])
def test_variational_inference(size, kind, tmp_path):
    """Rows that do not share out evenly; random numbers differ afterwards."""
    single, _ = together.variational(kind)
    found = outcomes(together.variational, size, tmp_path, kind)
    for learned, _ in found:
        assert_close(learned, single)
        assert all(torch.equal(value, found[0][0][name]) for name, value in learned.items())
    assert len({float(number) for _, number in found}) == size


def test_learners_without_random_numbers(tmp_path):
    """Parameters and losses of all rows are those of a single process."""
    arguments = (list(together.EXACT), 6, 6)
    single = together.learned(*arguments)
    for found in outcomes(together.learned, 2, tmp_path, *arguments):
        for name, (losses, learned, _, _) in found.items():
            assert_close(learned, single[name][1])
            assert torch.allclose(losses, single[name][0], rtol=1e-6), name


def test_learners_with_random_numbers(tmp_path):
    """Parameters are equal in distribution; every process has chains of its own rows."""
    arguments = (list(together.RANDOM), 60, 30)
    single = together.learned(*arguments)
    for found in outcomes(together.learned, 2, tmp_path, *arguments):
        for name, (_, learned, seen, rows) in found.items():
            print(name, learned, single[name][1])
            for each in seen:
                assert torch.equal(each, torch.arange(len(rows)) if name == "PCD, one field" else rows), name
    assert 0
