"""Bounds and approximations of log Z, on rows of fields."""

import pytest
import torch

from pyro_structured.fields.ops import mean_field_bound as mean_field
from pyro_structured.fields.ops.annealed_field import anneal_field
from pyro_structured.fields.ops.bethe import bethe_log_partition
from pyro_structured.fields.ops.field import Field, edges_of
from pyro_structured.fields.ops.grid_inference import log_partition_of_grid
from pyro_structured.fields.ops.grid_strips import grid_strips, log_partition_of_strips
from pyro_structured.fields.ops.hidden_states import log_worth, unit_powers
from pyro_structured.fields.ops.holder_bound import holder_bound
from pyro_structured.fields.ops.mean_field_bound import mean_field_bound
from pyro_structured.fields.ops.modular_bound import modular_bound
from pyro_structured.foundation.ops.enumeration import all_labelings

pytestmark = pytest.mark.statistical


def rows(shape=(3, 4), patterns=3, number=4, temperature=1.0, composition="sum", scale=2.0):
    edges = edges_of(shape, torch.device("cpu"))
    size = shape[0] * shape[1]

    def random(*parts):
        return scale * torch.randn(number, *parts).double()

    weights = random(patterns, size)
    biases = -weights.sum(-1) / 2
    states, penalties = random(2 * size), random(len(edges))
    return Field(states, torch.zeros(1).double(), penalties, shape, weights, biases, composition, float(temperature))


def log_partition(field):
    y = all_labelings(field.shape[0] * field.shape[1], field.states).unsqueeze(1)
    off, on = field.states.chunk(2, -1)
    score = torch.where(y == 1, on, off).sum(-1) + field.potential(field.activations(y))
    return (score - (field.differing(y) * field.penalties).sum(-1)).logsumexp(0)


@pytest.mark.parametrize(("shape", "width", "shift"), [((3, 5), 2, 0), ((3, 5), 2, 1), ((6, 2), 1, 0), ((4, 3), 3, 0)])
def test_strips_are_a_grid_without_some_pairs(shape, width, shift):
    torch.manual_seed(0)
    field, strips = rows(shape), grid_strips(shape, width, shift)
    kept = field.penalties.masked_fill(~strips.kept, 0.0)
    expected = log_partition_of_grid(field.states, kept, shape)
    found = log_partition_of_strips(field.states, field.penalties, strips)
    torch.testing.assert_close(found, expected)
    ends = strips.colour[field.edges]
    assert ((ends[:, 0] != ends[:, 1]) == ~strips.kept).all()
    assert strips.whole == (min(shape) <= width)


@pytest.mark.slow
def test_mean_field_never_becomes_worse(monkeypatch):
    """Over rounds, at every temperature and for every composition, with strips and with a whole grid."""
    torch.manual_seed(1)
    table = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]]).double()
    found = []
    bound = mean_field._Split.bound

    def recorded(split, tilt, means, log_z=None):
        found.append(bound(split, tilt, means, log_z))
        return found[-1]

    monkeypatch.setattr(mean_field._Split, "bound", recorded)
    for composition in ("sum", "min", table):
        for temperature in (0.0, 0.5, 1.0, 2.0):
            field = rows(temperature=temperature, composition=composition, scale=1.0)
            for strips, number in ((grid_strips((3, 4), 1), 1), (grid_strips((3, 4), 3), 4)):
                found.clear()
                (best,) = (mean_field_bound(field, strips, number),)
                steps = torch.stack(found[:-2])
                assert len(steps) > 1 and (steps.diff(dim=0) >= -1e-9).all()
                assert (best <= log_partition(field) + 1e-9).all()
                assert (best >= steps[-1].reshape(4, 3).amax(1) - 1e-9).all()


