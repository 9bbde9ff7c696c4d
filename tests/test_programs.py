"""Whole programs as users write them: Pyro models, guides and networks, checked against enumeration and quadrature."""

import math
import warnings

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.infer.discrete import infer_discrete
from pyro.nn import PyroModule
from pyro.ops.stats import effective_sample_size
from scipy.stats import binomtest, chi2, ks_2samp

import pyro_structured.distributions as sdist
from pyro_structured.inference import MCEM, BinaryGibbs, Gibbs, to_arviz
from pyro_structured.structures import Matching, NestedSubsets, Partition, ShortestPath
from pyro_structured.testing import brute_force
from pyro_structured.testing.standard_errors import FAILURE_RATE, most_standard_errors

pytestmark = pytest.mark.statistical

ON_GPU = pytest.param("cuda", True, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))


def no_guide(*args): ...


def fit(model, guide, elbo, *args, steps):
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.05 ** (1 / steps)}), elbo)
    for _ in range(steps):
        svi.step(*args)


def check_draws(model, name, grid, log_density):
    """Draws by NUTS, which have the mean and the spread of a density on a grid."""
    chain = MCMC(NUTS(model, max_tree_depth=3), num_samples=200, warmup_steps=50, disable_progbar=True)
    chain.run()
    drawn, weights = chain.get_samples()[name], torch.softmax(log_density, 0)
    mean = (weights * grid).sum()
    for moment in (lambda x: x, lambda x: (x - mean) ** 2):
        found, expected = moment(drawn), (weights * moment(grid)).sum()
        variance = (weights * (moment(grid) - expected) ** 2).sum()
        size = effective_sample_size(found.unsqueeze(0)).clamp(max=len(drawn))
        assert (found.mean() - expected).abs() < most_standard_errors(float(size)) * (variance / size).sqrt()
    return drawn


SHARES, SIZES = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([1, 2, 2])
FEATURES = torch.tensor([[0.0] * 6, [2.0, 2.0, 2.0, -1.0, -1.0, -1.0], [-2.0, -2.0, -2.0, 1.0, 1.0, 1.0]])


def mixture(x):
    shares = pyro.param("shares", torch.ones(3) / 3, constraint=dist.constraints.simplex)
    logits = pyro.param("logits", FEATURES / 10)
    with pyro.plate("rows", len(x)):
        z = pyro.sample("z", dist.Categorical(shares), infer={"enumerate": "parallel"})
        pyro.sample("x", sdist.KSubset(logits[z], SIZES[z]), obs=x)


def test_mixture_finds_its_components():
    """Program 1: every component selects its own number of features."""
    z = dist.Categorical(SHARES).sample((500,))
    x = sdist.KSubset(FEATURES[z], SIZES[z]).sample()
    fit(mixture, no_guide, TraceEnum_ELBO(max_plate_nesting=1), x, steps=80)
    assert (pyro.param("shares") - SHARES).abs().max() < 0.1
    found = sdist.KSubset(pyro.param("logits"), SIZES).marginals
    assert (found - sdist.KSubset(FEATURES, SIZES).marginals).abs().max() < 0.12


def test_mixture_sums_its_components_out():
    """Program 1: the loss and the components' posterior are those of Bayes' rule on all possible rows."""
    vectors, elbo = brute_force.binary_vectors(6), TraceEnum_ELBO(max_plate_nesting=1)
    possible = (vectors.sum(-1) == 1) | (vectors.sum(-1) == 2)
    joint = brute_force.log_probs(FEATURES / 10, torch.eye(7)[SIZES].log())[:, possible].T - math.log(3)
    args = mixture, no_guide, vectors[possible]
    assert elbo.loss(*args) == pytest.approx(-joint.logsumexp(-1).sum().item(), rel=1e-5)
    posterior = elbo.compute_marginals(*args)["z"].probs.double()
    torch.testing.assert_close(posterior, joint.softmax(-1), rtol=1e-4, atol=1e-5)
    best = infer_discrete(mixture, first_available_dim=-2, temperature=0)
    found = pyro.poutine.trace(best).get_trace(vectors[possible]).nodes["z"]["value"]
    assert (joint.amax(-1) - joint.gather(-1, found.unsqueeze(-1)).squeeze(-1)).max() < 1e-5


