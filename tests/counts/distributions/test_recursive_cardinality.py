"""All queries against enumeration, over drawn structures, sizes, dtypes and potentials."""

import copy
import math
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyro.infer import MCMC, NUTS
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import kl_divergence

from pyro_structured.distributions import KSubset, PoissonBinomial, RecursiveCardinality
from pyro_structured.structures import NestedSubsets
from pyro_structured.testing import ball_arithmetic, brute_force
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit
from pyro_structured.testing.strategies import CardinalityModel, cardinality_models

pytestmark = pytest.mark.statistical

NESTED = NestedSubsets([[0, 2], [1], [], [0, 1, 2, 3], [2, 0]], num_variables=5)
AT_MOST_ONE = torch.tensor([0.0, 0.0, -math.inf, -math.inf])
EMPTY = torch.full((4,), -math.inf)


def construct(model, validate_args=None):
    subsets = model.subsets
    if subsets is not None:
        subsets = NestedSubsets(subsets, num_variables=model.logits.shape[-1])
    return RecursiveCardinality(model.logits, model.count_logits, subsets, validate_args=validate_args)


def broadcast(model):
    """The same with all parameters in the whole batch shape."""
    batch = torch.broadcast_shapes(model.logits.shape[:-1], model.count_logits.shape[:-1])
    parameters = (p.expand(batch + p.shape[-1:]) for p in model[:2])
    return CardinalityModel(*parameters, model.subsets)


def possible(models):
    """Those with a possible vector in every element of the batch."""
    return models.filter(lambda model: bool((brute_force.log_partition(*model) > -math.inf).all()))


def assert_close(actual, expected, scale=1.0, accuracy=1e-11):
    """Float32 results of large numbers are as good as their last bit."""
    if actual.dtype == torch.float32:
        accuracy = 1e-6
    torch.testing.assert_close(actual.double(), expected.double(), rtol=10 * accuracy, atol=10 * accuracy * scale)


def size_of(model):
    """Scale of a model's parameters, to which rounding errors are relative."""
    return max(1.0, *(p.masked_fill(p.isinf(), 0.0).abs().sum(-1).max().item() for p in model[:2] if p.numel()))


@given(possible(cardinality_models()))
def test_partition_function_and_log_prob(model):
    d = construct(model)
    scale = size_of(model)
    assert d.batch_shape == brute_force.log_partition(*model).shape
    assert d.event_shape == model.logits.shape[-1:]
    assert_close(d.log_partition_function, brute_force.log_partition(*model), scale)
    values = brute_force.binary_vectors(*d.event_shape).reshape((-1,) + (1,) * len(d.batch_shape) + d.event_shape)
    expected = brute_force.log_probs(*model).movedim(-1, 0)
    assert_close(d.log_prob(values), expected, scale)
    assert_close(d.unnormalized_log_prob(values) - d.log_partition_function, expected, scale)


@given(possible(cardinality_models()))
def test_marginals(model):
    d = construct(model)
    scale = size_of(model)
    for found, expected in [
        (d.marginal_logits, brute_force.marginal_logits(*model)),
        (d.marginals, brute_force.marginals(*model)),
        (d.mean, brute_force.marginals(*model)),
        (d.variance, brute_force.marginals(*model) * (1 - brute_force.marginals(*model))),
        (d.count_marginals, brute_force.count_marginals(*model)),
        (d.entropy(), brute_force.entropy(*model)),
    ]:
        assert_close(found, expected, scale)
    assert torch.equal(d.marginal_logits == math.inf, brute_force.marginal_logits(*model) == math.inf)
    assert (d.count_marginals[d.count_logits == -math.inf] == 0).all()


@settings(max_examples=50)
@given(possible(cardinality_models()))
def test_mode(model):
    d = construct(model)
    mode = d.mode
    assert mode.shape == d.batch_shape + d.event_shape and ((mode == 0) | (mode == 1)).all()
    best = brute_force.log_weights(*model).amax(-1)
    assert_close(d.unnormalized_log_prob(mode), best, size_of(model))


@settings(max_examples=50)
@given(possible(cardinality_models()), st.integers(0, 2**16))
def test_samples_are_possible(model, seed):
    torch.manual_seed(seed)
    d = construct(model)
    samples = d.sample((3,))
    assert samples.shape == (3, *d.batch_shape, *d.event_shape) and samples.dtype == model.logits.dtype
    assert (d.log_prob(samples) > -math.inf).all()


@settings(max_examples=50)
@given(possible(cardinality_models()), st.integers(0, 2**16), st.booleans())
def test_samples_after_queries_are_those_before(model, seed, expanded):
    """Draws that repeat no pass, because posteriors were wanted before."""
    samples = []
    for queried in (False, True):
        d = construct(model)
        if queried:
            d.marginals  # noqa: B018
        d = d.expand((2, *d.batch_shape)) if expanded else d
        torch.manual_seed(seed)
        samples.append(d.sample((3,)))
    assert samples[0].equal(samples[1])


