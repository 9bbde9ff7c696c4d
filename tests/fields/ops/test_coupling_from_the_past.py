"""Coupling from the past on attractive fields that can be enumerated."""

import pytest
import torch
from scipy.stats import binomtest

from pyro_structured.fields.ops import coupling_from_the_past as module
from pyro_structured.fields.ops.coupling_from_the_past import couple_from_the_past
from pyro_structured.fields.ops.field import Field, binary_states

pytestmark = pytest.mark.statistical


@pytest.fixture
def attractive_field(joint_fields):
    return lambda **options: _attractive_field(joint_fields.make(**options))


def _attractive_field(field):
    """Two rows of which the second takes longer."""
    scales = torch.tensor([0.5, 1.0]).double().reshape(2, 1, 1)
    weights = field.weights.abs() * scales
    return field._replace(weights=weights, biases=-weights.sum(-1) / 2, penalties=field.penalties.abs())


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("numbers", [2**22, 5000])
def test_goodness_of_fit(joint_fields, attractive_field, monkeypatch, replicas, numbers):
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", numbers)
    field = attractive_field(replicas=replicas)
    labels, unmet = couple_from_the_past(field, 8000, 4096)
    assert unmet == 0 and labels.shape == (2, 8000, 6)
    assert min(joint_fields.p_values(joint_fields.probabilities(field), labels)) > 2e-9


def test_samples_are_independent(attractive_field):
    """Samples are independent, also those of different rows with the same parameters."""
    field = attractive_field()
    field = field._replace(states=field.states[:1].expand(2, -1), weights=field.weights[:1].expand(2, -1, -1))
    one, other = couple_from_the_past(field, 4000, 4096)[0][..., 0]
    probs = torch.stack([one, other]).mean()
    torch.testing.assert_close((one * other).mean(), probs**2, atol=6 * 0.25 / 4000**0.5, rtol=0.0)


def test_cap_and_no_samples(attractive_field):
    field = attractive_field()
    labels, unmet = couple_from_the_past(field, 100, 1)
    assert 0 < unmet == labels.isnan().any(-1).sum() < 200
    labels, unmet = couple_from_the_past(field, 0, 1)
    assert labels.shape == (2, 0, 6) and unmet == 0


def test_chains_start_no_earlier_than_allowed():
    """With one pixel and one unit, two chains stay apart in a sweep with a known probability, whatever was before."""
    zero = torch.zeros(1, 1).double()
    states, base = binary_states(zero - 3)
    field = Field(states, base, zero[:, :0], (1, 1), zero.unsqueeze(0) + 6, zero - 3, "sum", 1.0)
    apart = (torch.tensor(3.0).sigmoid() - torch.tensor(-3.0).sigmoid()).item() ** 2
    for sweeps in (1, 2, 4, 8):
        _, unmet = couple_from_the_past(field, 20_000, sweeps)
        assert binomtest(unmet, 20_000, apart**sweeps).pvalue > 2e-9


def test_reproducible(attractive_field):
    field = attractive_field()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(couple_from_the_past(field, 20, 4096)[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