@pytest.mark.slow
def test_latent_sizes_of_noisy_subsets():
    """Program 1, k latent: NUTS on the rate of ones, with k and the subsets summed out, against quadrature."""
    logits, k = torch.tensor([1.0, 0.0, 0.0, -1.0]), torch.tensor([1, 2, 1, 0, 1, 2])
    readings = dist.Normal(sdist.KSubset(logits, k).sample(), 0.6).sample()

    def model():
        rate = pyro.sample("rate", dist.Beta(2.0, 2.0))
        with pyro.plate("rows", len(readings)):
            k = pyro.sample("k", dist.Binomial(4, rate), infer={"enumerate": "parallel"})
            subsets = sdist.KSubset(logits, k.long())
            noisy = sdist.SelectionMixture(subsets, dist.Normal(0.0, 0.6), dist.Normal(1.0, 0.6))
            pyro.sample("y", noisy, obs=readings)

    rate = torch.linspace(0.001, 0.999, 400, dtype=torch.float64)
    counts = dist.Binomial(4, rate.unsqueeze(-1)).log_prob(torch.arange(5.0)).unsqueeze(-1)
    subsets = (counts + brute_force.log_probs(logits, torch.eye(5).log())).logsumexp(1)
    likelihood = dist.Normal(brute_force.binary_vectors(4), 0.6).log_prob(readings.unsqueeze(1)).sum(-1)
    evidence = (subsets.unsqueeze(1) + likelihood).logsumexp(-1).sum(-1)
    check_draws(model, "rate", rate, evidence + dist.Beta(2.0, 2.0).log_prob(rate))


GROUPS = [range(2), range(2, 5), range(5)]
SUBSETS = NestedSubsets(GROUPS, num_variables=5)
SWITCHES = torch.tensor([0.5, -0.5, 0.0, 0.3, -0.2])


def guide(family=sdist.RecursiveCardinality):
    x, f = pyro.param("x", torch.zeros(5)), pyro.param("f", torch.zeros(SUBSETS.table_size))
    pyro.sample("on", family(x, f, SUBSETS), infer={"baseline": {"use_decaying_avg_baseline": True}})


def divergence_of_guide(log_probs):
    found = brute_force.log_probs(pyro.param("x").detach(), pyro.param("f").detach(), GROUPS)
    return (found.exp() * (found - log_probs)).sum()


@pytest.mark.slow
@pytest.mark.parametrize("family, accuracy", [(Trace_ELBO, 0.03), (TraceGraph_ELBO, 0.01)])
def test_guide_by_reinforce(family, accuracy):
    """Program 2: a guide of nested counts, fitted by the score function, becomes the exact posterior."""
    readings, prior = torch.tensor([1.0, 1.0, 2.0]), dist.Bernoulli(logits=SWITCHES).to_event(1)

    def model():
        counts = SUBSETS.counts(pyro.sample("on", prior))
        pyro.sample("meters", dist.Normal(counts.float(), 0.8).to_event(1), obs=readings)

    vectors = brute_force.binary_vectors(5)
    counts = torch.stack([vectors[:, list(group)].sum(-1) for group in GROUPS], -1)
    joint = prior.log_prob(vectors) + dist.Normal(counts, 0.8).log_prob(readings).sum(-1)
    elbo = family(num_particles=100, vectorize_particles=True, max_plate_nesting=0)
    fit(model, guide, elbo, steps=200)
    assert divergence_of_guide(joint.log_softmax(0)) < accuracy
    assert elbo.loss(model, guide) == pytest.approx(-joint.logsumexp(0).item(), abs=0.1)