@pytest.mark.parametrize("size", [3, 200])
def test_samples_after_queries_of_complements(size):
    """Counts of the variables that differ from a reference fit their probabilities."""
    torch.manual_seed(0)
    subsets = NestedSubsets([range(size)], num_variables=size, references=[[1, 0, *[1] * (size - 2)]])
    d = RecursiveCardinality(torch.randn(2, size), torch.randn(2, size + 1), subsets)
    expected = d.count_marginals
    counts = d.subsets.counts(d.sample((4000,))).squeeze(-1)
    for row in range(2):
        drawn = torch.bincount(counts[:, row].long(), minlength=size + 1)
        assert discrete_goodness_of_fit(expected[row] / expected[row].sum(), drawn) > 2e-9


@settings(max_examples=50)
@given(possible(cardinality_models()), st.data())
def test_conditioning(model, data):
    d = construct(model)
    size = d.event_shape[0]
    value = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))).to(model.logits.dtype)
    observed = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    evidence = brute_force.marginal_log_prob(value, observed, *model)
    found = d.marginal_log_prob(value.masked_fill(~observed, math.nan), observed)
    assert_close(found, evidence, size_of(model))
    given_value = d.condition(value, observed)
    assert given_value.batch_shape == d.batch_shape
    if bool((evidence == -math.inf).any()):
        with pytest.raises(ValueError, match="evidence of positive probability"):
            _ = given_value.log_partition_function
        return
    values = brute_force.binary_vectors(size).reshape((-1,) + (1,) * len(d.batch_shape) + d.event_shape)
    table = brute_force.condition(value, observed, *model)
    assert_close(given_value.log_prob(values), table.movedim(-1, 0), size_of(model))
    assert_close(given_value.marginals, table.exp() @ brute_force.binary_vectors(size), size_of(model))
    gain = given_value.log_partition_function - d.log_partition_function
    assert_close(gain, evidence, size_of(model))
    again = given_value.condition(value, observed)
    assert_close(again.log_partition_function, given_value.log_partition_function)


@settings(max_examples=50)
@given(possible(cardinality_models()), st.integers(0, 2**16), st.sampled_from([(), (1,), (2, 1, 1)]))
def test_conjugate_update(model, seed, batch):
    d = construct(model)
    torch.manual_seed(seed)
    logits = torch.randn(batch + d.event_shape).clamp(-2, 2).to(model.logits.dtype)
    logits[..., 0] = 50.0
    other = dist.Bernoulli(logits=logits).to_event(1)
    updated, log_normalizer = d.conjugate_update(other)
    assert updated.batch_shape == log_normalizer.shape == torch.broadcast_shapes(d.batch_shape, batch)
    values = brute_force.binary_vectors(*d.event_shape).to(model.logits.dtype)
    values = values.reshape((-1,) + (1,) * max(len(batch), len(d.batch_shape)) + d.event_shape)
    joint = d.log_prob(values).double() + other.log_prob(values).double()
    assert_close(updated.log_prob(values) + log_normalizer, joint, size_of(model))
    assert_close(log_normalizer, torch.logsumexp(joint, 0), size_of(model))


@settings(max_examples=40)
@given(possible(cardinality_models(max_variables=5)), st.integers(0, 2**16))
def test_gradients(model, seed):
    """First and second derivatives equal those of enumeration; none is NaN, whatever is infinite."""
    model = CardinalityModel(model.logits.double(), model.count_logits.double(), model.subsets)
    torch.manual_seed(seed)
    results = []
    for queries in ("exact", "enumerated"):
        leaves = [p.clone().requires_grad_() for p in model[:2]]
        here = CardinalityModel(*leaves, model.subsets)
        if queries == "exact":
            d = construct(here)
            found = [d.log_partition_function, d.marginals, d.count_marginals, d.entropy()]
        else:
            reference = [brute_force.log_partition, brute_force.marginals, brute_force.count_marginals]
            found = [function(*here) for function in [*reference, brute_force.entropy]]
        torch.manual_seed(seed)
        weighted = torch.stack([(f * torch.randn_like(f)).sum() for f in found])
        results.append([torch.autograd.grad(w, leaves, retain_graph=True, allow_unused=True) for w in weighted])
    scale = size_of(model)
    for exact, enumerated in zip(*results, strict=True):
        for found, expected in zip(exact, enumerated, strict=True):
            expected = torch.zeros_like(found) if expected is None else expected
            # Derivatives of the entropy are products with the parameters.
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9 * scale)


