"""Functions that a CUDA device replays: the same results as without recordings, which are the caller's."""

import copy
import pickle

import pytest
import torch

from pyro_structured.foundation.ops.recorded_function import MOST_RECORDINGS, RecordedFunction

ON_GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))


def products(x, y):
    return x @ y, (x * 2.0).sum(-1)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_results(device):
    recorded, generator = RecordedFunction(products), torch.Generator().manual_seed(0)
    kept = []
    for size in (3, 3, 5, 3, 5, 5, 0, 0, *range(10, 10 + MOST_RECORDINGS), 3, 3):
        x, y = (torch.randn(size, size, generator=generator).to(device) for _ in range(2))
        kept.append((recorded(x, y), products(x, y)))
    for found, expected in kept:
        torch.testing.assert_close(found, expected)
    assert len(recorded._recordings) <= MOST_RECORDINGS


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_copies(device):
    recorded, x = RecordedFunction(products), torch.eye(2, device=device)
    for _ in range(3):
        recorded(x, x)
    for other in (copy.deepcopy(recorded), pickle.loads(pickle.dumps(recorded))):
        torch.testing.assert_close(other(x, 3 * x), products(x, 3 * x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_recordings_are_replayed():
    calls = []
    recorded = RecordedFunction(lambda x: (calls.append(1) or x + 1,))
    for value in range(5):
        assert recorded(torch.tensor(value, device="cuda"))[0] == value + 1
    assert len(calls) == 2
