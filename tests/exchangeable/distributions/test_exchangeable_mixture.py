"""Mixtures of partitions against enumeration of values and classes."""

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

from pyro_structured.distributions import ExchangeableMixture, ExchangeablePartition, NanMasked
from pyro_structured.structures import Partition


def draw_mixture(seed, n, k, batch=(2,), lost=0.0):
    generator = torch.Generator().manual_seed(seed)
    partition = Partition(torch.randint(n, (k, n), generator=generator))
    logits = 3 * torch.randn(*batch, k, 2 * n, generator=generator, dtype=torch.float64)
    none = torch.rand(logits.shape, generator=generator) < lost
    none.scatter_(-1, partition.starts.expand(*batch, k, n), False)
    weights = torch.randn(*batch, k, generator=generator, dtype=torch.float64)
    return ExchangeableMixture(weights, logits.masked_fill(none, -math.inf), partition), generator


@given(st.integers(0, 2**16), st.integers(1, 5), st.integers(1, 3), st.sampled_from([0.0, 0.4]))
def test_enumeration(check_evidence, seed, n, k, lost):
    d, generator = draw_mixture(seed, n, k, lost=lost)
    values = d.enumerate_support()
    parts = [ExchangeablePartition(d.statistic_logits[:, j], d.partition[j]).log_prob(values) for j in range(k)]
    joint = d.mixture_logits.log_softmax(-1) + torch.stack(parts, -1)
    torch.testing.assert_close(d.component_log_prob(values), torch.stack(parts, -1))
    log_p = joint.logsumexp(-1)
    torch.testing.assert_close(d.log_prob(values), log_p)

    value, observed, both = check_evidence(d, generator)
    if both is None:
        with pytest.raises(ValueError, match="value: expected evidence of positive probability"):
            d.posterior(value, observed)
        return
    agrees = ((values.unsqueeze(1) == value) | ~observed).all(-1)
    classes = joint.unsqueeze(1).masked_fill(~agrees.unsqueeze(-1), -math.inf).logsumexp(0)
    torch.testing.assert_close(both.class_probs, classes.softmax(-1), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(d.posterior(value, observed).probs, both.class_probs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_component(batch):
    d, _ = draw_mixture(1, 4, 3, batch)
    values = d.sample((6,))
    each = d.component_log_prob(values)
    for z in (torch.tensor(2), torch.arange(3).reshape(3, 1, *(1,) * len(batch))):
        found = d.component(z).log_prob(values)
        index = z.expand(found.shape).unsqueeze(-1)
        torch.testing.assert_close(found, each.expand(found.shape + (3,)).take_along_dim(index, -1).squeeze(-1))


def test_component_of_a_conditioned_mixture():
    """Given the class and the evidence."""
    d, _ = draw_mixture(5, 4, 3)
    value, observed = torch.tensor([[1.0, 0, 0, 0], [0.0, 1, 0, 0]]), torch.tensor([True, True, False, False])
    given_some = d.condition(value, observed)
    values = d.enumerate_support()
    for z in range(3):
        expected = d.component(torch.tensor(z)).condition(value, observed)
        found = given_some.component(torch.tensor(z))
        torch.testing.assert_close(found.log_prob(values), expected.log_prob(values))
        torch.testing.assert_close(given_some.component_log_prob(values)[..., z], expected.log_prob(values))


def test_component_that_the_evidence_excludes():
    """It keeps the distribution that it had before, with the evidence that did not exclude it."""
    d = mixture_of_two()
    first, second = (torch.tensor(observed) for observed in ([True, False, False], [True, True, False]))
    before = d.condition(torch.tensor([1.0, 0.0, 0.0]), first)
    after = before.condition(torch.tensor([1.0, 0.0, 0.0]), second)  # the first two of the first class are equal
    assert after.class_probs.tolist() == [0.0, 1.0]
    values = d.enumerate_support()
    excluded = torch.tensor(0)
    torch.testing.assert_close(after.component(excluded).log_prob(values), before.component(excluded).log_prob(values))
    torch.testing.assert_close(after.component_log_prob(values)[:, 0], before.component(excluded).log_prob(values))
    assert after.component_log_prob(torch.ones(3)).tolist()[0] == pytest.approx(math.log(0.5))
    for other in (after.expand((2, 4)), copy.deepcopy(after), copy.deepcopy(after.expand((4,)))):
        found = other.component_log_prob(values.reshape(8, *(1,) * len(other.batch_shape), 3))
        expected = after.component_log_prob(values).reshape(8, *(1,) * len(other.batch_shape), 2)
        torch.testing.assert_close(found, expected.expand(found.shape))


def test_copies_of_a_conditioned_mixture_with_gradients():
    logits = torch.zeros(2, 6, requires_grad=True)
    d = ExchangeableMixture(torch.zeros(2), logits, Partition(torch.tensor([[0, 0, 1], [0, 1, 2]])))
    some = d.condition(torch.ones(3), torch.tensor([True, False, False]))
    some.marginals.sum().backward()
    torch.testing.assert_close(copy.deepcopy(some).marginals, some.marginals)


def mixture_of_two():
    partition = Partition(torch.tensor([[0, 0, 1], [0, 1, 2]]))
    equal = torch.tensor([0.0, -math.inf, 0.0, 0.0, 0.0, 0.0])
    return ExchangeableMixture(torch.zeros(2), torch.stack([equal, torch.zeros(6)]), partition)


def test_partly_observed_rows_inside_a_larger_model():
    """An enumerated class with masked observations equals the closed form."""
    d, _ = draw_mixture(2, 4, 3, ())
    data = d.sample((20,))
    seen = torch.rand(20) < 0.6

    def model():
        with pyro.plate("rows", len(data)):
            z = pyro.sample("z", dist.Categorical(logits=d.mixture_logits), infer={"enumerate": "parallel"})
            pyro.sample("x", d.component(z).mask(seen), obs=data)

    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(model, lambda: None)
    torch.testing.assert_close(torch.tensor(-loss).double(), d.log_prob(data)[seen].sum())

    def partly():
        with pyro.plate("rows", len(data)):
            pyro.sample("x", NanMasked(d), obs=data.masked_fill(~hidden_free, math.nan))

    hidden_free = torch.rand(20, 4) < 0.5
    trace = pyro.poutine.trace(partly).get_trace()
    torch.testing.assert_close(trace.log_prob_sum(), d.marginal_log_prob(data, hidden_free).sum())


def test_imputation_by_obs_mask():
    """Pyro samples the rows that are not observed."""
    d, _ = draw_mixture(3, 4, 2, ())
    data = d.sample((10,))
    mask = torch.arange(10) < 5

    def model():
        with pyro.plate("rows", 10):
            return pyro.sample("x", d, obs=data, obs_mask=mask)

    trace = pyro.poutine.trace(model).get_trace()
    assert torch.equal(trace.nodes["_RETURN"]["value"][mask], data[mask])


def test_training_by_svi():
    pyro.set_rng_seed(0)
    partition = Partition(torch.tensor([[0, 0, 0, 0], [0, 0, 0, 0]]))
    truth = ExchangeableMixture(
        torch.tensor([0.0, 0.5]),
        torch.tensor([[0.0, -9.0, 0.0, -9.0, 0.0, 0, 0, 0], [-9.0, 0.0, -9.0, 0.0, -9.0, 0, 0, 0]]),
        partition,
    )
    data = truth.sample((300,))

    def model():
        weights = pyro.sample("weights", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        logits = pyro.sample("logits", dist.Normal(torch.zeros(2, 8), 3.0).to_event(2))
        with pyro.plate("rows", len(data)):
            pyro.sample("x", ExchangeableMixture(weights, logits, partition), obs=data)

    svi = SVI(model, AutoDelta(model), pyro.optim.Adam({"lr": 0.1}), pyro.infer.Trace_ELBO())
    losses = [svi.step() for _ in range(80)]
    assert losses[-1] < losses[0] - 5


def test_maximum_likelihood():
    data = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 1, 1], [1, 1, 0]])
    partition = Partition(torch.tensor([[0, 0, 0], [0, 1, 2]]))
    classes = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    d = ExchangeableMixture.from_data(data, classes, partition)
    torch.testing.assert_close(d.class_probs, torch.tensor([0.5, 0.5]).double())
    torch.testing.assert_close(d.log_prob(data.double()).exp(), torch.tensor([1 / 6, 1 / 6, 1 / 4, 1 / 4]).double())
    same = ExchangeableMixture.from_data(data, classes, partition[0])
    torch.testing.assert_close(same.component_log_prob(data.double())[:2, 0].exp(), torch.full((2,), 1 / 3).double())