@pytest.mark.parametrize("subsets", [None, NESTED], ids=["single", "nested"])
@pytest.mark.parametrize("forbid", [False, True])
def test_gradcheck(subsets, forbid):
    torch.manual_seed(1)
    logits = torch.randn(2, 5, dtype=torch.float64)
    tables = torch.randn(2, 6 if subsets is None else subsets.table_size, dtype=torch.float64)
    if forbid:
        logits[0, 1], logits[1, 3] = math.inf, -math.inf
        tables[:, [0, 5] if subsets is None else [0, 8]] = -math.inf
    free = logits.isfinite(), tables.isfinite()

    def queries(x, f):
        # Only finite parameters are varied.
        d = RecursiveCardinality(torch.where(free[0], x, logits), torch.where(free[1], f, tables), subsets)
        value = torch.zeros(5)
        evidence = d.marginal_log_prob(value, torch.tensor([False, True, False, False, True]))
        return d.log_partition_function, d.marginals, d.count_marginals, d.entropy(), evidence.clamp(min=-99)

    leaves = [p.masked_fill(~finite, 0.0).requires_grad_() for p, finite in zip((logits, tables), free, strict=True)]
    assert gradcheck(queries, leaves)
    assert gradgradcheck(lambda *p: queries(*p)[0], leaves, fast_mode=True)
    assert gradgradcheck(lambda *p: queries(*p)[1].square().sum(), leaves, fast_mode=True)


@settings(max_examples=50)
@given(possible(cardinality_models()), st.sampled_from([(), (2,), (4, 1)]))
def test_expand(model, extra):
    d = construct(model)
    wide = d.expand(torch.Size(extra) + d.batch_shape)
    whole = broadcast(model)
    assert wide.logits.shape == torch.Size(extra) + whole.logits.shape
    assert wide.sample().shape == torch.Size(extra) + whole.logits.shape
    for query in ("log_partition_function", "marginals", "count_marginals", "marginal_logits"):
        before = getattr(d, query)
        assert torch.equal(getattr(wide, query), before.expand(torch.Size(extra) + before.shape))
    assert torch.equal(wide.entropy(), d.entropy().expand(wide.batch_shape))
    assert wide.certificate.marginal_logits_error.shape == wide.logits.shape


@pytest.mark.parametrize("size", [300.0, 360.0, 500.0, 600.0, 700.0, 900.0])
def test_second_derivatives_where_large_numbers_cancel(size):
    """Of marginals that are ordinary numbers, against enumeration."""
    parameters = torch.tensor([size, -1.0, 0.0, -size, -size], dtype=torch.double)
    vectors = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.double)

    def enumerated(p):
        weights = vectors @ p[:2] + p[2:][vectors.sum(-1).long()]
        return weights.softmax(-1) @ vectors[:, 0]

    found, expected = (
        torch.autograd.functional.hessian(function, parameters)
        for function in (lambda p: RecursiveCardinality(p[:2], p[2:]).marginals[0], enumerated)
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_expansion_does_not_compute_more():
    """Parameters keep the shape that they came in."""
    d = RecursiveCardinality(torch.randn(1, 5), torch.randn(6)).expand((1000, 1))
    assert d.logits.untyped_storage().nbytes() == 5 * 4


@settings(max_examples=50)
@given(cardinality_models(), st.booleans())
def test_empty_supports_raise_at_the_first_query(model, validate_args):
    """One impossible element of the batch suffices; the constructor does not look."""
    assume(model.count_logits.shape[-1])
    impossible = model.count_logits.clone()
    impossible[(-1,) * (impossible.dim() - 1)] = -math.inf
    d = construct(model._replace(count_logits=impossible), validate_args)
    value = torch.zeros(d.event_shape)
    for query in [
        lambda: d.log_partition_function,
        lambda: d.log_prob(value),
        lambda: d.sample(),
        lambda: d.marginals,
        lambda: d.marginal_logits,
        lambda: d.count_marginals,
        lambda: d.mode,
        lambda: d.mean,
        lambda: d.variance,
        lambda: d.entropy(),
        lambda: d.marginal_log_prob(value, value == 1),
        lambda: d.conjugate_update(dist.Bernoulli(logits=value).to_event(1))[0].marginals,
    ]:
        with pytest.raises(ValueError, match="count_logits: expected at least one vector of positive probability"):
            query()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((torch.zeros(3), torch.zeros(3)), r"count_logits: expected a last axis of 4 .* got shape \(3,\)"),
        ((torch.zeros(3), torch.zeros(2, 5)), r"count_logits: expected a last axis of 4 .* got shape \(2, 5\)"),
        ((torch.zeros(4), torch.zeros(14), NESTED), r"logits: expected a last axis of 5 .* got shape \(4,\)"),
        ((torch.zeros(5), torch.zeros(15), NESTED), r"count_logits: expected a last axis of 14 .* got shape \(15,\)"),
        ((torch.zeros(()), torch.zeros(2)), r"logits: expected at least one axis.*got shape \(\)"),
        ((torch.zeros(0), torch.zeros(1)), r"logits: expected .*got shape \(0,\)"),
        ((torch.zeros(3), torch.zeros(())), r"count_logits: expected at least one axis.*got shape \(\)"),
        ((torch.zeros(2, 3), torch.zeros(3, 4)), r"count_logits: expected a batch that broadcasts with \(2,\), got"),
        ((torch.zeros(3, dtype=torch.long), torch.zeros(4)), r"logits: expected a floating point tensor"),
        ((torch.zeros(3), torch.zeros(4, dtype=torch.long)), r"count_logits: expected a floating point tensor"),
        (([0.0, 0.0], torch.zeros(3)), r"logits: expected a floating point tensor, got \[0.0, 0.0\]"),
        ((torch.zeros(2), torch.zeros(3), [[0, 1]]), r"subsets: expected"),
    ],
)
@pytest.mark.parametrize("validate_args", [None, False])
def test_bad_arguments(arguments, message, validate_args):
    with pytest.raises(ValueError, match=message):
        RecursiveCardinality(*arguments, validate_args=validate_args)


