"""Pairs of neighbours in a grid."""

import pickle

import pytest
import torch

from pyro_structured.structures import Grid


def test_edges_and_packing():
    for height, width in ((1, 1), (1, 4), (5, 1), (3, 4)):
        grid = Grid(height, width)
        pixels = torch.arange(height * width).reshape(height, width)
        vertical = torch.stack([pixels[:-1], pixels[1:]], -1)
        horizontal = torch.stack([pixels[:, :-1], pixels[:, 1:]], -1)
        assert grid.edges.shape == (grid.num_edges, 2)
        for axis in (0, 1):
            packed = grid.pack(vertical[..., axis], horizontal[..., axis])
            assert torch.equal(packed, grid.edges[:, axis])
            for found, part in zip(grid.split(packed), (vertical, horizontal), strict=True):
                assert torch.equal(found, part[..., axis])
    batched = Grid(2, 2).pack(torch.zeros(5, 1, 1, 2), torch.ones(3, 2, 1))
    assert batched.shape == (5, 3, 4)


def test_tiles():
    """A patch's patterns are activated as by a convolution."""
    torch.manual_seed(0)
    for shape, patch, stride in (((5, 6), (2, 3), 1), ((5, 6), (3, 2), 2), ((4, 4), (4, 4), 1)):
        grid, patches = Grid(*shape), torch.randn(3, *patch).double().requires_grad_()
        labels = (torch.rand(7, *shape) < 0.5).double()
        found = labels.flatten(1) @ grid.tile(patches, stride).flatten(1).T
        expected = torch.nn.functional.conv2d(labels.unsqueeze(1), patches.unsqueeze(1), stride=stride)
        torch.testing.assert_close(found, expected.flatten(1))
        torch.testing.assert_close(*(torch.autograd.grad(x.exp().sum(), patches)[0] for x in (found, expected)))
    assert Grid(3, 3).tile(torch.zeros(2, 5, 2, 2)).shape == (2, 20, 3, 3)


def test_values():
    grid = pickle.loads(pickle.dumps(Grid(2, 3)))
    assert grid == Grid(2, 3) != Grid(3, 2) and hash(grid) == hash(Grid(2, 3)) and repr(grid) == "Grid(2, 3)"
    assert grid != (2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Grid(0, 2), "height: expected .* got 0"),
        (lambda: Grid(2, 1.5), "width: expected .* got 1.5"),
        (lambda: Grid(2, 3).pack(torch.zeros(2, 3), torch.zeros(2, 2)), r"vertical: expected shape \(..., 1, 3\)"),
        (lambda: Grid(2, 3).pack(torch.zeros(1, 3), torch.zeros(2)), r"horizontal: expected shape \(..., 2, 2\)"),
        (
            lambda: Grid(2, 3).tile(torch.zeros(1, 3, 3)),
            r"patches: expected .* h in 1..2 and w in 1..3, got \(1, 3, 3\)",
        ),
        (lambda: Grid(2, 3).tile(torch.zeros(1, 1, 1), 0), "stride: expected .* got 0"),
        (lambda: Grid(2, 3).split(torch.zeros(6)), "pairwise: .* 7 numbers"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
