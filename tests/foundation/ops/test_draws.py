"""Samples under ``torch.vmap``, and passes that are kept between samples."""

import pickle
import pkgutil
from unittest.mock import patch

import pytest
import torch

from pyro_structured.distributions import (
    GridCRF,
    JunctionTree,
    KSubset,
    PatternCRF,
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


CHAIN, STAR = CliqueTree.chain(9, 2), CliqueTree.from_edges([(0, d) for d in range(1, 5)], [2] * 5)
EDGES = NestedSubsets([range(5)], 5, edges=[(0, 1), (1, 2)])
FAR = torch.full((5,), 30.0).double()
GRID = Grid(2, 3)
# A distribution, and the function that makes its pass.
PASSES = {
    "chain": (lambda: JunctionTree(torch.randn(32), CHAIN), "junction_trees.ops.junction_tree.multiply_chain"),
    "tree": (lambda: JunctionTree(torch.randn(3, 16), STAR), "junction_trees.ops.junction_tree._upward"),
    "compiled": (lambda: KSubset(torch.randn(5), 2), "counts.ops.direct_counts.DirectDraws._upward"),
    "windows": (lambda: KSubset(torch.randn(5), 2), "counts.ops.convolution_tree.upward"),
    "certificate": (lambda: KSubset(torch.randn(5), 2), "counts.ops.count_sampling.attempts"),
    "direct": (lambda: KSubset(FAR, 2), "counts.ops.count_sampling.upward_messages"),
    "nested": (
        lambda: RecursiveCardinality(torch.randn(3), torch.randn(7), NESTED),
        "counts.ops.count_sampling.upward_messages",
    ),
    "edges": (
        lambda: RecursiveCardinality(torch.randn(5), torch.randn(6), EDGES, torch.randn(2, 2, 2)),
        "counts.ops.coupled_counts._upward",
    ),
    "grid": (lambda: GridCRF(torch.randn(2, 3), torch.randn(7), GRID), "fields.ops.grid_inference.forward"),
    "patterns": (
        lambda: PatternCRF(torch.randn(2, 3), torch.randn(7), torch.randn(2, 2, 3), torch.randn(2), GRID),
        "fields.ops.pattern_mixture.PatternMixture.log_sums",
    ),
}


@pytest.mark.parametrize("name", PASSES)
def test_repeated_samples_repeat_no_pass(name, hide_numba):
    """Nor do copies lose what they need, or take what was kept."""
    make, target = PASSES[name]
    if name == "compiled":
        pytest.importorskip("numba")
    else:
        hide_numba()
    torch.manual_seed(0)
    d = make()
    path, _, function = f"pyro_structured.{target}".rpartition(".")
    owner = pkgutil.resolve_name(path)
    with patch.object(owner, function, autospec=True, side_effect=getattr(owner, function)) as passed:
        first = d.sample((3,))
        calls = passed.call_count
        assert calls > 0 and d.sample((3,)).shape == first.shape and passed.call_count == calls
        copied = pickle.loads(pickle.dumps(d))
        torch.manual_seed(1)
        expected = d.sample((3,))
        torch.manual_seed(1)
        assert passed.call_count == calls and torch.equal(copied.sample((3,)), expected) and passed.call_count > calls
    expanded = d.expand((2, *d.batch_shape))
    assert expanded.sample((3,)).shape == (3, 2, *first.shape[1:])


def test_refusal():
    d = SumProductNetwork.__new__(SumProductNetwork)
    with pytest.raises(NotImplementedError, match="sample: cannot be called under torch.vmap; parameters with a batch"):
        torch.vmap(lambda _: d.sample(), randomness="different")(torch.zeros(2))
