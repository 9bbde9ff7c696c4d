"""Independent blocks against one ExchangeableBlock for each, and against enumeration."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta

from pyro_structured.distributions import ExchangeableBlock, ExchangeablePartition, NanMasked
from pyro_structured.structures import Count, Partition


def draw_partition(data, batch=(2,)):
    n = data.draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**16)))
    labels = torch.randint(data.draw(st.integers(1, n)), (*batch, n), generator=generator)
    partition = Partition(labels)
    logits = data.draw(st.sampled_from([1.0, 30.0, 1e4])) * torch.randn(
        (*batch, 2 * n), generator=generator, dtype=torch.float64
    )
    lost = torch.rand(logits.shape, generator=generator) < data.draw(st.sampled_from([0.0, 0.3]))
    lost.scatter_(-1, partition.starts, False)  # every block may be all zeros
    return ExchangeablePartition(logits.masked_fill(lost, -math.inf), partition), generator


def blocks_of(d, row):
    """The same distribution as one of each block."""
    logits, partition = d.statistic_logits[row], d.partition[row]
    for members in partition.blocks():
        start = int(partition.starts[members[0]])
        yield members, ExchangeableBlock(logits[start : start + len(members) + 1], Count(len(members)))


@given(st.data())
def test_product_of_blocks(data):
    d, generator = draw_partition(data)
    values = d.enumerate_support()
    log_p = d.log_prob(values)
    torch.testing.assert_close(log_p.logsumexp(0), torch.zeros(2).double(), atol=1e-8, rtol=0)
    for row in range(2):
        parts = list(blocks_of(d, row))
        expected = sum(block.log_prob(values[:, row, members]) for members, block in parts)
        torch.testing.assert_close(log_p[:, row], expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(d.entropy()[row], sum(block.entropy() for _, block in parts), rtol=1e-9, atol=1e-9)
        for members, block in parts:
            torch.testing.assert_close(d.marginals[row, members], block.marginals, rtol=1e-9, atol=1e-12)
            start = int(d.partition.starts[row, members[0]])
            found = d.count_marginals[row, start : start + len(members) + 1]
            torch.testing.assert_close(found, block.level_probs, rtol=1e-9, atol=1e-12)
    used = d.partition.cell_counts <= d.partition.sizes.gather(-1, d.partition.cell_blocks)
    assert (d.count_marginals[~used] == 0).all()


@given(st.data())
def test_evidence(check_evidence, data):
    d, generator = draw_partition(data)
    value, observed, both = check_evidence(d, generator, 1e-8)
    if both is not None:
        clash = both.marginal_log_prob(1 - value, observed)
        assert (clash[observed.any(-1).expand(clash.shape)] == -math.inf).all()


def test_partitions_of_enumerated_classes():
    partition = Partition(torch.tensor([[0, 0, 1, 1], [0, 1, 2, 3]]))
    logits = torch.randn(2, 8, dtype=torch.float64)
    data = torch.rand(30, 4).lt(0.5).double()
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)

    def model():
        with pyro.plate("rows", len(data)):
            z = pyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
            pyro.sample("x", ExchangeablePartition(logits[z], partition[z]), obs=data)

    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(model, lambda: None)
    parts = torch.stack([ExchangeablePartition(logits[k], partition[k]).log_prob(data) for k in range(2)], -1)
    torch.testing.assert_close(torch.tensor(-loss).double(), (parts + weights.log()).logsumexp(-1).sum())


def test_learning_by_svi():
    pyro.set_rng_seed(0)
    truth = ExchangeablePartition(
        torch.tensor([3.0, 0.0, 3.0, 0.0, 0.0, 2.0, 0.0, 0.0]), Partition(torch.tensor([0, 0, 1, 1]))
    )
    data = truth.sample((500,))

    def model():
        logits = pyro.sample("logits", dist.Normal(torch.zeros(8), 3.0).to_event(1))
        with pyro.plate("rows", len(data)):
            pyro.sample("x", ExchangeablePartition(logits, truth.partition), obs=data)

    guide = AutoDelta(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(100):
        svi.step()
    found = ExchangeablePartition(guide.median()["logits"].detach(), truth.partition)
    torch.testing.assert_close(found.count_marginals, truth.count_marginals, atol=0.06, rtol=0)


def test_maximum_likelihood():
    data = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]])
    pairs = Partition(torch.tensor([0, 0, 1, 1]))
    d = ExchangeablePartition.from_data(data, pairs)
    expected = torch.tensor([0.25, 0.5, 0.25, 0.0, 0.5, 0.5, 0.0, 0.0]).double()
    torch.testing.assert_close(d.count_marginals, expected)
    smooth = ExchangeablePartition.from_data(data, pairs, smoothing=1.0)
    torch.testing.assert_close(smooth.count_marginals[:6], torch.tensor([2.0, 3, 2, 1, 3, 3]).double() / 7)
    both = Partition(torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]]))
    batch = ExchangeablePartition.from_data(data, both, weights=torch.tensor([1.0, 0.0, 0.0, 1.0]).double())
    torch.testing.assert_close(batch.count_marginals[0, :3], torch.tensor([0.0, 1.0, 0.0]).double())
    torch.testing.assert_close(batch.count_marginals[1, :6], torch.tensor([0.5, 0.5, 0.0, 0.0, 0.5, 0.5]).double())


def test_vmap_of_samples():
    logits = torch.tensor([[0.0, -math.inf, 0.0, 0.0, -math.inf, 0.0], [-math.inf, 0.0, -math.inf, 0.0, 0.0, 0.0]])
    partition = Partition(torch.tensor([0, 1, 0]))

    def draw(row):
        return ExchangeablePartition(row, partition).sample((50,))

    both = torch.vmap(draw, randomness="different")(logits)
    assert (both[0, :, 0] == both[0, :, 2]).all() and (both[1, :, 0] != both[1, :, 2]).all()


def test_missing_entries():
    d = NanMasked(ExchangeablePartition(torch.randn(8, dtype=torch.float64), Partition(torch.tensor([0, 1, 1, 0]))))
    value = torch.tensor([1.0, math.nan, 0.0, math.nan], dtype=torch.float64)
    torch.testing.assert_close(d.log_prob(value), d.base_dist.marginal_log_prob(value, ~value.isnan()))


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda p: ExchangeablePartition(torch.zeros(5), p), "statistic_logits: expected a last axis of 6 numbers"),
        (lambda p: ExchangeablePartition(torch.zeros(6), [0, 0, 1]), "partition: expected a Partition, got list"),
        (
            lambda p: ExchangeablePartition(torch.zeros(2, 6), p.expand((3,))),
            "partition: expected a batch shape that broadcasts",
        ),
        (lambda p: ExchangeablePartition(torch.full((6,), math.nan), p), "statistic_logits"),
        (
            lambda p: ExchangeablePartition.from_data(torch.zeros(2, 4), p),
            r"values: expected a tensor of shape \(N, 3\)",
        ),
        (lambda p: ExchangeablePartition.from_data([[0, 1, 1]], p), r"values: expected a tensor .*, got list"),
        (lambda p: ExchangeablePartition.from_data(torch.zeros(2, 3), p, -1), "smoothing: expected a number"),
        (lambda p: ExchangeablePartition.from_data(torch.zeros(2, 3), p, "a"), "smoothing: expected a number"),
        (
            lambda p: ExchangeablePartition.from_data(torch.zeros(2, 3), p, weights=torch.zeros(3)),
            "weights: expected a tensor with a last axis of 2 numbers",
        ),
        (
            lambda p: ExchangeablePartition.from_data(torch.zeros(2, 3), p, weights=-torch.ones(2)),
            "weights: expected finite numbers of at least 0",
        ),
        (
            lambda p: ExchangeablePartition(torch.zeros(6), p).condition(torch.full((3,), 0.5), torch.tensor([True])),
            "value: expected zeros and ones where observed",
        ),
    ],
)
def test_bad_arguments(construct, message):
    with pytest.raises(ValueError, match=message):
        construct(Partition(torch.tensor([0, 0, 1])))


def test_empty_support():
    d = ExchangeablePartition(torch.tensor([-math.inf, -math.inf, 0.0, 0.0]), Partition(torch.tensor([0, 1])))
    with pytest.raises(ValueError, match="statistic_logits: expected at least one level of positive probability"):
        d.log_prob(torch.zeros(2))


def test_old_name_of_count_marginals():
    d = ExchangeablePartition(torch.zeros(4), Partition(torch.tensor([0, 1])))
    with pytest.warns(FutureWarning, match="count_probs: use count_marginals"):
        found = d.count_probs
    assert torch.equal(found, d.count_marginals) and found.tolist() == [0.5] * 4
