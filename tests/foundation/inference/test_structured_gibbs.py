"""Exact draws of structured sites: against enumeration, and what is refused."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.mcmc import RandomWalkKernel
from pyro.ops.stats import effective_sample_size
from scipy.stats import chisquare

from pyro_structured.distributions import (
    CategoricalPatternCRF,
    ExchangeableBlock,
    ExchangeableMixture,
    ExchangeableTree,
    GridCRF,
    JunctionTree,
    KSubset,
    MixtureOfJunctionTrees,
    RandOM,
    RecursiveCardinality,
)
from pyro_structured.inference import BinaryGibbs, ConstrainedSlice, FieldGibbs, Gibbs, StructuredGibbs
from pyro_structured.structures import (
    BlockTree,
    CategoryCounts,
    CliqueTree,
    Count,
    Grid,
    NestedSubsets,
    Partition,
    Statistic,
    TopK,
)
from pyro_structured.testing.check_invariance import check_invariance
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit
from pyro_structured.testing.kernel_case import KernelCase
from pyro_structured.testing.standard_errors import most_standard_errors

pytestmark = pytest.mark.statistical

NUM_DRAWS = 250
TREE = CliqueTree([[0, 1], [1, 2], [1, 3]], [2, 3, 2, 1])
TABLES = torch.tensor([0.5, -1.0, 0.2, 0.1, 1.0, -0.3, 0.0, 0.4, -0.2, 0.8, -0.9, 0.6, 0.3, 0.0, -0.5]).double()
SUBSETS = NestedSubsets([[0, 1], range(4)], num_variables=4)
COUNTS = torch.tensor([1.0, 0.0, 0.5, 0.0, -torch.inf, 1.0, 0.0, 2.0]).double()
LOGITS = torch.tensor([0.3, -0.5, 0.0, 1.0]).double()
LEVELS = torch.tensor([0.0, 1.0, -1.5]).double()
PAIRS = torch.tensor([0.5, -0.5, 0.0, 1.0, 0.2, 0.0, -1.0, 0.6]).double()
THREE_STATES = (torch.eye(3) * 1.5 + torch.tensor([0.0, 0.5, -0.5])).flatten().repeat(3)
SEEN = torch.tensor([0.4, 1.2, -0.7, 0.9]).double()


def chain(y):
    z = pyro.sample("z", JunctionTree(TABLES, TREE))
    pyro.sample("y", dist.Normal(LEVELS[z], 0.8).to_event(1), obs=y)


def outliers_in_a_plate(y):
    """Elementwise, in a plate of entries."""
    z = pyro.sample("z", KSubset(LOGITS, 2))
    with pyro.plate("entries", 4):
        pyro.sample("y", dist.Normal(0.0, 0.3 + z), obs=y)


def counts_with_a_factor(y):
    """One log-density of all entries, beside elementwise ones, of which some are masked."""
    z = pyro.sample("z", RecursiveCardinality(LOGITS, COUNTS, SUBSETS))
    pyro.factor("sum", z @ torch.tensor([1.0, -1.0, 0.5, 0.0]).double())
    with pyro.poutine.mask(mask=torch.tensor([True, False, True, True])), pyro.plate("entries", 4):
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def exclusions(y):
    """Values that the likelihood excludes."""
    z = pyro.sample("z", RecursiveCardinality(LOGITS, torch.zeros(5).double()))
    with pyro.plate("entries", 4):
        pyro.sample("y", dist.Uniform(-1 + z, 1 + z, validate_args=False), obs=y)


def field_of_pixels(y):
    """A label field with Gaussian pixels."""
    z = pyro.sample("z", GridCRF(LOGITS.reshape(2, 2), torch.tensor([0.8, -0.3, 0.5, 1.0]).double(), Grid(2, 2)))
    pyro.sample("y", dist.Normal(z, 0.7).to_event(2), obs=y.reshape(2, 2))


def categories_in_a_field(y):
    """Three labels, one pattern, and a plate of pixels."""
    unary, weights = torch.stack([LOGITS, -LOGITS, 0 * LOGITS], -1), torch.arange(12.0).reshape(1, 2, 2, 3) / 12
    pattern = (weights.double(), torch.tensor([-1.0]).double())
    z = pyro.sample("z", CategoricalPatternCRF(unary.reshape(2, 2, 3), None, *pattern, Grid(2, 2)))
    with pyro.plate("columns", 2), pyro.plate("rows", 2):
        pyro.sample("y", dist.Normal(LEVELS[z], 0.7), obs=y.reshape(2, 2))


def chains_in_rows(y):
    """A plate of chains, each with a log-density of all its entries."""
    with pyro.plate("rows", 2):
        z = pyro.sample("z", JunctionTree(PAIRS, CliqueTree.chain(3, 2)))
        pyro.factor("rising", z.double() @ SEEN[1:])
        pyro.sample("y", dist.Normal(z.double(), 0.7).to_event(1), obs=y.expand(2, 4)[:, :3])


def rows_with_a_total(y):
    """Two plates, with a log-density of all rows of one of them."""
    scale = torch.tensor([[0.5], [1.5]]).double()
    with pyro.plate("images", 2, dim=-1):
        with pyro.plate("parts", 2, dim=-2):
            z = pyro.sample("z", KSubset(LOGITS[:2], 1))
            pyro.sample("y", dist.Normal(z, 0.9).to_event(1), obs=y[:2].expand(2, 2, 2))
        pyro.factor("total", (z * scale.unsqueeze(-1)).sum((0, 2)) + z[..., 0].sum(0))


def masked_rows(y):
    """Rows whose prior, and entries whose likelihood, do not count."""
    with pyro.plate("rows", 2):
        with pyro.poutine.mask(mask=torch.tensor([True, False])):
            z = pyro.sample("z", KSubset(LOGITS[:3], 2))
        with pyro.plate("entries", 3, dim=-2), pyro.poutine.mask(mask=torch.tensor([[True], [False], [True]])):
            pyro.sample("y", dist.Normal(z.mT, 0.9), obs=y[1:].reshape(3, 1).expand(3, 2))


def fields_in_rows(y):
    """Two fields, which share their pixels' level."""
    odds, penalties = LOGITS.reshape(2, 2) * torch.tensor([1.0, -1.0]).reshape(2, 1, 1), torch.full((4,), 0.7).double()
    with pyro.plate("rows", 2):
        z = pyro.sample("z", GridCRF(odds, penalties, Grid(2, 2)))
        pyro.sample("y", dist.Normal(z, 0.7).to_event(2), obs=y.reshape(2, 2).expand(2, 2, 2))


