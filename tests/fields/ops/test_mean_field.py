"""Mean-field approximations: the bound never falls, derivatives, and where they are exact."""

import itertools

import pytest
import torch

from pyro_structured.distributions import RBM, GridCRF, PatternCRF
from pyro_structured.foundation.ops.log_space import safe_log
from pyro_structured.structures import Grid

GRID = Grid(3, 4)


def field(seed, composition="sum", temperature=1.0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    unary, pairwise, weights, biases, table = (
        scale * torch.randn(shape, generator=generator, dtype=torch.double)
        for shape in ((5, 3, 4), (5, GRID.num_edges), (3, 3, 4), (5, 3), (4,))
    )
    unary[0, 0, :2] = torch.tensor([torch.inf, -torch.inf])
    parts = (unary, pairwise, weights, biases)
    return PatternCRF(*parts, GRID, table if composition == "table" else composition, temperature)


def bound(d, logits):
    """Lower bound of log Z by independent pixels, without hidden units."""
    probs = logits.sigmoid()
    entropy = -(probs * safe_log(probs) + (1 - probs) * safe_log(1 - probs)).masked_fill(logits.isinf(), 0.0)
    odds = d.unary_logits.masked_fill(d.unary_logits.isinf(), 0.0)
    ends = probs.flatten(1)[:, GRID.edges]
    differ = ends[..., 0] * (1 - ends[..., 1]) + ends[..., 1] * (1 - ends[..., 0])
    # The potential at the means, by its own formula.
    activations = torch.einsum("...jhw,...hw->...j", d.weights, probs) + d.pattern_logits
    states = torch.tensor(list(itertools.product((0.0, 1.0), repeat=3)), dtype=torch.double)
    scores = activations @ states.T + d.composition[..., states.sum(1).long()]
    temperature = d.temperature
    hidden = scores.amax(-1) if temperature == 0 else temperature * (scores / temperature).logsumexp(-1)
    return (probs * odds + entropy).sum((1, 2)) - (differ * d.pairwise).sum(1) + hidden


@pytest.mark.parametrize("composition", ["sum", "min", "table"])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_the_bound_never_falls(composition, temperature):
    for seed, scale in itertools.product(range(4), (1.0, 3.0)):
        d = field(seed, composition, temperature, scale)
        values = torch.stack([bound(d, d.mean_field_logits(rounds)) for rounds in range(1, 9)])
        assert (values.diff(dim=0) > -1e-9).all()
        assert (values[-1] < d.log_partition_function + 1e-9).all()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("composition", ["sum", "min", "table"])
def test_derivatives(composition):
    d = field(1, composition)
    unary = torch.zeros(5, 3, 4, dtype=torch.double)
    leaves = [unary, d.pairwise, d.weights, d.pattern_logits, d.composition]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves[: 5 if composition == "table" else 4]]

    def logits(unary, pairwise, weights, biases, table=None):
        made = PatternCRF(unary, pairwise, weights, biases, GRID, composition if table is None else table)
        return made.mean_field_logits(3)

    torch.autograd.gradcheck(logits, leaves)
    assert not d.mean_field_logits().requires_grad


def test_what_is_independent_is_exact():
    unary = torch.randn(2, 3, 4)
    independent = GridCRF(unary, torch.zeros(GRID.num_edges), GRID)
    torch.testing.assert_close(independent.mean_field_logits(1), unary)
    machine = RBM(torch.zeros(2, 5), torch.arange(5.0), torch.zeros(2)).expand([3])
    torch.testing.assert_close(machine.mean_field_logits(1), torch.arange(5.0).expand(3, 5))
    clamped = field(0).mean_field_logits()
    assert clamped[0, 0, 0] == torch.inf and clamped[0, 0, 1] == -torch.inf and clamped[1:].isfinite().all()
    seen = torch.zeros(3, 4, dtype=torch.bool)
    seen[1] = True
    given = field(2).condition(torch.ones(3, 4), seen).mean_field_logits()
    assert (given[:, 1] == torch.inf).all() and given[1:, [0, 2]].isfinite().all()


def test_bad_input():
    with pytest.raises(ValueError, match="num_rounds: expected an integer of at least 1, got 0"):
        field(0).mean_field_logits(0)
    with pytest.raises(NotImplementedError, match="mean_field_logits: expected finite penalties, got infinite ones"):
        GridCRF(torch.zeros(3, 4), torch.full((GRID.num_edges,), torch.inf), GRID).mean_field_logits()


def test_empty_batches():
    grid = Grid(2, 3)
    field = PatternCRF(torch.zeros(0, 2, 3), torch.ones(grid.num_edges), torch.zeros(1, 2, 3), torch.zeros(1), grid)
    assert field.mean_field_logits().shape == (0, 2, 3)
