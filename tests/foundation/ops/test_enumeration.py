"""Enumeration against itertools."""

import itertools

import pytest
import torch

from pyro_structured.foundation.ops.enumeration import enumerate_values, is_enumerable


@pytest.mark.parametrize(("number", "base"), [(1, 1), (3, 2), (12, 2), (4, 3)])
def test_itertools(number, base):
    expected = torch.tensor(list(itertools.product(range(base), repeat=number)))
    assert is_enumerable(number, base)
    like = torch.zeros((), dtype=torch.float32)
    assert torch.equal(enumerate_values(number, base, torch.Size(), True, like), expected.float())
    for expand, shape in ((True, (3, 2)), (False, (1, 1))):
        found = enumerate_values(number, base, torch.Size([3, 2]), expand, like.long())
        assert found.dtype == torch.long and found.shape == (len(expected), *shape, number)
        assert (found == expected[:, None, None]).all()


def test_cap():
    assert not is_enumerable(13) and not is_enumerable(8, 3)
    with pytest.raises(NotImplementedError, match=r"expected at most 4096 values, got 3\*\*8"):
        enumerate_values(8, 3, torch.Size(), True, torch.zeros(()))