CASES = (
    chain,
    outliers_in_a_plate,
    counts_with_a_factor,
    exclusions,
    field_of_pixels,
    categories_in_a_field,
    chains_in_rows,
    rows_with_a_total,
    masked_rows,
    fields_in_rows,
)
MODELS = {model.__name__: model for model in CASES}


def draws_of(kernel, model, start, number, *args):
    kernel.prepare(model, ["z"], 0, args, {})
    values, draws = {"z": start}, []
    for _ in range(number):
        values = kernel.step(values)
        draws.append(values["z"])
    return torch.stack(draws)


def joint_values(fn):
    """All values of all rows together."""
    values, rows = fn.enumerate_support(expand=False), fn.batch_shape.numel()
    values = values.reshape(len(values), *fn.event_shape)
    places = torch.cartesian_prod(*[torch.arange(len(values))] * rows).reshape(-1, rows)
    return values[places].reshape(-1, *fn.batch_shape, *fn.event_shape)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", MODELS)
def test_draws_follow_the_posterior(name):
    model = MODELS[name]
    trace = pyro.poutine.trace(model).get_trace(SEEN)
    support = joint_values(trace.nodes["z"]["fn"])
    log_joint = torch.stack(
        [pyro.poutine.trace(pyro.condition(model, {"z": z})).get_trace(SEEN).log_prob_sum() for z in support]
    )
    probs = log_joint.softmax(0)
    start = support[int(log_joint.argmax())]
    draws = draws_of(StructuredGibbs(model), model, start, NUM_DRAWS, SEEN)
    assert draws.dtype == support.dtype
    counts = (draws.unsqueeze(1) == support).flatten(2).all(-1).sum(0)
    assert int(counts.sum()) == NUM_DRAWS and not bool(counts[probs == 0].any())
    often = probs * NUM_DRAWS > 5
    expected = torch.cat([probs[often], probs[~often].sum().reshape(1)]) * NUM_DRAWS
    seen = torch.cat([counts[often], counts[~often].sum().reshape(1)])
    used = expected > 1e-9
    assert chisquare(seen[used], expected[used] * (NUM_DRAWS / expected[used].sum())).pvalue > 2e-9


