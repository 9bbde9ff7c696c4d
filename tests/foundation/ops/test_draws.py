"""Samples under ``torch.vmap``."""

import pytest
import torch

from pyro_structured.distributions import (
    GridCRF,
    JunctionTree,
    KSubset,
    PoissonBinomial,
    RecursiveCardinality,
    SumProductNetwork,
)
from pyro_structured.structures import CliqueTree, Grid, NestedSubsets

TREE = CliqueTree.from_edges([(0, 1), (1, 2)], [2, 3, 2])
NESTED = NestedSubsets([[0, 1], [0, 1, 2]], 3)
FACTORIES = [
    lambda x: RecursiveCardinality(x, torch.arange(4.0).double(), validate_args=False),
    lambda x: RecursiveCardinality(x, torch.linspace(-1, 1, 7).double(), NESTED, validate_args=False),
    lambda x: KSubset(x, 1, validate_args=False),
    lambda x: PoissonBinomial(logits=x, validate_args=False),
    lambda x: JunctionTree(torch.linspace(-1, 1, TREE.table_size).double() * x.sum(), TREE, validate_args=False),
    lambda x: GridCRF(x.unsqueeze(0), torch.ones(2).double(), Grid(1, 3), validate_args=False),
]


@pytest.mark.parametrize("make", FACTORIES)
def test_as_randomness_says(make):
    torch.manual_seed(0)
    x = torch.randn(2, 3, dtype=torch.float64)
    shape = make(x[0]).event_shape
    for rows in (x, x[:1].expand(2, 3)):
        drawn = torch.vmap(lambda row: make(row).sample((400,)), randomness="different")(rows)
        assert drawn.shape == (2, 400, *shape) and not torch.equal(drawn[0], drawn[1])
        expected = torch.stack([make(row).sample((4000,)).double().mean(0) for row in rows])
        assert (drawn.double().mean(1) - expected).abs().max() < 0.25
    unmapped = torch.vmap(lambda _: make(x[0]).sample((400,)), randomness="different")(torch.zeros(2))
    assert not torch.equal(unmapped[0], unmapped[1])
    same = torch.vmap(lambda row: make(row).sample((400,)), randomness="same")(x[:1].expand(2, 3))
    assert torch.equal(same[0], same[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(lambda row: make(row).sample())(x)


def test_refusal():
    d = SumProductNetwork.__new__(SumProductNetwork)
    with pytest.raises(NotImplementedError, match="sample: cannot be called under torch.vmap; parameters with a batch"):
        torch.vmap(lambda _: d.sample(), randomness="different")(torch.zeros(2))
