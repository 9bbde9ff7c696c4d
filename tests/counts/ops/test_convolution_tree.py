import pytest
import torch

from pyro_structured.counts.ops.convolution_tree import downward, upward


def chain(on, off):
    mass = torch.ones_like(on[:, :1])
    for d in range(on.shape[1]):
        mass = torch.nn.functional.pad(mass * off[:, d : d + 1], (0, 1)) + torch.nn.functional.pad(
            mass * on[:, d : d + 1], (1, 0)
        )
    return mass


@pytest.mark.parametrize("num_variables", [1, 2, 3, 17, 32, 33, 64, 100, 257])
@pytest.mark.parametrize("max_count", [None, 1, 5, 40])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_passes_equal_a_chain_within_their_bounds(num_variables, max_count, scale):
    compare_with_chain(scale * torch.randn(3, num_variables, dtype=torch.float64), max_count)


@pytest.mark.parametrize(("num_variables", "max_count"), [(100, 90), (256, 200), (300, 260), (512, 511)])
def test_the_largest_counts_of_truncated_trees_do_not_wrap_around(num_variables, max_count):
    # Nearly all variables are on: a coefficient that wraps around meets a large one.
    compare_with_chain(8 + torch.randn(3, num_variables, dtype=torch.float64), max_count)


def compare_with_chain(logits, max_count):
    on, off = torch.sigmoid(logits).requires_grad_(), torch.sigmoid(-logits).requires_grad_()
    tree = upward(on.detach(), off.detach(), max_count)
    mass = chain(on, off)[:, : tree.max_count + 1]
    assert (tree.root - mass).abs().le(tree.root_error).all()
    assert tree.root_error.max() < 1e-13
    weights = torch.rand(len(logits), tree.max_count + 1, dtype=torch.float64)
    given_on, given_off = torch.autograd.grad((mass * weights).sum(), (on, off))
    found_off, found_on, error = downward(tree, weights)
    assert (found_on - given_on).abs().le(error).all() and (found_off - given_off).abs().le(error).all()
    assert error.max() < 1e-11
