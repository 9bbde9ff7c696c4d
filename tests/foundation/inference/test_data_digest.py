"""Fingerprints tell data apart."""

import itertools

import numpy as np
import pytest
import torch

from pyro_structured.foundation.inference.data_digest import data_digest

DIFFERENT = [
    None,
    0,
    0.0,
    False,
    "0",
    b"0",
    [],
    (),
    {},
    [0],
    [[0]],
    [0, 0],
    ["ab", "c"],
    ["a", "bc"],
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    {1, 2},
    torch.zeros(2),
    torch.zeros(2, dtype=torch.double),
    torch.zeros(2, 1),
    torch.zeros(1, 2),
    torch.zeros(2).to_sparse(),
    torch.tensor([0.0, -0.0]),
    torch.tensor([torch.nan, 0.0]),
    np.zeros(2),
    np.zeros(2, dtype=np.float32),
    np.array(["a", None], dtype=object),
    np.array(["b", None], dtype=object),
    np.float64(0.0),
    range(2),
    torch.nn.Linear(1, 1),
    np.sum,
]


def test_different_data():
    digests = [data_digest(each) for each in DIFFERENT]
    same = [pair for pair in itertools.combinations(range(len(digests)), 2) if digests[pair[0]] == digests[pair[1]]]
    assert not same


def test_equal_data():
    view = torch.arange(6.0).view(2, 3).t()
    assert data_digest(view) == data_digest(view.contiguous())
    cycle = [1]
    cycle.append(cycle)
    assert data_digest(cycle) == data_digest(cycle)
    with pytest.raises(ValueError, match="args: expected tensors, arrays, numbers, texts .* got <object"):
        data_digest([object()], "args")