def test_rows_of_plates_are_drawn_together():
    def model(y):
        with pyro.plate("rows", 500):
            z = pyro.sample("z", KSubset(LOGITS, 1))
            pyro.sample("y", dist.Normal(3.0 * z, 1.0).to_event(1), obs=y)

    y = torch.tensor([0.0, 3.0, 0.5, 0.0]).double().expand(500, 4)
    kernel = StructuredGibbs(model)
    draws = draws_of(kernel, model, KSubset(LOGITS, 1).sample((500,)), 4, y)
    posterior = (LOGITS + dist.Normal(3.0, 1.0).log_prob(y[0]) - dist.Normal(0.0, 1.0).log_prob(y[0])).softmax(0)
    error = (posterior * (1 - posterior) / 2000).sqrt()
    assert ((draws.mean((0, 1)) - posterior).abs() < 6 * error).all()
    # Two states, and a check, for each draw; and where the log-densities' owners are found.
    assert kernel.report()["runs"] < 4 * 3 + 35


def test_likelihoods_that_begin_to_depend_on_a_site():
    """A switch that was off has hidden all dependencies."""

    def model(y):
        switch = pyro.sample("switch", dist.Bernoulli(0.5))
        z = pyro.sample("z", KSubset(LOGITS, 1))
        pyro.sample("y", dist.Normal(switch * 9.0 * z, 1.0).to_event(1), obs=y)

    y, start = torch.tensor([0.0, 0.0, 9.0, 0.0]).double(), torch.tensor([1.0, 0.0, 0.0, 0.0]).double()
    state = {"switch": torch.tensor(0.0)}
    kernel = StructuredGibbs(model)
    kernel.prepare(lambda y: pyro.condition(model, state)(y), ["z"], 0, (y,), {})
    for _ in range(20):
        kernel.step({"z": start})
    state["switch"] = torch.tensor(1.0)
    for _ in range(20):
        assert kernel.step({"z": start})["z"].tolist() == [0, 0, 1, 0]


def test_two_modes_of_a_count():
    """No single flip leads from few to many."""
    table = torch.full((11,), -torch.inf).double()
    table[[1, 9]] = 0.0

    def model():
        z = pyro.sample("z", RecursiveCardinality(torch.zeros(10).double(), table))
        pyro.sample("y", dist.Normal(z, 5.0).to_event(1), obs=torch.full((10,), 0.5).double())

    draws = draws_of(StructuredGibbs(model), model, torch.eye(10)[0].double(), 300).sum(-1)
    assert set(draws.tolist()) == {1.0, 9.0} and abs(float((draws == 9).double().mean()) - 0.5) < 6 * 0.5 / 300**0.5