def test_a_class_without_rows():
    data, partition = torch.tensor([[0, 1], [1, 1]]), Partition(torch.tensor([[0, 0], [0, 1]]))
    memberships = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    d = ExchangeableMixture.from_data(data, memberships, partition)
    assert d.class_probs.tolist() == [1.0, 0.0] and d.log_prob(data.double()).isfinite().all()
    with pytest.raises(ValueError, match=r"values: expected integers in range\(2\), got other numbers or NaN"):
        ExchangeableMixture.from_data(data * math.nan, memberships, partition)


@pytest.mark.parametrize("constant", [1e8, 1e16, -1e16, 1e300])
def test_constants_cost_no_digits(constant):
    d, _ = draw_mixture(6, 4, 2, ())
    same = ExchangeableMixture(torch.zeros(2).double() + constant, torch.zeros(2, 8).double() + constant, d.partition)
    plain = ExchangeableMixture(torch.zeros(2).double(), torch.zeros(2, 8).double(), d.partition)
    values = d.enumerate_support()
    torch.testing.assert_close(same.log_prob(values), plain.log_prob(values))
    part, alone = same.component(torch.tensor(0)), plain.component(torch.tensor(0))
    torch.testing.assert_close(part.count_marginals, alone.count_marginals)
    torch.testing.assert_close(part.entropy(), alone.entropy())
    torch.testing.assert_close(
        part.log_partition_function, alone.log_partition_function + 1.0 * len(part.partition.blocks()) * constant
    )