@pytest.mark.parametrize(
    "logits, count_logits, name",
    [
        ([0.0, math.nan], [0.0, 0.0, 0.0], "logits"),
        ([0.0, 0.0], [0.0, math.nan, 0.0], "count_logits"),
        ([0.0, 0.0], [0.0, math.inf, 0.0], "count_logits"),
    ],
)
def test_bad_numbers(logits, count_logits, name):
    """They raise, or where validation is off, as under NUTS, they never give a number."""
    logits, count_logits = torch.tensor(logits), torch.tensor(count_logits)
    with pytest.raises(ValueError, match=f"parameter {name} "):
        RecursiveCardinality(logits, count_logits)
    d = RecursiveCardinality(logits, count_logits, validate_args=False)
    assert d.log_prob(torch.zeros(2)).isnan()
    assert d.log_partition_function.isnan() and d.entropy().isnan() and d.marginals.isnan().all()


@pytest.mark.parametrize(
    "value, observed, message",
    [
        (torch.zeros(3), torch.zeros(3), "observed: expected a boolean tensor, got torch.float32"),
        (torch.zeros(3), torch.ones(2, dtype=torch.bool), r"observed: expected a shape .* shape \(3,\), got \(2,\)"),
        (torch.zeros(4), torch.tensor(True), r"value: expected a shape .* shape \(3,\), got \(4,\)"),
        (torch.tensor([0.5, 0.0, 0.0]), torch.ones(3, dtype=torch.bool), "value: expected zeros and ones"),
        (torch.tensor([math.nan, 0.0, 0.0]), torch.ones(3, dtype=torch.bool), "value: expected zeros and ones"),
    ],
)
def test_bad_evidence(value, observed, message):
    d = RecursiveCardinality(torch.zeros(3), AT_MOST_ONE)
    for query in (d.condition, d.marginal_log_prob):
        with pytest.raises(ValueError, match=message):
            query(value, observed)


def test_bad_conjugate_updates():
    d = RecursiveCardinality(torch.zeros(3), AT_MOST_ONE)
    for other in (dist.Normal(torch.zeros(3), 1.0).to_event(1), dist.Bernoulli(logits=torch.zeros(3))):
        with pytest.raises(ValueError, match=r"other: expected Bernoulli\(...\).to_event\(1\) with event shape \(3,\)"):
            d.conjugate_update(other)


def test_values_outside_of_the_support():
    d = RecursiveCardinality(torch.zeros(3), AT_MOST_ONE)
    for bad in (2.0, 0.5, -1.0, math.nan, math.inf):
        value = torch.tensor([0.0, bad, 0.0])
        with pytest.raises(ValueError, match="within the support"):
            d.log_prob(value)
        lenient = RecursiveCardinality(torch.zeros(3), AT_MOST_ONE, validate_args=False)
        assert lenient.log_prob(value) == -math.inf
    # Impossible vectors are in the support all the same.
    assert d.log_prob(torch.ones(3)) == -math.inf


def test_many_variables_are_not_enumerated():
    d = RecursiveCardinality(torch.zeros(40), torch.zeros(41))
    assert not d.has_enumerate_support
    with pytest.raises(NotImplementedError, match=r"expected at most 4096 values, got 2\*\*40; use"):
        d.enumerate_support()

    def model():
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        pyro.sample("y", RecursiveCardinality(shift * torch.ones(40), torch.zeros(41)))

    with pytest.raises(ValueError, match="discrete"):
        MCMC(NUTS(model), num_samples=1, warmup_steps=1, disable_progbar=True).run()