def test_alone_it_is_a_composition():
    def model():
        level = pyro.sample("level", dist.Normal(0.0, 2.0))
        z = pyro.sample("z", KSubset(LOGITS, 2))
        flag = pyro.sample("flag", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(level * z + flag, 0.5).to_event(1), obs=SEEN)

    kernel = StructuredGibbs(model)
    mcmc = MCMC(kernel, num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run()
    assert (mcmc.get_samples()["z"].sum(-1) == 2).all()
    own, binary, continuous = StructuredGibbs(model).composition((), {})
    assert own[1] == ["z"] and continuous[1] == ["level"]
    assert isinstance(binary[0], BinaryGibbs) and binary[1] == ["flag"]


def test_rows_with_a_log_density_of_all_entries_are_changed_together():
    """Entries of pairs, in many rows, which are the only ones that log-densities depend on together."""

    def model():
        with pyro.plate("rows", 60):
            z = pyro.sample("z", KSubset(LOGITS, 2))
            with pyro.plate("pairs", 2, dim=-2):
                pyro.factor("pair", (z @ torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 0.5], [0.0, 2.0]]).double()).mT)

    kernel = StructuredGibbs(model)
    draws = draws_of(kernel, model, KSubset(LOGITS, 2).sample((60,)), 30)
    exact = KSubset(LOGITS + torch.tensor([1.0, -2.0, 0.5, 2.0]).double(), 2).marginals
    assert ((draws.mean((0, 1)) - exact).abs() < 6 * (exact * (1 - exact) / 1800).sqrt()).all()
    # Two states, the present values, two changed entries, and a check, in each step; what is found at the start; and
    # values at random in steps 1, 2, 4, 8 and 16.
    assert kernel.report()["runs"] <= 30 * 6 + 1 + 2 * 8 + 3 * 5


def test_sites_in_a_sequential_plate():
    """Several sites of one model, one after the other."""
    y = SEEN.expand(3, 4)

    def model():
        for i in pyro.plate("rows", 3):
            z = pyro.sample(f"z_{i}", KSubset(LOGITS + i, 2))
            pyro.sample(f"y_{i}", dist.Normal(z * (1.0 + i), 1.0).to_event(1), obs=y[i])

    mcmc = MCMC(StructuredGibbs(model), num_samples=40, warmup_steps=0, disable_progbar=True)
    mcmc.run()
    for i in range(3):
        log_off, log_on = (dist.Normal(level, 1.0).log_prob(SEEN) for level in (0.0, 1.0 + i))
        exact = KSubset(LOGITS + i, 2).reweight(log_off, log_on).marginals
        error = (exact * (1 - exact) / 40).sqrt()
        assert ((mcmc.get_samples()[f"z_{i}"].mean(0) - exact).abs() < 6 * error).all()


def test_a_declared_sum_is_not_checked():
    def model(y):
        z = pyro.sample("z", KSubset(LOGITS, 2))
        pyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)

    runs = []
    for additive in (False, True):
        kernel = StructuredGibbs(model, additive=additive)
        draws_of(kernel, model, torch.tensor([1.0, 1.0, 0.0, 0.0]).double(), 10, SEEN)
        runs.append(kernel.report()["runs"])
    assert runs == [10 * 3 + 5 + 3 * 4, 10 * 2 + 5]
    with pytest.raises(ValueError, match="additive: expected True or False, got 'yes'"):
        StructuredGibbs(model, additive="yes")


def two_sites(y):
    first = pyro.sample("first", KSubset(LOGITS, 2))
    second = pyro.sample("second", KSubset(LOGITS, 2))
    pyro.sample("x", dist.Normal(first, 1.0).to_event(1), obs=y)
    pyro.sample("y", dist.Normal(torch.eye(4).double().cumsum(0) @ second, 1.0).to_event(1), obs=y)
    return first


def test_compositions_draw_exactly_what_they_can():
    def with_costs(y):
        first = two_sites(y)
        pyro.sample("best", RandOM(dist.Normal(first, 1.0).to_event(1), TopK(4, 2)), obs=torch.tensor([1.0, 1, 0, 0]))

    def with_a_field(y):
        two_sites(y)
        pyro.sample("field", GridCRF(torch.zeros(2, 2), torch.ones(4), Grid(2, 2)))

    drawn, flipped = (StructuredGibbs, ["first"]), (BinaryGibbs, ["second"])
    for kernel, expected in (
        (StructuredGibbs(two_sites), [drawn, flipped]),
        (FieldGibbs(with_a_field), [(FieldGibbs, ["field"]), drawn, flipped]),
        (ConstrainedSlice(with_costs), [drawn, flipped, (ConstrainedSlice, ["best_costs"])]),
    ):
        blocks = kernel.composition((SEEN,), {})
        assert [(type(block), names) for block, names in blocks if names is not None] == expected


class _OwnCount(Count):
    """As a user would write it: sums with evidence are enumerated, for so few variables as these are not."""

    log_mass, log_peaks = Statistic.log_mass, Statistic.log_peaks
    weighted_sample, weighted_mode = Statistic.weighted_sample, Statistic.weighted_mode
    weighted_log_marginals = Statistic.weighted_log_marginals


