"""Blocks of partially exchangeable variables against enumeration and against RecursiveCardinality."""

import copy
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer import SVI, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta

from pyro_structured.distributions import ExchangeableBlock, NanMasked, RecursiveCardinality
from pyro_structured.structures import BlockCounts, CategoryCounts, Count, NestedThreshold, Transitions

STATISTICS = {
    "Count": Count(5),
    "BlockCounts": BlockCounts([[4, 0], [1, 2, 3]]),
    "Transitions": Transitions(5),
    "NestedThreshold": NestedThreshold([[1, 0], [2, 3, 4]], 1),
    "CategoryCounts": CategoryCounts(3, 3),
}


def draw_block(data, name):
    statistic = STATISTICS[name]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**16)))
    scale = data.draw(st.sampled_from([1.0, 30.0, 1e4]))
    logits = scale * torch.randn(2, statistic.num_levels, generator=generator, dtype=torch.float64)
    lost = torch.rand(logits.shape, generator=generator) < data.draw(st.sampled_from([0.0, 0.4]))
    lost[:, 0] = False
    return ExchangeableBlock(logits.masked_fill(lost, -math.inf), statistic), generator


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", STATISTICS)
@given(st.data())
def test_evidence(check_evidence, name, data):
    """Everything about some variables given others, twice in a row."""
    d, generator = draw_block(data, name)
    _, _, given_both = check_evidence(d, generator)
    if given_both is not None:
        torch.testing.assert_close(given_both.level_probs.sum(-1), torch.ones(3, 2).double())


def test_count_is_a_recursive_cardinality():
    f = torch.randn(3, 9, dtype=torch.float64)
    other = RecursiveCardinality(torch.zeros(8, dtype=torch.float64), f)
    block = ExchangeableBlock.from_potentials(f, Count(8))
    values = other.enumerate_support()
    torch.testing.assert_close(block.log_prob(values), other.log_prob(values))
    torch.testing.assert_close(block.marginals, other.marginals)
    torch.testing.assert_close(block.entropy(), other.entropy())
    torch.testing.assert_close(block.level_probs, other.count_marginals)
    torch.testing.assert_close(block.log_partition_function, other.log_partition_function)
    evidence = (
        torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 1]),
        torch.tensor([True, True, False, False, False, False, True, True]),
    )
    torch.testing.assert_close(block.marginal_log_prob(*evidence), other.marginal_log_prob(*evidence))
    torch.testing.assert_close(block.condition(*evidence).marginals, other.condition(*evidence).marginals)
    equal = RecursiveCardinality(torch.full((8,), 0.7, dtype=torch.float64), f)
    tilted = ExchangeableBlock.from_potentials(f + 0.7 * torch.arange(9), Count(8))
    torch.testing.assert_close(tilted.log_prob(values), equal.log_prob(values))


def test_many_variables():
    parity = torch.zeros(5001, dtype=torch.float64)
    parity[1::2] = -math.inf
    d = ExchangeableBlock.from_potentials(parity, Count(5000))
    torch.testing.assert_close(d.log_partition_function, torch.tensor(4999 * math.log(2.0)).double())
    torch.testing.assert_close(d.marginals, torch.full((5000,), 0.5).double())
    assert (d.sample((20,)).sum(-1) % 2 == 0).all()
    seen = torch.arange(5000) < 4999
    assert d.condition(torch.ones(5000), seen).marginals[-1] == 1.0
    runs = ExchangeableBlock(torch.zeros(101, dtype=torch.float64), Transitions(200))
    assert runs.statistic.value(runs.sample((10,))).unique().numel() > 3


def test_maximum_likelihood():
    statistic = Transitions(4)
    data = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]])
    d = ExchangeableBlock.from_data(data, statistic)
    torch.testing.assert_close(d.level_probs, torch.tensor([0.25, 0.5, 0.25]).double())
    smooth = ExchangeableBlock.from_data(data, statistic, smoothing=2.0)
    torch.testing.assert_close(smooth.level_probs, torch.tensor([0.3, 0.4, 0.3]).double())
    weights = torch.tensor([[1.0, 1, 0, 0], [0.0, 0, 1, 3]])
    batch = ExchangeableBlock.from_data(data, statistic, weights=weights)
    torch.testing.assert_close(batch.level_probs, torch.tensor([[0.0, 0.5, 0.5], [0.25, 0.75, 0.0]]))
    # No other weights are likelier.
    logits = d.statistic_logits.clone().requires_grad_()
    score = ExchangeableBlock(logits, statistic).log_prob(data).sum()
    torch.testing.assert_close(torch.autograd.grad(score, logits)[0], torch.zeros(3).double())