@pytest.mark.parametrize("cells", [slice(0, 2), slice(1, 4)])
def test_ragged_bags_by_padding(cells):
    """Bags of 3 and 5 in one batch: absent variables have a logit of -inf, and derivatives are finite."""
    torch.manual_seed(0)
    sizes = [3, 5]
    features = torch.randn(2, 5, dtype=torch.float64)
    padding = torch.arange(5) >= torch.tensor(sizes).unsqueeze(-1)
    table = torch.randn(6, dtype=torch.float64)
    table[cells] = -math.inf
    weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    table.requires_grad_()
    d = RecursiveCardinality((weight * features).masked_fill(padding, -math.inf), table)
    queries = [d.log_partition_function, d.marginals, d.entropy(), d.count_marginals]
    for index, size in enumerate(sizes):
        alone = RecursiveCardinality(weight * features[index, :size], table[: size + 1])
        torch.testing.assert_close(d.log_partition_function[index], alone.log_partition_function)
        torch.testing.assert_close(d.marginals[index, :size], alone.marginals)
        torch.testing.assert_close(d.entropy()[index], alone.entropy())
    assert d.marginals[0, 3:].tolist() == [0.0, 0.0]
    for query in queries:
        gradients = torch.autograd.grad(query.sum(), [weight, table], retain_graph=True)
        assert all(g.isfinite().all() for g in gradients)
    slope = torch.autograd.grad(d.log_partition_function.sum(), weight, create_graph=True)[0]
    assert torch.autograd.grad(slope, weight)[0].isfinite()


def test_exclusive_or_is_representable():
    """The first example of the paper's appendix, "Representational Power": exactly one of three is on, except for a
    probability of epsilon. No pairwise model of the three variables has these probabilities."""
    epsilon = 0.1
    other, one = math.log(epsilon / 5), math.log((1 - epsilon) / 3)
    d = RecursiveCardinality(torch.zeros(3), torch.tensor([other, one, other, other]))
    assert d.log_partition_function.abs() < 1e-6
    values = d.enumerate_support()
    expected = torch.where(values.sum(-1) == 1, (1 - epsilon) / 3, epsilon / 5)
    torch.testing.assert_close(d.log_prob(values).exp(), expected)
    # The interaction of all three variables, which vanishes in every pairwise model.
    sign = (-1.0) ** (values.sum(-1) + 1)
    assert abs((sign * d.log_prob(values)).sum()) > 1.0


def test_pairwise_model_is_not_representable():
    """The second example: with potentials on ((y1, y2), y3), the counts do not tell (0, 1, y3) from (1, 0, y3), so that
    the interaction of y3 is the same with y1 as with y2, whatever the parameters are."""
    subsets = NestedSubsets([[0, 1], [0, 1, 2], [0], [1], [2]], num_variables=3)
    values = brute_force.binary_vectors(3)

    def interaction(log_probs, first, second):
        """Log odds ratio of two variables, the third being 0."""
        rest = ({0, 1, 2} - {first, second}).pop()
        sign = (2 * values[:, first] - 1) * (2 * values[:, second] - 1) * (values[:, rest] == 0)
        return (sign * log_probs).sum(-1)

    logits, tables = torch.randn(50, 3, dtype=torch.float64), torch.randn(50, subsets.table_size, dtype=torch.float64)
    log_probs = RecursiveCardinality(logits, tables, subsets).log_prob(values.unsqueeze(1)).T
    torch.testing.assert_close(interaction(log_probs, 0, 2), interaction(log_probs, 1, 2))
    assert (interaction(log_probs, 0, 1) - interaction(log_probs, 0, 2)).abs().min() > 1e-3
    # A pairwise model with three potentials of its own for the three pairs.
    energy = values[:, 0] * values[:, 1] + 2 * values[:, 0] * values[:, 2] + 3 * values[:, 1] * values[:, 2]
    pairwise = torch.log_softmax(energy, -1)
    ratios = [interaction(pairwise, *pair).item() for pair in ((0, 1), (0, 2), (1, 2))]
    assert ratios == pytest.approx([1.0, 2.0, 3.0])


def test_pickling_keeps_weights():
    """Also of a distribution that no constructor makes: with the weight of evidence."""
    d = RecursiveCardinality(torch.randn(2, 5), torch.randn(2, NESTED.table_size), NESTED)
    given_value = d.condition(torch.ones(5), torch.tensor([True, False, False, True, False]))
    for copied in (pickle.loads(pickle.dumps(given_value)), copy.deepcopy(given_value)):
        assert torch.equal(copied.log_partition_function, given_value.log_partition_function)
        assert torch.equal(copied.expand((3, 2)).marginals[1], given_value.marginals)
        assert copied.subsets == given_value.subsets


