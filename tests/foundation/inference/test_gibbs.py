"""Compositions of kernels: errors, joint moves, Pyro's kernels as blocks, and posteriors in closed form."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import HMC, MCMC, NUTS
from pyro.infer.mcmc import RandomWalkKernel
from scipy.stats import chi2

from pyro_structured.inference import BinaryGibbs, Gibbs, StepKernel
from pyro_structured.testing.standard_errors import FAILURE_RATE

pytestmark = pytest.mark.statistical


def model(dtype=torch.float32):
    """Two unknown means; the posterior is normal."""
    a = pyro.sample("a", dist.Normal(torch.zeros((), dtype=dtype), 1.0))
    b = pyro.sample("b", dist.Normal(torch.zeros((), dtype=dtype), 1.0))
    pyro.sample("y", dist.Normal(a + b, 0.5), obs=torch.tensor(2.0, dtype=dtype))
    pyro.sample("z", dist.Normal(a - b, 1.0), obs=torch.tensor(0.5, dtype=dtype))


PRECISION = torch.tensor([[1.0 + 4.0 + 1.0, 4.0 - 1.0], [4.0 - 1.0, 1.0 + 4.0 + 1.0]], dtype=torch.double)
COVARIANCE = PRECISION.inverse()
MEAN = COVARIANCE @ torch.tensor([4 * 2.0 + 0.5, 4 * 2.0 - 0.5], dtype=torch.double)


def run(blocks, *args, num_samples=10, warmup_steps=5, **options):
    mcmc = MCMC(Gibbs(blocks), num_samples, warmup_steps, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


class JointShift(StepKernel):
    """Moves a up and b down: proposes from their conditional distribution given a + b."""

    owns_sites = False

    def prepare(self, model, names, warmup_steps, args, kwargs):
        self.names, self.number = names, 0

    def step(self, values):
        self.number += 1
        # Given a + b and z: a - b is normal with precision 1/2 + 1 and mean 0.5 / 1.5.
        total = values["a"] + values["b"]
        difference = 0.5 / 1.5 + torch.randn_like(total) / 1.5**0.5
        return {"a": (total + difference) / 2, "b": (total - difference) / 2}

    def report(self):
        return {"steps": self.number}


# Rows that are as many chains; what adapts has no invariant distribution.
COPIES = 2_000


def copies(dtype):
    with pyro.plate("copies", COPIES):
        model(dtype)


def leapfrog():
    return HMC(copies, step_size=0.08, num_steps=10, adapt_step_size=False)


def nuts():
    return NUTS(copies, step_size=0.08, adapt_step_size=False, max_tree_depth=3)


BLOCKS = {
    "HMC": lambda: [(leapfrog(), ["a"]), (leapfrog(), None)],
    "NUTS": lambda: [(nuts(), None)],
    "NUTS twice": lambda: [(nuts(), ["a"]), (nuts(), None)],
    "joint moves": lambda: [(leapfrog(), None), (JointShift(copies), None)],
}


@pytest.mark.parametrize(
    "name, dtype", [*((name, torch.float32) for name in BLOCKS), ("HMC", torch.float64), ("joint moves", torch.float64)]
)
def test_posterior_in_closed_form(name, dtype):
    """Chains that start at exact draws stay exact."""
    start = dist.MultivariateNormal(MEAN, COVARIANCE).sample((COPIES,)).to(dtype)
    params = {"a": start[:, 0], "b": start[:, 1]}
    samples = run(BLOCKS[name](), dtype, warmup_steps=0, initial_params=params).get_samples()
    found = torch.stack([samples["a"][-1], samples["b"][-1]], -1)
    assert found.dtype == dtype and (found != start).double().mean() > 0.9
    away = found.double() - MEAN
    for part, freedom in ((away, 2 * COPIES), (away.mean(0, keepdim=True) * COPIES**0.5, 2)):
        square = ((part @ PRECISION) * part).sum()
        assert min(chi2.cdf(square, freedom), chi2.sf(square, freedom)) > FAILURE_RATE / 2


def test_joint_moves_see_all_sites_and_report():
    kernel = JointShift(model)
    mcmc = run([(NUTS(model), ["a"]), (kernel, None), (NUTS(model), ["b"])])
    assert sorted(kernel.names) == ["a", "b"]
    (found,) = mcmc._diagnostics
    assert found["JointShift steps"] == 15
    assert {"divergences", "NUTS acceptance rate", "NUTS 2 divergences", "NUTS 2 acceptance rate"} < set(found)


def test_start_is_given_in_part():
    starts = []

    def look(kernel, params, stage, index):
        starts.append(params)

    kernel = Gibbs([(NUTS(model), None)])
    kernel.initial_params = {"a": torch.tensor(7.0)}
    kernel.setup(0)
    assert kernel.initial_params["a"] == 7.0 and kernel.initial_params.keys() == {"a", "b"}
    kernel.cleanup()
    assert kernel.initial_params is None
    run([(NUTS(model), None)], hook_fn=look, initial_params={"b": torch.tensor(-1.0)})
    assert len(starts) == 15


@pytest.mark.parametrize("support", ["positive", "unit interval"])
def test_start_is_unconstrained(support):
    prior = {"positive": dist.Gamma(2.0, 2.0), "unit interval": dist.Beta(2.0, 2.0)}[support]

    def constrained():
        x = pyro.sample("x", prior)
        pyro.sample("y", dist.Normal(x, 1.0))

    kernel = Gibbs([(NUTS(constrained), ["x"]), (NUTS(constrained), ["y"])])
    kernel.initial_params = {"x": torch.tensor(-1.5)}
    kernel.setup(0)
    torch.testing.assert_close(kernel.initial_params["x"], torch.tensor(-1.5))
    expected = torch.tensor(-1.5).exp() if support == "positive" else torch.tensor(-1.5).sigmoid()
    torch.testing.assert_close(kernel._state.values["x"], expected)


class Reset(StepKernel):
    """Draws a category given nothing."""

    def prepare(self, model, names, warmup_steps, args, kwargs):
        self.names = names

    def step(self, values):
        return {name: torch.randint(3, value.shape) for name, value in values.items()}

    def report(self):
        return {}


@pytest.mark.parametrize(
    "kernel",
    [RandomWalkKernel(model, 1e-6), HMC(model, step_size=1e-6, num_steps=1, adapt_step_size=False)],
    ids=["RandomWalkKernel", "HMC"],
)
def test_energies_follow_what_others_moved(kernel):
    """Steps of almost no length are accepted wherever the other site has jumped."""
    mcmc = run([(kernel, ["a"]), (Reset(model), ["b"])])
    assert mcmc.diagnostics()[f"{type(kernel).__name__} acceptance rate"] == {"chain 0": 1.0}


def test_integers_keep_their_dtype_inside():
    seen = []

    def mixed():
        k = pyro.sample("k", dist.Categorical(torch.ones(3)))
        seen.append(k.dtype)
        pyro.sample("x", dist.Normal(torch.tensor([-1.0, 0.0, 1.0])[k], 0.1))

    samples = run([(Reset(mixed), ["k"]), (NUTS(mixed), None)]).get_samples()
    assert set(seen) == {torch.long} and samples["k"].dtype == torch.float32
    assert torch.isin(samples["k"], torch.arange(3.0)).all()


def test_kernels_of_the_user_are_left_as_they_are():
    """Chains adapt their own copies."""
    kernel = RandomWalkKernel(model)
    run([(kernel, None)])
    assert kernel._t == 0 and kernel.model is model


def test_sites_by_a_function_and_blocks_without_sites():
    blocks = [(NUTS(model), lambda trace: [name for name in trace.nodes if name in ("a", "b")]), (NUTS(model), None)]
    samples = run(blocks).get_samples()
    assert samples.keys() == {"a", "b"} and all(len(draws.unique()) > 1 for draws in samples.values())


def subsampled():
    with pyro.plate("rows", 4, subsample_size=2):
        pyro.sample("x", dist.Normal(0.0, 1.0))


def other_model():
    model()


@pytest.mark.parametrize(
    "blocks, message",
    [
        (lambda: [], "blocks: expected pairs of a kernel and its sites, got \\[\\]"),
        (lambda: NUTS(model), "blocks: expected pairs of a kernel and its sites, got <pyro.*NUTS"),
        (lambda: [NUTS(model)], "blocks: expected pairs of a kernel and its sites"),
        (lambda: [(NUTS(model), ["a"]), (NUTS(other_model), None)], "blocks: expected kernels built on the same model"),
        (lambda: [(NUTS(potential_fn=lambda x: 0.0), None)], "blocks: expected kernels built on the same model"),
        (lambda: [(NUTS(model, jit_compile=True), None)], "blocks: expected kernels with jit_compile=False"),
        (lambda: [(NUTS(model), ["a"]), (NUTS(model), ["a", "b"])], "in one block, got \\['a', 'a', 'b'\\]"),
        (lambda: [(NUTS(model), ["a"])], "each latent site in one block, got .*, \\['b'\\] for none"),
        (lambda: [(NUTS(model), None), (NUTS(model), None)], "each latent site in one block.* 2 blocks for the rest"),
        (
            lambda: [(NUTS(model), ["c"]), (NUTS(model), None)],
            "latent sites of the model, \\['a', 'b'\\], got \\['c'\\]",
        ),
        (lambda: [(NUTS(model), ["y"]), (NUTS(model), None)], "latent sites of the model, .*, got \\['y'\\]"),
        (lambda: [(NUTS(model), "a"), (NUTS(model), None)], "blocks: expected a list of names, got 'a'"),
        (lambda: [(NUTS(subsampled), None)], "rows: expected a plate without subsampling, got 2 of 4 rows"),
        (lambda: [(BinaryGibbs(model), ["a"]), (NUTS(model), None)], "a: expected a binary site for BinaryGibbs"),
    ],
)
def test_errors(blocks, message):
    with pytest.raises(ValueError, match=message):
        run(blocks())


class Means:
    def model(self):
        model()


def test_kernels_built_on_the_same_method():
    """Every access makes another object."""
    means = Means()
    samples = run([(NUTS(means.model), ["a"]), (NUTS(means.model), None)]).get_samples()
    assert samples.keys() == {"a", "b"}
    with pytest.raises(ValueError, match="blocks: expected kernels built on the same model"):
        Gibbs([(NUTS(means.model), ["a"]), (NUTS(Means().model), None)])


def test_a_kernel_twice():
    kernel = NUTS(model)
    with pytest.raises(ValueError, match="blocks: expected different kernels, got one of them twice"):
        Gibbs([(kernel, ["a"]), (kernel, ["b"])])


@pytest.mark.parametrize(
    "params, message",
    [
        ({"c": torch.zeros(())}, "initial_params: expected latent sites of the model, .*, got 'c'"),
        ({"a": torch.zeros(2)}, r"initial_params: expected shape \(\) for site 'a', got \(2,\)"),
        ({"a": torch.tensor(torch.nan)}, "initial_params: expected numbers for site 'a', got nan"),
        ({"a": torch.tensor(torch.inf)}, "initial_params: expected values of positive density, got none in 100 draws"),
    ],
)
def test_bad_starts(params, message):
    with pytest.raises(ValueError, match=message):
        run([(NUTS(model), None)], initial_params=params)


def test_starts_of_whole_numbers():
    chains = []
    for start in (torch.tensor(2), torch.tensor(2.0)):
        pyro.set_rng_seed(0)
        chains.append(run([(NUTS(model), None)], initial_params={"a": start}).get_samples()["a"])
    torch.testing.assert_close(*chains, rtol=0, atol=0)


class Nowhere(StepKernel):
    """Moves b to where nothing has a density."""

    def prepare(self, model, names, warmup_steps, args, kwargs):
        pass

    def step(self, values):
        return {"b": torch.tensor(torch.inf)}


def test_sites_without_a_density_are_named():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(a, 1.0))
        pyro.sample("y", dist.Normal(b, 1.0), obs=torch.ones(()))

    message = (
        "b: expected a positive density at the present values of all sites, where NUTS cannot start, got log-density"
    )
    with pytest.raises(ValueError, match=message):
        run([(Nowhere(model), ["b"]), (NUTS(model), ["a"])])


@pytest.mark.parametrize("kernel", [NUTS, HMC])
def test_sites_without_derivatives_at_the_start_are_named(kernel):
    """The density is positive, but neither kernel would ever move."""

    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Exponential((-a * torch.tensor([1.0, torch.inf])).exp().sum()), obs=torch.ones(()))

    message = f"a: expected .* finite derivatives at the start, without which {kernel.__name__} .* nan in 1 of 2"
    with pytest.raises(ValueError, match=message):
        run([(kernel(model), None)], initial_params={"a": torch.ones(2)})


class Elsewhere(StepKernel):
    """Moves b, which NUTS owns, by a reflection: the density is even."""

    owns_sites = False

    def prepare(self, model, names, warmup_steps, args, kwargs):
        self.number = 0

    def step(self, values):
        self.number += 1
        return {**values, "b": -values["b"] if self.number > 1 else torch.ones(())}


@pytest.mark.slow
def test_other_kernels_may_lead_to_derivatives():
    def even():
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(b.abs().sqrt(), 1.0), obs=torch.ones(()))

    start = {"initial_params": {"b": torch.zeros(())}}
    with pytest.raises(ValueError, match="b: expected a log-density with finite derivatives .* got nan in 1 of 1"):
        run([(NUTS(even), None)], **start)
    draws = run([(NUTS(even), None), (Elsewhere(even), None)], **start).get_samples()["b"]
    assert len(draws.unique()) > 1


def test_several_kernels_that_cannot_move_say_so():
    """The density is even in both: neither leads the other one away."""

    def even():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(a.abs().sqrt() + b.abs().sqrt(), 1.0), obs=torch.ones(()))

    start = {"initial_params": {"a": torch.zeros(()), "b": torch.zeros(())}}
    with pytest.raises(ValueError, match="a: expected a log-density with finite derivatives .* got nan in 1 of 1"):
        run([(NUTS(even), ["a"]), (NUTS(even), ["b"])], **start)


class SameMemory(StepKernel):
    """Draws b given a, into the same tensor each time."""

    copies = False

    def prepare(self, model, names, warmup_steps, args, kwargs):
        self.model_now, self.buffer = model, torch.zeros(())

    def step(self, values):
        a = pyro.poutine.trace(self.model_now).get_trace().nodes["a"]["value"]
        self.buffer.copy_((4 * (2.0 - a) + (a - 0.5) + torch.randn(()) * 6**0.5) / 6)
        return {"b": self.buffer.clone() if self.copies else self.buffer}


def test_a_kernel_that_returns_the_same_memory():
    """The density of a block is not that of its last turn, though the tensor is the same."""
    chains = []
    for copies in (True, False):
        pyro.set_rng_seed(0)
        kernel = SameMemory(model)
        kernel.copies = copies
        chains.append(run([(NUTS(model), ["a"]), (kernel, ["b"])], num_samples=50).get_samples())
    assert torch.equal(chains[0]["a"], chains[1]["a"]) and torch.equal(chains[0]["b"], chains[1]["b"])
