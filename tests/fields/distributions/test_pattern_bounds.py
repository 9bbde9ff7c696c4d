"""Bounds of log Z of fields under patterns, against enumeration."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import RBM, GridCRF, PatternCRF
from pyro_structured.fields.solvers import field_bounds as module
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.inference import AnnealedImportanceSampling
from pyro_structured.structures import Grid

pytestmark = pytest.mark.statistical

SHAPES = [(1, 1), (1, 4), (2, 2), (3, 2), (2, 4), (3, 3)]


@st.composite
def fields(draw, temperatures=(0, 0.5, 1, 1.7, 2, 3), schemes=("sum", "min", "table"), rows=12):
    """A batch of fields, with weights of either sign, clamps and impossible patterns."""
    shape, number = draw(st.sampled_from(SHAPES)), draw(st.integers(0, 4))
    paired, infinite = draw(st.booleans()), draw(st.booleans())
    scheme = draw(st.sampled_from(schemes)) if number else "sum"
    temperature, scale = draw(st.sampled_from(temperatures)), draw(st.sampled_from([0.3, 1.0, 3.0, 20.0]))
    sign = draw(st.sampled_from([None, 1.0, -1.0]))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    grid = Grid(*shape)

    def random(*size):
        return scale * torch.randn(rows, *size, dtype=torch.double)

    def some(size, share):
        return torch.rand(rows, *size) < share

    unary = random(*shape)
    unary = unary.masked_fill(some(shape, 0.1), -torch.inf).masked_fill(some(shape, 0.05), torch.inf)
    penalties, weights = random(grid.num_edges), random(number, *shape)
    if sign is not None:
        penalties, weights = penalties.abs(), sign * weights.abs()
    if infinite:
        penalties = penalties.masked_fill(some((grid.num_edges,), 0.05), torch.inf)
    biases = random(number).masked_fill(some((number,), 0.1), -torch.inf)
    table = random(number + 1).masked_fill(some((number + 1,), 0.2), -torch.inf)
    composition = table if scheme == "table" else scheme
    return PatternCRF(unary, penalties if paired else None, weights, biases, grid, composition, temperature)


def log_partition(d):
    """Log Z by enumeration, for each element of the batch."""
    y = all_labelings(d.event_shape.numel(), torch.zeros(()).double())
    return d.unnormalized_log_prob(y.reshape(-1, *(1,) * len(d.batch_shape), *d.event_shape)).logsumexp(0)


def inside(low, exact, high):
    """Up to rounding."""
    assert (low[exact == -torch.inf] == -torch.inf).all() and not high.isnan().any()
    low, exact, high = (part[exact > -torch.inf] for part in (low, exact, high))
    slack = 1e-9 * (1 + exact.abs())
    assert (low <= exact + slack).all() and (exact <= high + slack).all()


@pytest.mark.slow
@settings(max_examples=85)
@given(fields(), st.sampled_from([2, 3, 8]), st.sampled_from([2, 6, 30, 2**19]), st.booleans())
def test_bounds(case, width, states, observe):
    """All strips and all numbers of states of units; evidence."""
    d = case
    if observe:
        value = (torch.rand(12, *d.event_shape) < 0.5).double()
        d = d.condition(value, torch.rand(12, *d.event_shape) < 0.3)
    exact = log_partition(d)
    possible = (exact > -torch.inf).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_widest", lambda labelings, _: width - (labelings == module.LABELINGS_OF_WHOLE))
        patch.setattr(module, "NUMBERS_IN_STEP", states)
        try:
            low, high = d.log_partition_bounds()
        except NotImplementedError as error:
            assert "infinite" in str(error) and (d.pairwise == torch.inf).any()
            return
        except ValueError:
            assert not possible
            return
    inside(low, exact, high)


def with_signs(d):
    """A field whose couplings are those of an attractive one, some labels and units being exchanged."""
    flips, units = torch.rand(d.event_shape.numel()) < 0.5, torch.rand(d.pattern_logits.shape[-1]) < 0.5
    differ = flips[d.grid.edges].sum(-1) == 1
    penalties = d.pairwise.abs() * (1 - 2 * differ.double())
    signs = (1 - 2 * units.double()).unsqueeze(-1) * (1 - 2 * flips.double())
    weights = d.weights.abs() * signs.reshape(-1, *d.event_shape)
    return PatternCRF(d.unary_logits, penalties if d._paired else None, weights, d.pattern_logits, d.grid)


@settings(max_examples=40)
@given(fields(temperatures=[1], schemes=["sum"]))
def test_bethe_is_below_in_balanced_fields(case):
    if (case.pairwise == torch.inf).any():
        with pytest.raises(NotImplementedError, match="bethe_log_partition: expected finite penalties"):
            case.bethe_log_partition()
        return
    d = with_signs(case)
    exact = log_partition(d)
    if exact.isinf().any():
        return
    found, is_bound = d.bethe_log_partition()
    assert is_bound.all()
    assert (found <= exact + 1e-9 * (1 + exact.abs())).all()


def test_bethe_approximation():
    """Exact without cycles, and above log Z in some field that is not balanced."""
    torch.manual_seed(0)
    chain = GridCRF(torch.randn(5, 1, 7).double(), 2 * torch.randn(5, 6).double(), Grid(1, 7))
    found, is_bound = chain.bethe_log_partition()
    torch.testing.assert_close(found, chain.log_partition_function)
    assert is_bound.all()
    star = RBM(3 * torch.randn(4, 1, 6).double(), torch.randn(6).double(), torch.randn(1).double())
    found, is_bound = star.bethe_log_partition()
    torch.testing.assert_close(found, star.log_partition_function)
    assert is_bound.all()
    frustrated = GridCRF(torch.zeros(2, 2).double(), torch.tensor([3.0, 3.0, 3.0, -3.0]).double(), Grid(2, 2))
    found, is_bound = frustrated.bethe_log_partition()
    assert not is_bound and found > frustrated.log_partition_function + 0.1
    unknown = frustrated.condition(torch.zeros(2, 2), torch.tensor([[True, False], [False, False]]))
    found, is_bound = unknown.bethe_log_partition()
    torch.testing.assert_close(found, unknown.log_partition_function)
    assert is_bound


def test_bethe_of_one_pattern_at_a_time():
    torch.manual_seed(1)
    weights, biases = torch.randn(3, 3, 3, 3).double(), torch.randn(3).double()
    d = PatternCRF(torch.randn(3, 3).double(), torch.rand(12).double(), weights, biases, Grid(3, 3), "min")
    found, is_bound = d.bethe_log_partition()
    assert is_bound.all() and (found < d.log_partition_function).all()
    assert (found > d.log_partition_function - 0.2).all()


def test_bounds_meet_where_sums_are_cheap():
    torch.manual_seed(2)
    for composition, temperature in (("sum", 1), ("min", 1), ("sum", 2)):
        weights = torch.randn(2, 3, 4, 4).double()
        pairwise = torch.randn(24).double()
        d = PatternCRF(
            torch.randn(4, 4).double(), pairwise, weights, torch.randn(3).double(), Grid(4, 4), composition, temperature
        )
        low, high = d.log_partition_bounds()
        torch.testing.assert_close(low, d.log_partition_function)
        torch.testing.assert_close(high, d.log_partition_function)
    field = GridCRF(torch.randn(2, 6, 30).double(), torch.randn(1, Grid(6, 30).num_edges).double(), Grid(6, 30))
    for bound in field.log_partition_bounds():
        torch.testing.assert_close(bound, field.log_partition_function)


def large_field(shape, composition, temperature):
    torch.manual_seed(3)
    grid, weights = Grid(*shape), 0.3 * torch.randn(3, *shape)
    biases = -weights.flatten(1).sum(-1) / 2
    penalties = 0.5 * torch.rand(grid.num_edges)
    return PatternCRF(torch.randn(2, *shape), penalties, weights, biases, grid, composition, temperature)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("shape", "composition", "temperature"), [((11, 9), "sum", 1), ((9, 14), "min", 1), ((10, 9), "min", 2)]
)
def test_grids_in_strips(shape, composition, temperature):
    d = large_field(shape, composition, temperature)
    low, high = d.log_partition_bounds()
    exact = d.log_partition_function
    assert low.dtype == torch.float32 and low.shape == (2,)
    assert (low <= exact + 1e-4).all() and (exact <= high + 1e-4).all() and (high - low < 12).all()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("composition", "temperature"), [("sum", 0.0), ("min", 0.5)])
def test_large_fields_at_other_temperatures(composition, temperature):
    """Annealed importance sampling is between the bounds of fields that have no exact sum."""
    d = large_field((9, 10), composition, temperature)
    low, high = d.log_partition_bounds()
    d.estimator = AnnealedImportanceSampling(300)
    value, error = d.estimate_log_partition()
    assert (low <= value + 6 * error).all() and (value <= high + 6 * error).all() and (error < 0.2).all()


def test_log_prob_bounds(monkeypatch):
    monkeypatch.setattr(module, "NUMBERS_IN_STEP", 2**10)
    torch.manual_seed(4)
    d = RBM(torch.randn(2, 10, 14), torch.randn(14), torch.full((10,), -1.0))
    value = (torch.rand(3, 1, 14) < 0.5).float()
    low, high = d.log_prob_bounds(value)
    exact = d.log_prob(value)
    assert low.shape == (3, 2) and (low <= exact + 1e-4).all() and (exact <= high + 1e-4).all()
    known = d.condition(value, torch.arange(14) < 3)
    low, high = known.log_prob_bounds(1 - value)
    assert (low == -torch.inf).all() and (high == -torch.inf).all()
    with pytest.raises(ValueError, match="Expected value argument"):
        d.log_prob_bounds(value + 0.5)


def test_bounds_have_gradients(monkeypatch):
    """Gradients are those of the bound with optimised quantities held fixed: marginals, at the optimum."""
    monkeypatch.setattr(module, "NUMBERS_IN_STEP", 64)
    torch.manual_seed(5)
    leaves = [torch.randn(*shape).double().requires_grad_() for shape in ((3, 3), (12,), (4, 3, 3), (4,))]
    d = PatternCRF(*leaves[:1], leaves[1].abs(), *leaves[2:], Grid(3, 3))
    low, high = d.log_partition_bounds()
    for bound in (low, high):
        found = torch.autograd.grad(bound, leaves, retain_graph=True)
        exact = torch.autograd.grad(d.log_partition_function, leaves, retain_graph=True)
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other, atol=0.2, rtol=0)


@pytest.mark.parametrize(("query"), ["log_partition_bounds", "bethe_log_partition"])
def test_refusals(query):
    grid = Grid(9, 9)
    pairwise = torch.ones(grid.num_edges).index_fill(0, torch.tensor(4), torch.inf)
    d = GridCRF(torch.zeros(9, 9), pairwise, grid)
    with pytest.raises(NotImplementedError, match=f"{query}: expected finite penalties .* got infinite ones; a grid"):
        getattr(d, query)()
    none = d.condition(torch.ones(9, 9), torch.ones(9, 9, dtype=torch.bool)).condition(
        torch.zeros(9, 9), torch.ones(9, 9, dtype=torch.bool)
    )
    with pytest.raises(ValueError, match="value: expected evidence of positive probability"):
        getattr(none, query)()


def test_bethe_refuses_other_fields():
    parts = torch.zeros(2, 2), None, torch.zeros(1, 2, 2), torch.zeros(1), Grid(2, 2)
    with pytest.raises(NotImplementedError, match="expected temperature 1 and composition 'sum' or 'min', got 2.0 and"):
        PatternCRF(*parts, "sum", 2.0).bethe_log_partition()
    with pytest.raises(NotImplementedError, match="got 1.0 and a table; log_partition_bounds takes all"):
        PatternCRF(*parts, torch.zeros(2)).bethe_log_partition()