@pytest.mark.slow
def test_guide_by_straight_through():
    """Program 2, through samples: exact if every switch's likelihood is linear and the divergence is in closed form."""
    tables = torch.linspace(0.0, 20.0, SUBSETS.table_size).cos()
    off, on = torch.tensor([0.0, 0.3, -0.2, 0.1, 0.0]), torch.tensor([1.0, -1.0, 0.5, 2.0, -0.5])

    def model():
        y = pyro.sample("on", sdist.RecursiveCardinality(SWITCHES, tables, SUBSETS))
        pyro.factor("detectors", (off + y * (on - off)).sum(-1))

    # Samples carry no gradient of the guide's entropy: only the divergence of TraceMeanField_ELBO does.
    fit(model, lambda: guide(sdist.RecursiveCardinalityStraightThrough), TraceMeanField_ELBO(), steps=200)
    assert divergence_of_guide(brute_force.log_probs(SWITCHES + on - off, tables, GROUPS)) < 1e-3


def test_spike_and_slab_regression():
    """Program 3: inclusion probabilities against the marginal likelihoods of all sets of at most k coefficients, by
    chains that start at exact draws, as rows of a plate.
    """
    inputs, k, num_copies = torch.randn(12, 6), 2, 1_000
    y = inputs @ torch.tensor([0.6, 0.0, -0.4, 0.0, 0.0, 0.0]) + torch.randn(12)
    prior = sdist.RecursiveCardinality(torch.zeros(6), sdist.cardinality_potentials.at_most(6, k))

    def model():
        with pyro.plate("copies", num_copies, dim=-2):
            s = pyro.sample("s", prior)
            beta = pyro.sample("beta", dist.Normal(torch.zeros(6), 1.0).to_event(1))
            with pyro.plate("rows", 12, dim=-1):
                pyro.sample("y", dist.Normal((s * beta * inputs).sum(-1), 1.0), obs=y)

    sets = brute_force.binary_vectors(6).float()
    sets = sets[sets.sum(-1) <= k]
    used = inputs * sets.unsqueeze(1)
    evidence = dist.MultivariateNormal(torch.zeros(12), used @ used.mT + torch.eye(12)).log_prob(y).double().softmax(0)
    which = evidence.multinomial(3_000, replacement=True)
    # Coefficients given the set and the data are normal.
    precision = used.mT @ used + torch.eye(6)
    given = dist.MultivariateNormal(torch.linalg.solve(precision, used.mT @ y), precision_matrix=precision)
    draws = given.sample((3_000,))[torch.arange(3_000), which]
    params = {"s": sets[which[:num_copies]].unsqueeze(1), "beta": draws[:num_copies].unsqueeze(1)}
    nuts = NUTS(model, step_size=0.03, adapt_step_size=False, max_tree_depth=4)
    kernel = Gibbs([(BinaryGibbs(model), ["s"]), (nuts, None)])
    mcmc = MCMC(kernel, num_samples=5, warmup_steps=0, initial_params=params, disable_progbar=True)
    mcmc.run()
    s, beta = (mcmc.get_samples()[name][-1].squeeze(1) for name in ("s", "beta"))
    assert (s.sum(-1) <= k).all() and (s != params["s"].squeeze(1)).any(-1).double().mean() > 0.2
    for count, share in zip(s.sum(0).tolist(), (evidence @ sets.double()).tolist(), strict=True):
        assert binomtest(int(count), num_copies, share).pvalue > FAILURE_RATE
    for found, other in zip(beta.T, draws[num_copies:].T, strict=True):
        assert ks_2samp(found, other).pvalue > FAILURE_RATE