def test_holder_bound_decreases_and_is_exact_for_one_part():
    torch.manual_seed(2)
    field, whole = rows(), grid_strips((3, 4), 3)
    exact = log_partition(field)
    found = [holder_bound(field, [whole], 6, steps) for steps in (0, 10, 60)]
    assert (found[0] > found[1]).all() and (found[1] >= found[2]).all() and (found[2] > exact).all()
    torch.testing.assert_close(holder_bound(field, [whole], 8, 0), exact)
    twice = field._replace(temperature=2.0)
    torch.testing.assert_close(holder_bound(twice, [whole], 27, 0), log_partition(twice))


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("width", [2, 3])
def test_modular_bound(temperature, width):
    """For any number of patterns that are not replaced; with patterns that never change anything, it is exact."""
    torch.manual_seed(3)
    field = rows(patterns=5, temperature=temperature, number=10)
    strips = [grid_strips((3, 4), width, shift) for shift in range(2 if width < 3 else 1)]
    exact = log_partition(field)
    for num_states in (1, 4, 16):
        assert (modular_bound(field, strips, num_states) >= exact - 1e-9).all()
    if width == 3:
        sure = field._replace(biases=field.biases + 200 * torch.tensor([1, -1, 1, -1, 1]).double())
        torch.testing.assert_close(modular_bound(sure, strips, 1), log_partition(sure))
        # Nor do those that change little, away from zero, where the potential of temperature 0 has a kink.
        one_sign = field._replace(weights=0.01 * field.weights, biases=field.biases + field.biases.sign())
        assert (modular_bound(one_sign, strips, 1) <= log_partition(one_sign) + 0.01).all()


def test_modular_bound_beats_holders_for_many_sure_patterns():
    torch.manual_seed(4)
    field, strips = rows(patterns=12, number=5, scale=1.0), [grid_strips((3, 4), 3)]
    field = field._replace(biases=field.biases + 8 * field.biases.sign())
    assert modular_bound(field, strips, 8).mean() < holder_bound(field, strips, 8).mean()


def test_holder_bound_needs_all_pairs():
    with pytest.raises(ValueError, match="strips: expected every pair of neighbours inside of one"):
        holder_bound(rows(), [grid_strips((3, 4), 2)], 8)


def test_unit_powers():
    torch.manual_seed(3)
    biases = torch.tensor([[0.3, -torch.inf, -1.0]]).double()
    for power in (1, 2, 5):
        shares, log_numbers = unit_powers(3, power, biases)
        found = (log_worth(biases, shares) + log_numbers).logsumexp(-1)
        expected = power * torch.nn.functional.softplus(biases / power).sum(-1)
        torch.testing.assert_close(found, expected)


def test_bethe_of_strong_couplings():
    """Finite, and a lower bound, where messages saturate."""
    torch.manual_seed(4)
    field = rows(scale=50.0)
    attractive = field._replace(penalties=field.penalties.abs(), weights=field.weights.abs())
    attractive = attractive._replace(biases=-attractive.weights.sum(-1) / 2)
    exact, found = log_partition(attractive), bethe_log_partition(attractive)
    assert found.isfinite().all() and (found <= exact + 1e-9 * exact.abs()).all()


def test_weights_of_chains_are_unbiased():
    """The mean of the weights is the ratio of partition functions also after two steps, forward and back."""
    torch.manual_seed(5)
    field = rows((2, 2), patterns=2, number=2, scale=0.7)
    y = all_labelings(4, field.states)
    off, on = field.states.unsqueeze(1).chunk(2, -1)
    score = (
        torch.where(y == 1, on, off).sum(-1)
        + field.potential(torch.einsum("kd,rjd->krj", y, field.weights) + field.biases).T
    )
    score = score - torch.einsum("ke,re->rk", field.differing(y), field.penalties)
    place = torch.distributions.Categorical(logits=score).sample((20_000,)).T
    for start, sign in ((20_000, 1), (y[place], -1)):
        log_weights = anneal_field(field, 2, start).log_weights
        ratio = (log_weights - sign * score.logsumexp(-1).unsqueeze(-1)).exp()
        assert ((ratio.mean(-1) - 1).abs() < 6 * ratio.std(-1) / 20_000**0.5).all()
