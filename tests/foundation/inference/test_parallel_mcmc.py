"""Chains are those of Pyro's MCMC, in any number of processes, and fail together."""

import os
import signal

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.mcmc import RandomWalkKernel

from pyro_structured.foundation.ops.progress import verbosity
from pyro_structured.inference import BinaryGibbs, Checkpoint, Gibbs, ParallelMCMC, to_arviz

WARMUP, DRAWS = 6, 4
SEEN = torch.tensor([0.5, 1.0, 2.0])


@pytest.fixture
def model():
    """A function that processes cannot import, with a parameter that was learned."""
    pyro.clear_param_store()
    pyro.param("scale", torch.tensor(0.3), constraint=dist.constraints.positive)

    def switches(y):
        on = pyro.sample("on", dist.Bernoulli(0.5).expand([3]).to_event(1))
        weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        # Whatever it starts with, it is there already.
        scale = pyro.param("scale", torch.tensor(5.0), constraint=dist.constraints.positive)
        pyro.sample("y", dist.Normal(on * weights, scale).to_event(1), obs=y)

    yield switches
    pyro.clear_param_store()


def adaptive(model):
    """A kernel that would start a second chain with the step size of the first one."""
    return Gibbs([(BinaryGibbs(model), ["on"]), (NUTS(model, max_tree_depth=1), None)])