@pytest.mark.slow
def test_model_comparison():
    """Program 10: leave-one-out prediction prefers the model that knows how many features are on."""
    y = sdist.KSubset(torch.tensor([1.0, 0.0, 0.0, -1.0]), 2).sample((40,))

    def run(family):
        def model():
            logits = pyro.sample("logits", dist.Normal(torch.zeros(4), 1.0).to_event(1))
            with pyro.plate("rows", len(y)):
                pyro.sample("y", family(logits), obs=y)

        mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=150, warmup_steps=50, disable_progbar=True)
        mcmc.run()
        predicted = Predictive(pyro.poutine.uncondition(model), mcmc.get_samples())()
        return to_arviz(mcmc, posterior_predictive={"y": predicted["y"]}, log_likelihood=["y"])

    structured = run(lambda logits: sdist.KSubset(logits, 2))
    independent = run(lambda logits: dist.Bernoulli(logits=logits).to_event(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ warns of few draws, and pandas of what ArviZ does
        ranked = arviz.compare({"independent": independent, "structured": structured})
    assert list(ranked.index) == ["structured", "independent"]
    # That each of 40 rows has two ones is worth about log 2.7 each.
    column = "elpd_loo" if "elpd_loo" in ranked else "elpd"
    assert ranked[column]["structured"] - ranked[column]["independent"] > 20
    sums = structured.posterior_predictive["y"].values.sum(-1)
    assert (sums == 2).all() and (independent.posterior_predictive["y"].values.sum(-1) != 2).any()


HOUSEHOLDS = NestedSubsets([range(3), range(3, 6)], num_variables=6)
LEANINGS = torch.tensor([-0.5, 0.5, 0.0, 0.2, -0.2, 0.0])


def households(strength):
    table = sdist.cardinality_potentials.smoothness(3, strength)
    return sdist.RecursiveCardinality(LEANINGS, HOUSEHOLDS.pack([table, table]), HOUSEHOLDS)


@pytest.mark.slow
def test_missing_answers():
    """Program 8: NUTS and imputation where answers are NaN, against quadrature on enumerated vectors."""
    answers = households(torch.tensor(1.5)).sample((30,))
    seen = torch.rand(answers.shape) > 0.4
    answers = answers.masked_fill(~seen, math.nan)

    def model():
        strength = pyro.sample("strength", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(answers)):
            pyro.sample("y", sdist.NanMasked(households(strength)), obs=answers)

    grid = torch.linspace(-4.0, 6.0, 101, dtype=torch.float64)
    reference = LEANINGS, households(grid.unsqueeze(-1)).count_logits, HOUSEHOLDS.subsets
    evidence = brute_force.marginal_log_prob(answers, seen, *reference).sum(-1)
    posterior = evidence + dist.Normal(0.0, 1.0).log_prob(grid)
    drawn = check_draws(model, "strength", grid, posterior)
    guesses = households(drawn.unsqueeze(-1)).condition(answers, seen).marginals.mean(0)
    expected = brute_force.condition(answers, seen, *reference).exp() @ brute_force.binary_vectors(6)
    expected = torch.einsum("g,grd->rd", posterior.softmax(0), expected)
    assert torch.equal(guesses[seen], answers[seen]) and (guesses - expected).abs().max() < 0.05
    complete = Predictive(pyro.poutine.uncondition(model), {"strength": drawn})()["y"]
    assert complete.shape == (200, 30, 6) and not complete.isnan().any()


def pad(tensor, sizes):
    return tensor.masked_fill(torch.arange(tensor.shape[-1], device=sizes.device) >= sizes[:, None], -math.inf)


class LabelNetwork(PyroModule):
    def __init__(self, unary=(0.1, 0.1), curve=(0.0, 0.0)):
        super().__init__()
        self.unary, self.curve = PyroModule[torch.nn.Linear](2, 1), PyroModule[torch.nn.Linear](2, 1)
        self.unary.weight.data = torch.tensor([unary])
        self.curve.weight.data = torch.tensor([curve])

    def labels(self, pixels, sizes):
        counts = torch.arange(pixels.shape[1] + 1.0, device=pixels.device).expand(len(sizes), -1)
        tables = self.curve(torch.stack([counts, counts**2 / sizes.unsqueeze(-1)], -1)).squeeze(-1)
        return sdist.RecursiveCardinality(pad(self.unary(pixels).squeeze(-1), sizes), pad(tables, sizes + 1))

    def forward(self, pixels, sizes, labels=None):
        with pyro.plate("images", len(pixels)):
            return pyro.sample("labels", self.labels(pixels, sizes), obs=labels)


def images(device="cpu"):
    truth = LabelNetwork(unary=(1.5, -1.0), curve=(-1.5, 1.5)).to(device)
    pixels, sizes = torch.randn(120, 8, 2, device=device), torch.tensor([3, 5, 8], device=device).repeat(40)
    labels = truth.labels(pixels, sizes)
    pyro.clear_param_store()  # where the next network's parameters get the same names
    return pixels, sizes, labels


def test_padding_has_no_effect():
    """Program 9: the gradient of padded images is the sum of those of each image in its own size."""
    network, (pixels, sizes, truth) = LabelNetwork(), images()
    batch = pixels[:6], sizes[:6], truth.sample()[:6]
    rows = [(x[None, :n], n[None], y[None, :n]) for x, n, y in zip(*batch, strict=True)]
    padded = Trace_ELBO().differentiable_loss(network, no_guide, *batch)
    alone = sum(Trace_ELBO().differentiable_loss(network, no_guide, *row) for row in rows)
    found, expected = (torch.autograd.grad(loss, list(network.parameters())) for loss in (padded, alone))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device, autocast", [("cpu", False), ("cpu", True), ON_GPU])
def test_training_a_network(device, autocast):
    """Program 9: from images of three sizes, also in bfloat16, a network learns the labels' distribution."""
    network, (pixels, sizes, truth) = LabelNetwork().to(device), images(device)
    half = torch.autocast(device, torch.bfloat16, enabled=autocast)
    model = half(network)
    fit(model, no_guide, Trace_ELBO(), pixels, sizes, truth.sample(), steps=100)
    drawn = Predictive(model, num_samples=20, parallel=True)(pixels, sizes)["labels"].double()
    with half:
        found = network.labels(pixels, sizes)
        expected = brute_force.marginals(found.logits, found.count_logits)
        torch.testing.assert_close(found.marginals.double(), expected, rtol=0.0, atol=1e-6)
    assert found.logits.dtype == (torch.bfloat16 if autocast else torch.float32)
    # By Wilks' theorem, for four parameters that can be told apart.
    assert torch.distributions.kl_divergence(truth, found).mean() < chi2.isf(FAILURE_RATE, 4) / (2 * len(pixels))
    # Shares of labels in an image have standard deviations of at most a half.
    assert (drawn.mean(0) - expected).mean().abs() < 6 * 0.5 / (20 * len(pixels)) ** 0.5
    assert drawn[:, pad(expected, sizes) == -math.inf].sum() == 0


def test_learning_from_counts_of_bags():
    """Program 9 with counts only: items' weights are learned from the number of positives in every bag."""
    items, sizes = torch.randn(600, 8, 2), torch.tensor([3, 5, 8]).repeat(200)
    truth = torch.tensor([2.0, -1.0])
    drawn = torch.bernoulli((items @ truth).sigmoid())
    positives = torch.stack([row[:n].sum() for row, n in zip(drawn, sizes, strict=True)])

    def model():
        weights = pyro.param("weights", torch.zeros(2))
        with pyro.plate("bags", len(items)):
            pyro.sample("positives", sdist.PoissonBinomial(logits=pad(items @ weights, sizes)), obs=positives)

    fit(model, no_guide, Trace_ELBO(), steps=80)
    assert (pyro.param("weights") - truth).abs().max() < 0.4


def test_semi_supervised_mixture_in_a_larger_model():
    """Program 7: some classes are known, the others are enumerated; another observation depends on the class too."""
    partition = Partition(torch.tensor([[0, 0, 0, 3], [0, 1, 1, 1]]))
    shares, tables = torch.tensor([0.3, -0.2], requires_grad=True), torch.randn(2, 8, requires_grad=True)
    levels = torch.tensor([-1.0, 1.0], requires_grad=True)
    with torch.no_grad():
        z = dist.Categorical(logits=shares).sample((30,))
        x = sdist.ExchangeableMixture(shares, tables, partition).component(z).sample()
        y = dist.Normal(levels[z], 1.0).sample()
    labelled = torch.arange(30) < 12

    @pyro.infer.config_enumerate(default="parallel")  # Pyro does not pass a site's own infer on to its masked part
    def model():
        mixture = sdist.ExchangeableMixture(shares, tables, partition)
        with pyro.plate("rows", 30):
            k = pyro.sample("z", dist.Categorical(logits=shares), obs=z, obs_mask=labelled)
            pyro.sample("x", mixture.component(k), obs=x)
            pyro.sample("y", dist.Normal(levels[k], 1.0), obs=y)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found vars in model but not guide")
        found = -TraceEnum_ELBO(max_plate_nesting=1).differentiable_loss(model, no_guide)
    mixture = sdist.ExchangeableMixture(shares, tables, partition)
    joint = shares.log_softmax(0) + mixture.component_log_prob(x) + dist.Normal(levels, 1.0).log_prob(y.unsqueeze(-1))
    known = joint.gather(1, z.unsqueeze(-1)).squeeze(-1)
    expected = torch.where(labelled, known, joint.logsumexp(-1)).sum()
    torch.testing.assert_close(found, expected)
    parameters = [shares, tables, levels]
    torch.testing.assert_close(torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters))


def test_matchings_with_neural_costs_and_minibatches():
    """Program 4: a network learns what matches, from random parts of the rows."""
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    features, network = torch.randn(300, 4, 4, 3), torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh())
    network.append(torch.nn.Linear(8, 1))
    # Both signs of the first feature: from some random starts, no step leads there.
    network[0].weight.data[:, 0] = torch.tensor([1.0, -1.0]).repeat(4)
    # Large in both directions of the first feature: no linear function says so.
    y = Matching(4).solve((features[..., 0] ** 2) + 0.1 * torch.randn(300, 4, 4))

    def model(features, y, batch_size):
        pyro.module("network", network)
        with pyro.plate("rows", len(features), subsample_size=batch_size) as rows:
            base = dist.Normal(network(features[rows]).squeeze(-1), 0.3).to_event(2)
            pyro.sample("y", sdist.RandOM(base, Matching(4)), obs=y[rows])

    learner = MCEM(model, no_guide, pyro.optim.Adam({"lr": 0.02}))
    for _ in range(150):
        learner.step(features[:100], y[:100], 20)
    assert len(learner.state_dict()["chains"]["y_costs"]["rows"]) == 100
    right = Matching(4).solve(network(features[100:]).squeeze(-1).detach()) == y[100:]
    assert right.double().mean() > 0.5  # six standard errors above chance are 0.36