def test_the_default_is_one_potential():
    x, f = torch.randn(4), torch.randn(5)
    explicit = RecursiveCardinality(x, f, NestedSubsets([[3, 1, 0, 2]], num_variables=4))
    assert torch.equal(RecursiveCardinality(x, f).marginals, explicit.marginals)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_double(dtype):
    x, f = torch.linspace(-40.0, 60.0, 300).to(dtype), torch.linspace(0.0, 3.0, 301).to(dtype)
    half, double = RecursiveCardinality(x, f), RecursiveCardinality(x.double(), f.double())
    for query in ("log_partition_function", "marginals", "marginal_logits", "count_marginals"):
        found = getattr(half, query)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, getattr(double, query).float())
    value = (x > 0).double()
    assert half.sample().dtype == dtype
    assert half.log_prob(value).dtype == torch.float32
    torch.testing.assert_close(half.log_prob(value), double.log_prob(value).float())


def test_log_prob_in_single_precision_does_not_cancel():
    """The score and log Z are both near 3,000 here, their difference is not."""
    torch.manual_seed(0)
    x, f = 2 * torch.randn(4096), torch.randn(4097)
    single, double = RecursiveCardinality(x, f), RecursiveCardinality(x.double(), f.double())
    values = double.sample((20,))
    error = single.log_prob(values).double() - double.log_prob(values)
    assert error.abs().max() < 1e-4
    assert (single.entropy().double() - double.entropy()).abs() < 1e-4


def test_samples_of_many_variables():
    """Counts of all subsets are drawn with their marginal probabilities, for a tree of 200 variables."""
    torch.manual_seed(0)
    subsets = NestedSubsets.balanced(200)
    d = RecursiveCardinality(torch.randn(200), 0.5 * torch.randn(subsets.table_size), subsets)
    counts = subsets.counts(d.sample((2000,)))
    for index, probs in enumerate(subsets.split(d.count_marginals)):
        drawn = torch.bincount(counts[:, index], minlength=len(probs))
        assert discrete_goodness_of_fit(probs / probs.sum(), drawn) > 2e-9
    single = RecursiveCardinality(torch.randn(200), -0.01 * (torch.arange(201.0) - 60) ** 2)
    drawn = torch.bincount(single.sample((2000,)).sum(-1).long(), minlength=201)
    assert discrete_goodness_of_fit(single.count_marginals / single.count_marginals.sum(), drawn) > 2e-9


def test_components_of_a_mixture():
    """MixtureSameFamily takes a batch of them."""
    components = RecursiveCardinality(torch.randn(3, 4), torch.randn(3, 5))
    mixture = dist.MixtureSameFamily(dist.Categorical(torch.ones(3)), components)
    total = torch.logsumexp(mixture.log_prob(components.enumerate_support(False).squeeze(1)), 0)
    assert total.abs() < 1e-5
    assert mixture.sample((7,)).shape == (7, 4)
    torch.testing.assert_close(mixture.mean, components.marginals.mean(0))


def adversarial_inputs(size):
    """The inputs by which the accuracy is promised."""
    generator = torch.Generator().manual_seed(size)
    normal = torch.randn(size, generator=generator, dtype=torch.float64)
    uniform = 100 * torch.rand(size, generator=generator, dtype=torch.float64) - 50
    noise = torch.randn(size + 1, generator=generator, dtype=torch.float64)
    counts = torch.arange(size + 1, dtype=torch.float64)
    never = torch.full_like(counts, -math.inf)
    choose = math.lgamma(size + 1) - torch.lgamma(counts + 1) - torch.lgamma(size - counts + 1)
    exactly, all_or_none, parity = never.clone(), never.clone(), never.clone()
    exactly[round(0.9 * size)] = all_or_none[0] = all_or_none[-1] = 0.0
    parity[::2] = 0.0
    bimodal = -torch.minimum((counts - size / 3) ** 2, (counts - 2 * size / 3) ** 2)
    return {
        "random": (normal, noise),
        "extreme logits": (uniform, noise),
        "exactly 0.9 D": (normal - 8, exactly),
        "all or none": (normal, all_or_none),
        "parity": (normal, parity),
        "bimodal": (normal, bimodal),
        "uniform counts": (uniform, -choose),
        "convex": (normal, 4 * (counts - size / 2) ** 2 / size),
    }