@pytest.mark.parametrize("z", [2, torch.tensor(2), torch.tensor(-1), torch.tensor(0.0)])
def test_bad_class(z):
    with pytest.raises(ValueError, match="z: expected"):
        draw_mixture(6, 4, 2, ())[0].component(z)


def test_no_closed_form_for_many_variables():
    d, _ = draw_mixture(4, 13, 2, ())
    for query in (lambda: d.mode, d.entropy):
        with pytest.raises(NotImplementedError, match=r"has no closed form, and enumeration is capped at 4096 vectors"):
            query()
    assert d.sample((3,)).shape == (3, 13) and d.sample((0,)).shape == (0, 13) and d.marginals.shape == (13,)


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (
            lambda p: ExchangeableMixture(torch.zeros(3), torch.zeros(2, 6), p),
            r"statistic_logits: expected shape \(..., 3, 6\)",
        ),
        (
            lambda p: ExchangeableMixture(torch.zeros(2), torch.zeros(6), p),
            r"statistic_logits: expected shape \(..., 2, 6\)",
        ),
        (
            lambda p: ExchangeableMixture(torch.zeros(4, 2), torch.zeros(3, 2, 6), p),
            "statistic_logits: expected a batch that broadcasts",
        ),
        (lambda p: ExchangeableMixture(torch.zeros(2), torch.zeros(2, 6), None), "partition: expected a Partition"),
        (
            lambda p: ExchangeableMixture.from_data(torch.zeros(4, 3), torch.ones(2, 2), p),
            r"memberships: expected a tensor of shape \(4, K\), got \(2, 2\)",
        ),
        (
            lambda p: ExchangeableMixture.from_data(torch.zeros(1, 3), [[1.0, 0.0]], p),
            r"memberships: expected a tensor of shape \(1, K\), got list",
        ),
        (
            lambda p: ExchangeableMixture.from_data([[0, 0, 1]], torch.tensor([[1.0, 0.0]]), p),
            r"values: expected a tensor of shape \(N, 3\), got list",
        ),
        (
            lambda p: ExchangeableMixture.from_data(torch.zeros(2, 3), torch.tensor([[2.0, -1.0], [0.0, 1.0]]), p),
            "memberships: expected probabilities that add up to 1 in every row",
        ),
        (
            lambda p: ExchangeableMixture.from_data(torch.zeros(2, 3), torch.ones(2, 2), p),
            "memberships: expected probabilities that add up to 1 in every row",
        ),
        (
            lambda p: ExchangeableMixture.from_data(torch.zeros(2, 3), torch.full((2, 3), 1 / 3), p),
            r"partition: expected one for each of 3 classes, as in memberships, got batch shape \(2,\)",
        ),
        (
            lambda p: ExchangeableMixture(torch.zeros(2), torch.zeros(2, 6), p).posterior([0.0, 0.0, 1.0]),
            r"value: expected a tensor, got \[0.0, 0.0, 1.0\]",
        ),
        (lambda p: ExchangeableMixture(torch.zeros(2), torch.full((2, 6), math.nan), p), "statistic_logits"),
        (lambda p: ExchangeableMixture(torch.tensor([0.0, math.inf]), torch.zeros(2, 6), p), "mixture_logits"),
    ],
)
def test_bad_arguments(construct, message):
    with pytest.raises(ValueError, match=message):
        construct(Partition(torch.tensor([[0, 0, 1], [0, 1, 2]])))


def test_draws_of_a_batch_with_the_same_components_are_independent():
    """Weights vary over the batch, tables do not."""
    d = ExchangeableMixture(torch.zeros(200, 1), torch.zeros(1, 8), Partition(torch.zeros(1, 4, dtype=torch.long)))
    assert len(d.sample().unique(dim=0)) > 5
    assert d.sample((3,)).shape == (3, 200, 4)