def test_preferences_of_trips():
    """Program 6: preferences of travellers, from paths between places of their own."""
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    places = torch.arange(9).reshape(3, 3)
    pairs = torch.cat(
        [
            torch.stack([a.flatten(), b.flatten()], 1)
            for a, b in ((places[:, :-1], places[:, 1:]), (places[:-1], places[1:]))
        ]
    )
    edges = torch.cat([pairs, pairs.flip(1)])
    ends = torch.stack([torch.randperm(9)[:2] for _ in range(400)])
    problem, lengths = ShortestPath(edges, 9, ends[:, 0], ends[:, 1]), torch.rand(len(edges), 2)
    truth = torch.tensor([1.0, -0.5])

    def model(y=None):
        weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with pyro.plate("trips", 400):
            base = dist.LogNormal(lengths @ weights, 0.3).to_event(1)
            return pyro.sample("y", sdist.RandOM(base, problem), obs=y)

    y = pyro.condition(model, {"weights": truth})()
    guide = AutoDelta(pyro.poutine.block(model, expose=["weights"]))
    learner = MCEM(model, guide, pyro.optim.Adam({"lr": 0.1}))
    found = []
    for step in range(60):
        learner.step(y)
        found += [guide.median()["weights"].detach()] if step >= 30 else []
    weights = torch.stack(found).mean(0)
    # Of 16 runs, 1.4 apart with a standard deviation of 0.25.
    assert weights[0] > weights[1]