@pytest.mark.parametrize("name", adversarial_inputs(1))
@pytest.mark.parametrize("size", [64, 1024])
def test_accuracy(name, size):
    """The promise of the documentation, against ball arithmetic."""
    x, f = adversarial_inputs(size)[name]
    assert_accurate(x, f, None)


@pytest.mark.parametrize("size", [64, 256])
def test_accuracy_of_nested_potentials(size):
    subsets = NestedSubsets.balanced(size)
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    f = 3 * torch.randn(subsets.table_size, generator=generator, dtype=torch.float64)
    f[torch.rand(f.shape, generator=generator) < 0.2] = -math.inf
    for table in subsets.split(f):
        table[table.shape[-1] // 2] = 0.0
    assert_accurate(x, f, subsets)


def assert_accurate(x, f, subsets):
    exact = ball_arithmetic.beliefs(x, f, None if subsets is None else subsets.subsets)
    d = RecursiveCardinality(x.requires_grad_(), f.requires_grad_(), subsets)
    scale = max(1.0, abs(exact.log_partition), x.abs().sum())
    error = (d.log_partition_function - exact.log_partition).abs()
    assert error <= 1e-12 * scale
    assert error <= d.certificate.log_partition_error + 1e-300
    for sign in (1, -1):
        p, reference = torch.sigmoid(sign * d.marginal_logits), torch.sigmoid(sign * exact.marginal_logits)
        visible = reference >= 1e-12
        assert ((p / reference - 1).abs()[visible] <= 1e-9).all()
    odds_error = (d.marginal_logits - exact.marginal_logits).abs().nan_to_num(nan=0.0)
    assert (odds_error <= d.certificate.marginal_logits_error + 1e-14 * exact.marginal_logits.abs()).all()
    assert (d.count_marginals - exact.count_marginals).abs().max() <= 1e-9
    gradients = torch.autograd.grad(d.log_partition_function, (x, f))
    assert (gradients[0] - torch.sigmoid(exact.marginal_logits)).abs().max() <= 1e-9
    assert (gradients[1] - exact.count_marginals).abs().max() <= 1e-9


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
@pytest.mark.parametrize(
    "make",
    [lambda x: RecursiveCardinality(x, x.new_zeros(4)), lambda x: KSubset(x, 1), lambda x: PoissonBinomial(logits=x)],
)
def test_tracing_is_refused(make):
    with pytest.raises(NotImplementedError, match="logits: cannot be traced.*jit_compile=False"):
        torch.jit.trace(lambda x: make(x).log_prob(torch.ones(())), torch.zeros(3))


@pytest.mark.parametrize("constant", [1e9, -1e12, 1e17])
@pytest.mark.parametrize("subsets", [None, NestedSubsets([[0, 1, 2], range(6)], 6)])
def test_constants_in_tables_change_nothing_but_log_z(constant, subsets):
    x = torch.randn(6, dtype=torch.float64)
    table = torch.zeros(7 if subsets is None else subsets.table_size, dtype=torch.float64)
    table[-4:] = -math.inf
    d, shifted = (RecursiveCardinality(x, table + shift, subsets) for shift in (0.0, constant))
    values = d.enumerate_support()
    for query in ("marginals", "count_marginals", "mode"):
        torch.testing.assert_close(getattr(shifted, query), getattr(d, query))
    torch.testing.assert_close(shifted.entropy(), d.entropy())
    torch.testing.assert_close(shifted.log_prob(values), d.log_prob(values))
    other = RecursiveCardinality(torch.randn(6, dtype=torch.float64), table, subsets)
    for first, second in ((shifted, other), (other, shifted)):
        expected = kl_divergence(*(d if q is shifted else q for q in (first, second)))
        torch.testing.assert_close(kl_divergence(first, second), expected)
    number = 1 if subsets is None else 2
    torch.testing.assert_close(shifted.log_partition_function, d.log_partition_function + number * constant)
    assert shifted.sample((100,)).sum(-1).max() <= 3


def test_copies_after_queries():
    x = torch.randn(4, requires_grad=True)
    d = KSubset(x, 2)
    expected = d.log_prob(torch.tensor([1.0, 1, 0, 0])), d.marginals
    copied = copy.deepcopy(d)
    assert torch.equal(copied.log_prob(torch.tensor([1.0, 1, 0, 0])), expected[0])
    assert torch.equal(copied.marginals, expected[1])


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (lambda d: d.expand((2, -1)), r"batch_shape: expected a shape to which \(3,\) expands, got \(2, -1\)"),
        (lambda d: d.expand((4,)), r"batch_shape: expected a shape to which \(3,\) expands, got \(4,\)"),
        (lambda d: d.expand(()), r"batch_shape: expected a shape to which \(3,\) expands, got \(\)"),
        (lambda d: d.condition([0.0] * 4, torch.ones(4).bool()), r"value: expected a tensor, got \[0.0"),
        (lambda d: d.condition(torch.zeros(4), None), "observed: expected a boolean tensor, got None"),
        (
            lambda d: d.condition(torch.zeros(4), torch.ones(4)),
            "observed: expected a boolean tensor, got torch.float32",
        ),
        (lambda d: d.condition(torch.zeros(2, 4), torch.ones(4).bool()), r"value: .*shape \(3, 4\), got \(2, 4\)"),
        (lambda d: d.condition(torch.zeros(5), torch.ones(5).bool()), r"value: .*shape \(3, 4\), got \(5,\)"),
        (lambda d: d.reweight([0.0], torch.zeros(4)), r"log_off: expected a tensor, got \[0.0\]"),
        (lambda d: d.reweight(torch.zeros(4), torch.full((4,), math.inf)), r"log_on: expected numbers less than \+inf"),
        (
            lambda d: d.reweight(torch.full((4,), math.nan), torch.zeros(4)),
            r"log_off: expected numbers less than \+inf",
        ),
        (lambda d: d.condition(torch.ones(4), torch.ones(4).bool()).marginals, "value: expected evidence of positive"),
    ],
)
def test_arguments_are_named(query, message):
    table = torch.tensor([0.0, 0.0, -math.inf, -math.inf, -math.inf])
    d = RecursiveCardinality(torch.zeros(3, 4), table, validate_args=True)
    with pytest.raises(ValueError, match=message):
        query(d)


