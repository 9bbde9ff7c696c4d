"""Possible counts against enumeration."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.counts.ops.count_support import reaches
from pyro_structured.structures import NestedSubsets
from pyro_structured.testing import brute_force
from pyro_structured.testing.strategies import cardinality_models


@given(cardinality_models(batched=False), st.integers(0, 2**16), st.booleans())
def test_enumeration(model, seed, tiny):
    generator = torch.Generator().manual_seed(seed)
    x, f = (v.double() for v in model[:2])
    size = len(x)
    subsets = NestedSubsets([range(size)], size) if model.subsets is None else NestedSubsets(model.subsets, size)
    cells = torch.rand((3, len(f)), generator=generator) < 0.2
    possible = brute_force.log_probs(x, f, model.subsets) > -math.inf
    counts = subsets.counts(brute_force.binary_vectors(size)[possible] == 1)
    ends = (torch.tensor(subsets.sizes, dtype=torch.long) + 1).cumsum(-1)
    hit = counts + ends - torch.tensor(subsets.sizes, dtype=torch.long) - 1
    expected = torch.stack([mask[hit].any() for mask in cells])
    x, f = (5000 * v if tiny else v for v in (x, f))
    assert torch.equal(reaches(x, f, cells, subsets.forest), expected)
    assert torch.equal(torch.vmap(lambda c: reaches(x, f, c, subsets.forest))(cells), expected)
