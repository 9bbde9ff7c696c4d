"""Mean-field solutions from many starts."""

import pytest
import torch

from pyro_structured.fields.ops.annealed_field import field_modes
from pyro_structured.fields.ops.field import Field, edges_of
from pyro_structured.fields.ops.mean_field import mean_field_logits
from pyro_structured.foundation.ops.enumeration import all_labelings


def made(composition="sum", rows=3, scale=1.0, pixels=6, units=3):
    states = torch.randn(rows, 2 * pixels).double()
    states[:, 0] = -torch.inf
    weights = scale * torch.randn(rows, units, pixels).double()
    edges = edges_of((2, pixels // 2), states.device)
    return Field(
        states=states,
        base=torch.zeros(1).double(),
        penalties=torch.randn(rows, len(edges)).double(),
        shape=(2, pixels // 2),
        weights=weights,
        biases=-weights.sum(-1) / 2,
        composition=composition,
        temperature=1.0,
    )


def log_partition(field):
    y = all_labelings(field.states.shape[-1] // 2, field.states).unsqueeze(1)
    off, on = field.states.chunk(2, -1)
    score = torch.where(y == 1, on, off).sum(-1) - (field.differing(y) * field.penalties).sum(-1)
    return (score + field.potential(field.activations(y))).logsumexp(0)


@pytest.mark.parametrize("composition", ["sum", "min", torch.tensor([[0.0, 1.0, -torch.inf, 2.0]]).double()])
def test_bounds(composition):
    """Bounds are in decreasing order and below log Z, and the first start is that of ``mean_field_logits``."""
    torch.manual_seed(0)
    field = made(composition)
    found = field_modes(field, 4, 20)
    assert found.tilts.isfinite().all() and (found.bounds.diff() <= 0).all()
    assert (found.bounds <= log_partition(field).unsqueeze(-1) + 1e-9).all()
    alone = field_modes(field, 4, 1)
    odds = (field.states[:, 6:] - field.states[:, :6]).unsqueeze(1)
    if isinstance(composition, str):
        torch.testing.assert_close((odds + alone.tilts)[:, 0], mean_field_logits(field, 50))
    assert (alone.bounds[:, 0] <= found.bounds[:, 0] + 1e-9).all()


def test_modes_are_apart():
    """Labels all 0, and all 1, under strong penalties, and undecided ones, where the first start stays; in a row
    without penalties there is one solution.
    """
    field = made()
    states, penalties = torch.zeros(2, 12).double(), torch.tensor([[3.0], [0.0]]).double().expand(2, 7)
    field = field._replace(states=states, penalties=penalties, weights=field.weights[:2] * 0, biases=states[:, :3])
    found = field_modes(field, 5, 10)
    assert found.bounds.shape == (2, 3)
    assert sorted(found.tilts[0, :2].sign().sum(-1).tolist()) == [-6, 6] and (found.tilts[0, 2] == 0).all()
    torch.testing.assert_close(found.bounds[1, 0], 9 * torch.tensor(2.0).double().log())
    assert (found.bounds[1, 1:] == -torch.inf).all()