def test_large_weights_of_evidence_cost_no_digits():
    x, f, off, on = torch.randn(4, 5, dtype=torch.float64)
    d = RecursiveCardinality(x, torch.cat([f, f[:1]]))
    plain, shifted = d.reweight(off, on), d.reweight(off + 1e12, on + 1e12)
    # The sums are rounded to multiples of 2^-13.
    exact = d.reweight(off + 1e12 - 1e12, on + 1e12 - 1e12)
    values = d.enumerate_support()
    torch.testing.assert_close(shifted.log_prob(values), exact.log_prob(values))
    torch.testing.assert_close(kl_divergence(shifted, exact), torch.zeros((), dtype=torch.float64))
    value, observed = values[-1], torch.tensor([True, False, True, False, False])
    torch.testing.assert_close(shifted.marginal_log_prob(value, observed), exact.marginal_log_prob(value, observed))
    torch.testing.assert_close(shifted.log_weight, plain.log_weight + 5e12, rtol=1e-15, atol=0.0)
    assert shifted.condition(value, observed).log_prob(value) <= 0
    assert d.reweight(off - math.inf, on - math.inf).unchecked_log_partition == -math.inf


@pytest.mark.parametrize("validate_args", [True, False])
def test_unnormalized_log_prob_of_values_outside_the_support(validate_args):
    d = RecursiveCardinality(torch.zeros(2), torch.zeros(3), validate_args=validate_args)
    if validate_args:
        with pytest.raises(ValueError, match="to be within the support"):
            d.unnormalized_log_prob(torch.tensor([0.5, 0.0]))
    else:
        assert d.unnormalized_log_prob(torch.tensor([0.5, 0.0])) == -math.inf


def test_copies_of_expanded_instances_with_gradients():
    d = RecursiveCardinality(torch.zeros(3, requires_grad=True), torch.zeros(2, 4, requires_grad=True)).expand((3, 2))
    copied = copy.deepcopy(d)
    assert torch.equal(copied.marginals, d.marginals) and copied.logits.shape == d.logits.shape


def test_conditioned_subsets_have_no_k():
    """Conditioning makes another distribution, which keeps nothing of the number of ones but its table."""
    d = KSubset(torch.zeros(4, requires_grad=True), torch.tensor([1, 2]))
    some = d.condition(torch.ones(4), torch.arange(4) == 0)
    assert type(some) is RecursiveCardinality and not hasattr(some, "k")
    assert torch.equal(some.count_logits, d.count_logits)
    torch.testing.assert_close(some.marginals.sum(-1), torch.tensor([1.0, 2.0]))
    copied = copy.deepcopy(d.expand((3, 2)))
    assert torch.equal(copied.k, d.k.expand(3, 2)) and torch.equal(copied.mean, d.expand((3, 2)).mean)


@pytest.mark.parametrize("validate_args", [True, False])
@pytest.mark.parametrize("size", [0, 1, 2, 4])
def test_values_of_another_length(size, validate_args):
    """Also where they would broadcast."""
    d = KSubset(torch.zeros(3), 2, validate_args=validate_args)
    with pytest.raises(ValueError, match=r"value: expected .*3|event_shape|within the support"):
        d.log_prob(torch.ones(size))