def test_compositions_leave_what_has_no_exact_draws_to_flips(monkeypatch):
    """Coupling from the past that does not meet, and evidence that is not implemented."""

    def unmet(*arguments):
        raise RuntimeError("max_sweeps: expected chains to meet")

    monkeypatch.setattr("pyro_structured.fields.distributions.field_distribution.perfect_draws", unmet)

    def strong_field(y):
        z = pyro.sample("z", GridCRF(torch.zeros(24, 24), torch.full((1104,), 2.0), Grid(24, 24)))
        first = pyro.sample("first", KSubset(LOGITS, 2))
        pyro.sample("y", dist.Normal(z.sum() * 0 + first, 1.0).to_event(1), obs=y)

    def own_statistic(y):
        z = pyro.sample("z", ExchangeableBlock(torch.zeros(14), _OwnCount(13)))
        first = pyro.sample("first", KSubset(LOGITS, 2))
        pyro.sample("x", dist.Normal(z, 1.0).to_event(1), obs=torch.zeros(13))
        pyro.sample("y", dist.Normal(first, 1.0).to_event(1), obs=y)

    for model in (strong_field, own_statistic):
        blocks = StructuredGibbs(model).composition((SEEN,), {})
        assert [(type(kernel), names) for kernel, names in blocks] == [
            (StructuredGibbs, ["first"]),
            (BinaryGibbs, ["z"]),
        ]


def test_the_present_value_is_checked():
    """A bonus for one value, which values at random do not meet."""
    key = torch.tensor([1.0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1] * 4)

    def model():
        z = pyro.sample("z", KSubset(torch.zeros(48), 28))
        pyro.factor("bonus", 12.0 * (z == key).all())

    mcmc = MCMC(StructuredGibbs(model), num_samples=5, initial_params={"z": key}, disable_progbar=True)
    with pytest.raises(ValueError, match="z: expected log-densities of later sites that add up over the entries"):
        mcmc.run()


def test_latent_sites_that_change_are_refused():
    def model(y):
        z = pyro.sample("z", KSubset(torch.zeros(4), 2))
        if z[0] == 1:
            pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)

    for seed in range(6):
        pyro.set_rng_seed(seed)
        with pytest.raises(ValueError, match="latent sites at all values"):
            MCMC(StructuredGibbs(model), num_samples=20, disable_progbar=True).run(SEEN)


def regression(y):
    z = pyro.sample("z", KSubset(torch.zeros(4), 2))
    pyro.sample("y", dist.Normal(torch.eye(4).cumsum(0) @ z, 1.0).to_event(1), obs=y)


def scaled(y):
    with pyro.poutine.scale(scale=2.0):
        pyro.sample("z", KSubset(torch.zeros(4), 2))


def unequal(y):
    """A condition that the present value meets, and all values next to it break."""
    z = pyro.sample("z", RecursiveCardinality(torch.zeros(2), torch.zeros(3)))
    pyro.factor("unequal", torch.where(z[0] == z[1], -torch.inf, 0.0))


def switched(y):
    """As many observations as there are ones."""
    z = pyro.sample("z", RecursiveCardinality(torch.zeros(4), torch.zeros(5)))
    for entry in range(int(z.sum())):
        pyro.sample(f"y_{entry}", dist.Normal(0.0, 1.0), obs=y[entry])


def large_field(y):
    grid = Grid(30, 40)
    unary, none = torch.zeros(30, 40, 3), torch.zeros(0)
    pyro.sample("z", CategoricalPatternCRF(unary, torch.ones(grid.num_edges), torch.zeros(0, 30, 40, 3), none, grid))


def frustrated_field(y):
    """Couplings of mixed signs, for which chains from the past do not help."""
    grid = Grid(40, 50)
    pyro.sample("z", GridCRF(torch.zeros(40, 50), torch.randn(grid.num_edges), grid))


def ordinary(y):
    pyro.sample("z", dist.Bernoulli(0.5).expand([4]).to_event(1))