def normal(y):
    pyro.sample("y", dist.Normal(pyro.sample("x", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def walk(model=normal):
    return RandomWalkKernel(model, init_step_size=0.5)


def run(kernel, *args, seed=0, n_jobs=1, num_chains=2, num_samples=DRAWS, **options):
    if seed is not None:
        pyro.set_rng_seed(seed)
    mcmc = ParallelMCMC(
        kernel, num_samples, WARMUP, num_chains=num_chains, n_jobs=n_jobs, disable_progbar=True, **options
    )
    mcmc.run(*args)
    return mcmc


def check_same(found, expected):
    samples = found.get_samples(group_by_chain=True)
    for name, value in expected.get_samples(group_by_chain=True).items():
        assert torch.equal(samples[name], value) and value.dtype == samples[name].dtype, name
    assert repr(found._diagnostics) == repr(expected._diagnostics)


@pytest.mark.slow
def test_processes_draw_what_one_draws(model, tmp_path):
    """And go on from files, with draws in double precision if that is the default."""
    torch.set_default_dtype(torch.double)
    try:
        single = run(adaptive(model), SEEN.double(), num_chains=3)
        kept = tmp_path / "run.pt"
        check_same(run(Checkpoint(adaptive(model), kept), SEEN.double(), n_jobs=2, num_chains=3), single)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run.1.pt", "run.2.pt", "run.pt"]
        longer = run(adaptive(model), SEEN.double(), num_chains=3, num_samples=DRAWS + 2)
        resumed = Checkpoint.resume(kept, model)
        check_same(run(resumed, SEEN.double(), seed=None, n_jobs=2, num_chains=3, num_samples=DRAWS + 2), longer)
    finally:
        torch.set_default_dtype(torch.float)
    samples = single.get_samples(group_by_chain=True)
    assert samples["weights"].shape == (3, DRAWS, 3) and samples["weights"].dtype is torch.double
    assert len(samples["weights"][:, -1, 0].unique()) == 3

    def failing(y):
        if pyro.sample("x", dist.Normal(0.0, 1.0)) > -9:
            raise KeyError("no such thing")

    with pytest.raises(RuntimeError, match="chain [01]: KeyError: 'no such thing'"):
        run(walk(failing), SEEN, n_jobs=2)


@pytest.mark.slow
def test_processes_that_are_killed():
    def mortal(y):
        if os.getpid() != tests:
            os.kill(os.getpid(), signal.SIGKILL)
        normal(y)

    tests = os.getpid()
    with pytest.raises(RuntimeError, match="A worker process managed by the executor was unexpectedly terminated"):
        run(walk(mortal), SEEN, n_jobs=2)


def test_chains_are_those_of_pyro(model):
    """With seeds one after the other, from a first one that is drawn; other random numbers stay as they are."""
    found = run(adaptive(model), SEEN)
    after = torch.rand(())
    pyro.set_rng_seed(0)
    first = int(torch.randint(2**32, ()))
    assert after == torch.rand(())
    for chain in range(2):
        pyro.set_rng_seed((first + chain) % 2**32)
        mcmc = MCMC(adaptive(model), DRAWS, WARMUP, disable_progbar=True)
        mcmc.run(SEEN)
        for name, value in mcmc.get_samples().items():
            assert torch.equal(found.get_samples(group_by_chain=True)[name][chain], value), name
    check_same(run(adaptive(model), SEEN), found)
    for seed in (1, None):
        others = run(adaptive(model), SEEN, seed=seed).get_samples()["weights"]
        assert not set(others.flatten().tolist()) & set(found.get_samples()["weights"].flatten().tolist())


@pytest.mark.statistical
def test_each_chain_has_the_posterior():
    """Of a normal variable, of mean y / 2 and variance 1 / 2."""
    mcmc = run(NUTS(normal, step_size=1.0, adapt_step_size=False, max_tree_depth=2), torch.tensor(1.0), num_samples=200)
    data = to_arviz(mcmc)
    assert data.sample_stats["diverging"].shape == (2, 200) and data.observed_data["y"] == 1.0
    for chain in data.posterior["x"].values:
        # Draws of this kernel are almost independent.
        assert abs(chain.mean() - 0.5) < 6 * (0.5 / 100) ** 0.5
        assert abs(chain.var() - 0.5) < 6 * 0.5 * (2 / 100) ** 0.5


class Still(NUTS):
    def sample(self, params):
        super().sample(params)
        return dict(params)


def test_starts_and_sites_that_are_kept():
    def pair():
        pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    start = {"x": torch.zeros(2), "z": torch.arange(4.0).view(2, 2)}
    mcmc = ParallelMCMC(Still(pair), 3, 0, start, 2, 1, ["z"], disable_progbar=True)
    mcmc.run()
    found = mcmc.get_samples(group_by_chain=True)
    assert found.keys() == {"z"} and torch.equal(found["z"], start["z"].unsqueeze(1).expand(2, 3, 2))


def test_errors_name_the_chain():
    def fails(y):
        if torch.initial_seed() == seed:
            raise ValueError("y: expected another")
        normal(y)

    pyro.set_rng_seed(0)
    seed = (int(torch.randint(2**32, ())) + 1) % 2**32
    with pytest.raises(ValueError, match="chain 1: y: expected another"):
        run(walk(fails), SEEN)


def test_progress(capfd):
    for disabled in (False, True):
        with verbosity(True):
            mcmc = ParallelMCMC(walk(), 2, 0, num_chains=2, n_jobs=1, disable_progbar=disabled)
            mcmc.run(torch.tensor(1.0))
        lines = capfd.readouterr().err.splitlines()
        assert not lines if disabled else lines[-1].startswith("chains: 2/2")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"kernel": normal}, "kernel: expected a kernel for pyro.infer.MCMC, got <function normal"),
        ({"num_samples": 0}, "num_samples: expected an integer of at least 1, got 0"),
        ({"warmup_steps": -1}, "warmup_steps: expected an integer of at least 0, got -1"),
        ({"num_chains": 0}, "num_chains: expected an integer of at least 1, got 0"),
        ({"disable_progbar": 2}, "disable_progbar: expected True or False, got 2"),
        ({"n_jobs": 0}, "n_jobs: expected None or an integer other than 0, got 0"),
        ({"initial_params": 1}, "initial_params: expected tensors by the names of sites, got 1"),
        ({"initial_params": {"x": torch.zeros(3)}}, r"initial_params: expected .* \(2, ...\), .* 'x', got \(3,\)"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ParallelMCMC(**{"kernel": walk(), "num_samples": 1, "num_chains": 2, **arguments}).run(torch.tensor(1.0))