def test_levels_that_are_empty_have_no_weight():
    empty = NestedThreshold([[0], [1]], 1)  # one variable never exceeds one
    d = ExchangeableBlock(torch.tensor([0.0, 50.0, 50.0]), empty)
    assert d.log_partition_function == 0.0 and d.level_probs.tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(d.entropy(), torch.tensor(math.log(4.0)))
    nothing = ExchangeableBlock(torch.tensor([-math.inf, 0.0, 0.0]), empty)
    for query in ("marginals", "mode", "log_partition_function", "level_probs"):
        with pytest.raises(ValueError, match="statistic_logits: expected at least one level of positive probability"):
            getattr(nothing, query)
    assert ExchangeableBlock.from_data(torch.zeros(3, 2), empty, smoothing=1.0).level_probs[0] == 1.0


@pytest.mark.parametrize("constant", [1e8, 1e16, -1e16, 1e300])
def test_constants_cost_no_digits(constant):
    for statistic in STATISTICS.values():
        logits = torch.zeros(statistic.num_levels, dtype=torch.float64)
        d, plain = (ExchangeableBlock(logits + c, statistic) for c in (constant, 0.0))
        torch.testing.assert_close(d.marginals, plain.marginals)
        torch.testing.assert_close(d.level_probs, plain.level_probs)
        torch.testing.assert_close(d.entropy(), plain.entropy())
        torch.testing.assert_close(d.log_partition_function, plain.log_partition_function + constant)
    spread = ExchangeableBlock(torch.tensor([0.0, 1e308, 0.0, -1e308, 0.0], dtype=torch.float64), Count(4))
    torch.testing.assert_close(spread.entropy(), torch.tensor(math.log(4.0)).double())


def test_categories():
    d = ExchangeableBlock(torch.zeros(10), CategoryCounts(3, 3))
    assert d.sample((2,)).dtype == torch.long and d.marginals.shape == (3, 3)
    torch.testing.assert_close(d.marginals, torch.full((3, 3), 1 / 3))
    for query in ("mean", "variance"):
        with pytest.raises(NotImplementedError, match=f"{query}: categories have none; use marginals"):
            getattr(d, query)
    assert (
        ExchangeableBlock(torch.zeros(10), CategoryCounts(3, 3), validate_args=False).log_prob(torch.tensor([0, 3, 1]))
        == -math.inf
    )


@pytest.mark.parametrize("name", STATISTICS)
def test_function_transforms_of_samples(name):
    statistic = STATISTICS[name]

    def draw(logits):
        return ExchangeableBlock(logits, statistic).sample()

    def score(logits):
        """A term of the score function estimator."""
        d = ExchangeableBlock(logits, statistic)
        return d.log_prob(d.sample())

    certain = torch.full((statistic.num_levels,) * 2, -math.inf).fill_diagonal_(0.0)
    possible = statistic.log_sizes > -math.inf
    values = torch.vmap(draw, randomness="different")(certain[possible])
    assert torch.equal(statistic.value(values), possible.nonzero().squeeze(-1))
    many = torch.vmap(draw, randomness="different")(torch.zeros(20, statistic.num_levels))
    assert len(many.unique(dim=0)) > 1
    gradient = torch.vmap(torch.func.grad(score), randomness="different")(torch.zeros(20, statistic.num_levels))
    # One for the level that was drawn, minus the probabilities.
    torch.testing.assert_close((gradient + possible / possible.sum()).amax(-1), torch.ones(20))


def test_values_of_other_kinds():
    d = ExchangeableBlock(torch.randn(4), Count(3), validate_args=False)
    value = torch.tensor([1, 0, 1])
    for same in (value.bool(), value.double(), value.to(torch.uint8)):
        torch.testing.assert_close(d.log_prob(same), d.log_prob(value))
    assert d.log_prob(torch.tensor([0.5, 0.0, 1.0])) == d.log_prob(torch.tensor([math.nan, 0.0, 1.0])) == -math.inf


def test_missing_entries():
    d = NanMasked(ExchangeableBlock(torch.randn(4, dtype=torch.float64), Count(3)))
    value = torch.tensor([1.0, math.nan, 0.0], dtype=torch.float64)
    seen = torch.tensor([True, False, True])
    torch.testing.assert_close(d.log_prob(value), d.base_dist.marginal_log_prob(value, seen))