def undefined(y):
    """NaN where the sum is another one than at values of the prior."""
    z = pyro.sample("z", KSubset(torch.zeros(4), 2))
    mean = z if z.sum() == 2 else z * torch.nan
    pyro.sample("y", dist.Normal(mean, 1.0, validate_args=False).to_event(1), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (regression, "z: expected log-densities of later sites that add up over the entries .* BinaryGibbs updates"),
        (unequal, "z: expected log-densities of later sites that add up over the entries"),
        (switched, "z: expected later sites that are the same at all values, got . log-densities in place of ."),
        (scaled, "z: expected a site without a scale for StructuredGibbs, got one with; BinaryGibbs updates scaled"),
        (
            large_field,
            r"z: expected a site that StructuredGibbs can draw exactly, got CategoricalPatternCRF of shape \(30, 40\); "
            r"log Z: exact sums are limited to 1.1e\+09 numbers, got .*FieldGibbs updates fields of any size, Binary",
        ),
        (frustrated_field, r"z: expected a site .* got GridCRF of shape \(40, 50\); .* on this cycle it is odd: .*"),
        (ordinary, "z: expected a distribution with reweight for StructuredGibbs, such as RecursiveCardinality"),
        (undefined, "z: expected log-densities of later sites that are numbers, got NaN"),
    ],
)
def test_refusals(model, message):
    kernel = Gibbs([(StructuredGibbs(model), ["z"])])
    with pytest.raises(ValueError, match=message):
        MCMC(kernel, num_samples=100, warmup_steps=0, disable_progbar=True).run(torch.ones(4))


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="model: expected a latent site whose distribution has reweight, got none"):
        MCMC(StructuredGibbs(ordinary), num_samples=5, warmup_steps=0, disable_progbar=True).run(torch.ones(4))


def chain_averages(model, y, latent, functions, num_samples):
    """Averages of functions of the samples of NUTS beside exact draws, with standard errors from effective samples."""
    pyro.set_rng_seed(3)
    kernel = Gibbs([(StructuredGibbs(model), ["z"]), (NUTS(model), [latent])])
    mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=100, disable_progbar=True)
    mcmc.run(y)
    samples = mcmc.get_samples()
    for function in functions:
        series = function(samples).double().reshape(1, num_samples, -1)
        effective = effective_sample_size(series, chain_dim=0, sample_dim=1).clamp(1, num_samples)
        yield series.mean((0, 1)), series[0].std(0) / effective.sqrt(), most_standard_errors(float(effective.min()))


@pytest.mark.slow
def test_chain_with_unknown_emissions():
    """Against the sum over all chains and a grid of means."""
    stay = torch.tensor([[0.8, 0.2], [0.2, 0.8]]).double().log().flatten()
    prior = JunctionTree(stay.repeat(4), CliqueTree.chain(5, 2))
    y = torch.tensor([0.4, 0.2, 1.0, 1.3, 0.9]).double()

    def model(y):
        level = pyro.sample("level", dist.Normal(torch.tensor(1.5).double(), 0.5))
        z = pyro.sample("z", prior)
        pyro.sample("y", dist.Normal(level * z, 0.7).to_event(1), obs=y)

    grid, chains = torch.linspace(-2.0, 5.0, 1401).double(), prior.enumerate_support()
    joint = dist.Normal(1.5, 0.5).log_prob(grid) + prior.log_prob(chains).unsqueeze(-1)
    joint = joint + dist.Normal(grid * chains.unsqueeze(-1), 0.7).log_prob(y.unsqueeze(-1)).sum(1)
    probs = joint.flatten().softmax(0).view(joint.shape)
    expected = [(probs.sum(1) @ chains.double()), (probs.sum(0) @ grid).reshape(1)]
    averages = chain_averages(model, y, "level", [lambda s: s["z"], lambda s: s["level"]], 400)
    for exact, (mean, error, most) in zip(expected, averages, strict=True):
        assert ((mean - exact).abs() < most * error).all()


