"""The suite for kernels finds every single thing that is wrong."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.mcmc import RandomWalkKernel

from pyro_structured.foundation.inference.binary_gibbs import BinarySite
from pyro_structured.inference import BinaryGibbs
from pyro_structured.testing import check_kernel


def model(y):
    weight = pyro.param("weight", lambda: torch.tensor(1.5))
    x = pyro.sample("x", dist.Bernoulli(0.5).expand([4]).to_event(1))
    pyro.sample("y", dist.Normal(weight * x.sum(-1), 1.0), obs=y)


def draw():
    x = dist.Bernoulli(0.5).expand([4]).sample()
    return {"x": x}, (dist.Normal(1.5 * x.sum(-1), 1.0).sample(),)


class KeepsStart(BinaryGibbs):
    """It starts where an earlier chain did."""

    def cleanup(self):
        start = self.initial_params
        super().cleanup()
        self._given = start


class IgnoresStart(BinaryGibbs):
    initial_params = property(BinaryGibbs.initial_params.fget, lambda self, params: None)


class AcceptsInfeasible(BinaryGibbs):
    def setup(self, warmup_steps, *args, **kwargs):
        if self._given is not None and self._given["x"].isnan().any():
            self._given = None
        super().setup(warmup_steps, *args, **kwargs)


class CountsOn(BinaryGibbs):
    """A second chain of the same kernel is thinned."""

    total = 0

    def step(self, values):
        self.total += 1
        return super().step(super().step(values) if self.total > 8 else values)


class CleansOnce(BinaryGibbs):
    def cleanup(self):
        self._composed.cleanup()
        super().cleanup()


class NamesSite(BinaryGibbs):
    def diagnostics(self):
        return {"x": 0.0}


class LogsTensors(BinaryGibbs):
    def logging(self):
        return {"ones": torch.ones(())}


class LogsNumbers(BinaryGibbs):
    def logging(self):
        return {"ones": 1.0}


class ReusesDict(BinaryGibbs):
    def sample(self, params):
        params.update(super().sample(params))
        return params


class HasGradients(BinaryGibbs):
    def sample(self, params):
        return {name: value + 0 * pyro.param("weight") for name, value in super().sample(params).items()}


class KeepsGraphs(BinaryGibbs):
    kept = ()

    def sample(self, params):
        self.kept = (*self.kept, pyro.param("weight") + 0)
        return super().sample(params)


class Unseeded(BinaryGibbs):
    generator = torch.Generator()

    def step(self, values):
        return {name: torch.bernoulli(value * 0 + 0.5, generator=self.generator) for name, value in values.items()}


class NeverMoves(BinaryGibbs):
    def setup(self, *args, **kwargs):
        if self._given is None:
            self._given = {"x": torch.ones(4)}
        super().setup(*args, **kwargs)

    def step(self, values):
        return values


class Prior(BinaryGibbs):
    """It ignores the data."""

    def step(self, values):
        return {name: dist.Bernoulli(0.5).expand(value.shape).sample() for name, value in values.items()}


class Greedy(BinaryGibbs):
    """It only moves uphill."""

    def prepare(self, *args):
        super().prepare(*args)
        for site in self._sites:
            site.move = self._climb(site)

    def _climb(self, site):
        def move(proposed):
            before = site.rows, site._densities
            moved = BinarySite.move(site, proposed)
            if bool((site._densities < before[1]).any()):
                site.rows, site._densities = before
            return moved

        return move


class RemembersParameters(BinaryGibbs):
    """Parameters are those of the start."""

    def prepare(self, live, names, warmup_steps, args, kwargs):
        weight = pyro.param("weight").detach().clone()

        def frozen(*args, **kwargs):
            store = pyro.get_param_store()
            now, store["weight"] = store["weight"].detach().clone(), weight
            live(*args, **kwargs)
            store["weight"] = now

        super().prepare(frozen, names, warmup_steps, args, kwargs)


FAULTS = {
    KeepsStart: "initial_params after cleanup: expected other values",
    IgnoresStart: "initial_params: expected other values",
    AcceptsInfeasible: "initial_params: expected a ValueError",
    CountsOn: "the same kernel once more: expected other values",
    CleansOnce: "'NoneType' object has no attribute 'cleanup'",
    NamesSite: "diagnostics: expected keys that are no names of sites",
    LogsTensors: "not JSON serializable",
    LogsNumbers: "logging: expected strings",
    ReusesDict: "sample: expected a new dict|hook_fn",
    HasGradients: "sample: expected tensors without gradients|requires grad",
    KeepsGraphs: "sample: expected no graphs to be kept",
    Unseeded: "another kernel, the same seed",
    NeverMoves: "chains: expected draws that differ with the seed",
    Prior: "invariance: expected .* keep the distribution of the log-",
    Greedy: "invariance: expected",
    RemembersParameters: "invariance: expected",
}


def check(factory, **options):
    check_kernel(
        factory,
        model,
        draw,
        infeasible={"x": torch.full((4,), torch.nan)},
        parameters={"weight": torch.tensor(-3.0)},
        **{"num_replicates": 200, "contexts": (), **options},
    )


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("kernel", FAULTS)
def test_fault_is_found(kernel):
    with pytest.raises((AssertionError, AttributeError, TypeError, RuntimeError), match=FAULTS[kernel]):
        check(kernel)


def test_walk_that_ignores_its_start_is_found():
    with pytest.raises(AssertionError, match="initial_params: expected other values"):
        check_kernel(RandomWalkKernel, normal, lambda: ({"x": torch.randn(())}, ()), contexts=())


def normal():
    pyro.sample("x", dist.Normal(0.0, 1.0))


def test_random_numbers_are_restored():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    check(BinaryGibbs, num_replicates=50)
    assert torch.equal(torch.rand(3), expected)


def test_too_few_replicates():
    with pytest.raises(ValueError, match="num_replicates: expected at least 50, got 9"):
        check(BinaryGibbs, num_replicates=9)