def test_copies_that_require_gradients():
    logits = torch.randn(4, requires_grad=True)
    d = ExchangeableBlock(logits, Count(3))
    _ = d.marginals
    assert torch.equal(copy.deepcopy(d).marginals, d.marginals)


def test_latent_class_in_a_pyro_model():
    """A component of a mixture is enumerated; SVI finds the two parities."""
    pyro.set_rng_seed(0)
    data = torch.rand(200, 6).lt(0.5).double()
    data[:150, 0] = data[:150, 1:].sum(-1) % 2
    data[150:, 0] = (data[150:, 1:].sum(-1) + 1) % 2

    def model():
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2).double()))
        logits = pyro.sample("logits", dist.Normal(torch.zeros(2, 7).double(), 3.0).to_event(2))
        with pyro.plate("rows", len(data)):
            z = pyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
            pyro.sample("x", ExchangeableBlock(logits[z], Count(6)), obs=data)

    guide = AutoDelta(pyro.poutine.block(model, hide=["z"]))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), TraceEnum_ELBO(max_plate_nesting=1))
    losses = [svi.step() for _ in range(60)]
    assert losses[-1] < losses[0]
    even = ExchangeableBlock(guide.median()["logits"], Count(6)).level_probs[:, ::2].sum(-1)
    share = (guide.median()["weights"] * even).sum()
    assert abs(float(share.detach()) - 0.75) < 0.05


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (
            lambda: ExchangeableBlock([0.0], Count(1)),
            r"statistic_logits: expected a floating point tensor, got \[0.0\]",
        ),
        (lambda: ExchangeableBlock(torch.zeros(3), Count(3)), "statistic_logits: expected a last axis of 4 numbers"),
        (lambda: ExchangeableBlock(torch.zeros(3), 3), "statistic: expected a Statistic, got int"),
        (lambda: ExchangeableBlock(torch.tensor([0.0, math.nan]), Count(1)), "statistic_logits"),
        (lambda: ExchangeableBlock(torch.tensor([0.0, math.inf]), Count(1)), "statistic_logits"),
        (
            lambda: ExchangeableBlock.from_data(torch.zeros(3), Count(3)),
            r"values: expected a tensor of shape \(N, 3\), got \(3,\)",
        ),
        (
            lambda: ExchangeableBlock.from_data([[0]], Count(1)),
            r"values: expected a tensor of shape \(N, 1\), got list",
        ),
        (
            lambda: ExchangeableBlock.from_data(torch.full((2, 3), math.nan), Count(3)),
            r"values: expected integers in range\(2\), got other numbers or NaN",
        ),
        (lambda: ExchangeableBlock.from_data(torch.zeros(2, 3), Count(3), -1.0), "smoothing: expected a number"),
        (lambda: ExchangeableBlock.from_data(torch.zeros(2, 3), Count(3), "a"), "smoothing: expected a number .*'a'"),
        (
            lambda: ExchangeableBlock.from_data(torch.zeros(2, 3), Count(3), weights=[1.0, 1.0]),
            "weights: expected a tensor with a last axis of 2 numbers, got list",
        ),
        (
            lambda: ExchangeableBlock.from_data(torch.zeros(2, 3), Count(3), weights=torch.tensor([2.0, -1.0])),
            "weights: expected finite numbers of at least 0, got others",
        ),
        (
            lambda: ExchangeableBlock.from_data(torch.zeros(2, 3), Count(3), weights=torch.ones(3)),
            r"weights: expected a tensor with a last axis of 2 numbers, got \(3,\)",
        ),
        (
            lambda: ExchangeableBlock(torch.zeros(4), Count(3)).condition(torch.full((3,), 2.0), torch.tensor([True])),
            r"value: expected zeros and ones where observed",
        ),
        (
            lambda: ExchangeableBlock(torch.zeros(4), Count(3)).condition(torch.zeros(2), torch.tensor([True])),
            "value: expected a shape that broadcasts",
        ),
        (lambda: ExchangeableBlock(torch.zeros(4), Count(3)).expand((2,)).expand((3,)), "batch_shape"),
    ],
)
def test_bad_arguments(construct, message):
    with pytest.raises(ValueError, match=message):
        construct()


def test_enumeration_is_capped():
    d = ExchangeableBlock(torch.zeros(14), Count(13))
    assert not d.has_enumerate_support
    with pytest.raises(NotImplementedError, match="enumerate_support: expected at most 4096 values"):
        d.enumerate_support()