@pytest.mark.slow
def test_spike_and_slab():
    """Weights with narrow and wide normal priors, against the closed form without the weights."""
    scales = torch.tensor([0.3, 2.0]).double()
    prior = RecursiveCardinality(LOGITS, torch.tensor([0.0, 1.0, 0.0, -torch.inf, -1.0]).double())

    def model(y):
        z = pyro.sample("z", prior)
        w = pyro.sample("w", dist.Normal(0.0, scales[z.long()]).to_event(1))
        pyro.sample("y", dist.Normal(w, 0.5).to_event(1), obs=y)

    y = torch.tensor([0.1, 1.0, -0.9, 0.4]).double()
    log_off, log_on = dist.Normal(0.0, (scales**2 + 0.25).sqrt().unsqueeze(-1)).log_prob(y)
    exact = prior.reweight(log_off, log_on).marginals
    ((mean, error, most),) = chain_averages(model, y, "w", [lambda s: s["z"]], 400)
    assert ((mean - exact).abs() < most * error).all()


BLOCKS = Partition(torch.tensor([[0, 0, 0, 0], [0, 1, 1, 3]]))


@pytest.mark.parametrize(
    "prior",
    [
        ExchangeableBlock(COUNTS[-5:], Count(4)),
        ExchangeableBlock(TABLES, CategoryCounts(4, 3)),
        ExchangeableMixture(LOGITS[:2], torch.stack([TABLES[:8], TABLES[-8:]]), BLOCKS),
        MixtureOfJunctionTrees(LOGITS[:2], torch.cat([TABLES, TABLES.flip(0)]), [TREE, TREE]),
        ExchangeableTree(TABLES[:12], BlockTree.from_counts([[3, 0, 2], [1]], [2, 3], [[0, 1]])),
    ],
    ids=lambda prior: type(getattr(prior, "statistic", prior)).__name__,
)
def test_exchangeable_variables_and_mixtures(prior):
    """With Gaussian emissions, in a plate; values that the emissions hardly allow, too."""

    def model(y):
        with pyro.plate("rows", 1500):
            z = pyro.sample("z", prior)
            pyro.sample("y", dist.Normal(LEVELS[z.long()], 0.5).to_event(1), obs=y)

    values = prior.enumerate_support()
    probs = (prior.log_prob(values) + dist.Normal(LEVELS[values.long()], 0.5).log_prob(SEEN).sum(-1)).softmax(0)
    kernel = StructuredGibbs(model)
    draws = draws_of(kernel, model, prior.sample((1500,)), 2, SEEN.expand(1500, 4)).flatten(0, 1)
    assert draws.dtype == values.dtype
    found = (draws.unsqueeze(1) == values).all(-1).sum(0)
    assert int(found.sum()) == 3000 and discrete_goodness_of_fit(probs, found) > 2e-9
    # The states, and a check, for each draw; and where the log-densities' owners are found.
    assert kernel.report()["runs"] < 2 * 4 + 2 * 13 + 10


def hidden_chains(y):
    """Chains of three states in a plate, whose emissions have unknown means."""
    levels = pyro.sample("levels", dist.Normal(torch.tensor([-1.0, 0.0, 2.0]), 0.7).to_event(1))
    with pyro.plate("rows", 2):
        z = pyro.sample("z", JunctionTree(THREE_STATES, CliqueTree.chain(4, 3)))
        pyro.sample("y", dist.Normal(levels[z.long()], 0.5).to_event(1), obs=y)


def draw_hidden_chains():
    levels = dist.Normal(torch.tensor([-1.0, 0.0, 2.0]), 0.7).sample()
    z = JunctionTree(THREE_STATES, CliqueTree.chain(4, 3)).sample((2,))
    return {"levels": levels, "z": z}, (dist.Normal(levels[z], 0.5).sample(),)


@pytest.mark.slow
def test_simulation_based_calibration_of_hidden_chains():
    """The other such model, outliers in a plate, is in the contract of kernels."""

    def factory(model):
        return Gibbs([(StructuredGibbs(model), ["z"]), (RandomWalkKernel(model), ["levels"])])

    pyro.set_rng_seed(0)
    check_invariance(KernelCase(factory, hidden_chains, draw_hidden_chains), {}, num_replicates=50, num_steps=2)
