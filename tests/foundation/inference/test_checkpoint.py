"""Chains that are killed and go on are those that nobody killed, bit for bit."""

import functools
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import HMC, MCMC, NUTS
from pyro.infer.mcmc import RandomWalkKernel
from pyro.infer.mcmc.api import StreamingMCMC

import pyro_structured.distributions as sdist
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.inference import BinaryGibbs, Checkpoint, ConstrainedSlice, FieldGibbs, Gibbs, StepKernel
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.optima.structures.ranking import Ranking

WARMUP, DRAWS, EVERY = 24, 12, 5


def regression(y):
    scale = pyro.sample("scale", dist.Gamma(2.0, 2.0))
    weights = pyro.sample("weights", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(weights.sum(), scale), obs=y)


def matchings(y):
    liking = pyro.sample("liking", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", sdist.RandOM(dist.Normal(liking * torch.eye(2), 1.0).to_event(2), Matching(2)), obs=y)


def orders(y):
    rate = pyro.sample("rate", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        costs = dist.Exponential(torch.stack([rate, 1 / rate, rate**2])).to_event(1)
        pyro.sample("y", sdist.RandOM(costs, Ranking(3)), obs=y)


def labels(x):
    y = pyro.sample("y", sdist.GridCRF(torch.zeros(2, 3), torch.ones(7), Grid(2, 3)))
    level = pyro.sample("level", dist.Normal(1.0, 0.5))
    pyro.sample("x", dist.Normal(level * y, 0.7).to_event(2), obs=x)


def switches(y):
    s = pyro.sample("s", sdist.KSubset(torch.zeros(3), 1))
    weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    pyro.sample("y", dist.Normal((s * weights).sum(), 0.5), obs=y)


ROWS = torch.tensor([0.5, 1.0, 2.0, 0.3])
KILLED = {
    "ConstrainedSlice": (ConstrainedSlice, matchings, torch.tensor([[0, 1], [1, 0]])),
    "FieldGibbs": (FieldGibbs, labels, torch.linspace(-0.5, 1.5, 6).view(2, 3)),
    "NUTS": (lambda model: NUTS(model, full_mass=True, max_tree_depth=4), regression, ROWS),
}
STOPPED = {
    "HMC": (lambda model: HMC(model, trajectory_length=0.5), regression, ROWS),
    "RandomWalkKernel": (RandomWalkKernel, regression, ROWS),
    "NUTS, dense in part": (lambda model: NUTS(model, full_mass=[("weights",)], max_tree_depth=4), regression, ROWS),
    "a single block": (lambda model: Gibbs([(NUTS(model, max_tree_depth=4), None)]), regression, ROWS),
    "summed costs": (ConstrainedSlice, orders, torch.tensor([[0, 2, 1], [1, 0, 2]])),
    "BinaryGibbs": (BinaryGibbs, switches, torch.tensor(1.0)),
    "Gibbs": (
        lambda model: Gibbs([(RandomWalkKernel(model), ["scale"]), (HMC(model, trajectory_length=0.5), None)]),
        regression,
        ROWS,
    ),
}


def run(kernel, *args, num_samples=DRAWS, warmup_steps=WARMUP, seed=0, **options):
    pyro.set_rng_seed(seed)
    mcmc = MCMC(kernel, num_samples, warmup_steps, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


def check_same(found, expected):
    for name, value in expected.get_samples(group_by_chain=True).items():
        assert torch.equal(found.get_samples(group_by_chain=True)[name], value), name
    assert repr(found._diagnostics) == repr(expected._diagnostics)


class Stopped(Exception):
    pass


def stop_after(number):
    """A hook that ends the run after some turns."""
    left = [number]

    def hook(*_):
        left[0] -= 1
        if not left[0]:
            raise Stopped

    return hook


def stopped(kernel, *args, after, **options):
    with pytest.raises(Stopped):
        run(kernel, *args, hook_fn=stop_after(after), **options)


def kill(path, factory, model, data, after, calls):
    """Runs a chain, and kills this process in the middle of a turn."""
    left = [after, calls]

    def suicidal(y):
        if left[0] <= 0:
            left[1] -= 1
            if left[1] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        model(y)

    def hook(*_):
        left[0] -= 1

    run(Checkpoint(factory(suicidal), path, EVERY), data, hook_fn=hook)


def script(task, folder, names):
    for name in names:
        case, after, calls = name.split("-")
        path = folder / f"{name}.pt"
        if task == "kill":
            process = os.fork()
            if not process:
                kill(path, *KILLED[case], int(after), int(calls))
            assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
        else:
            _, model, data = KILLED[case]
            mcmc = run(Checkpoint.resume(path, model), data, seed=1)
            torch.save([mcmc.get_samples(), repr(mcmc._diagnostics)], folder / f"{name}.samples")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to be killed")
def test_killed_processes(tmp_path):
    """One process starts others, which are killed; another one, which has seen none of it, goes on."""
    chance = random.Random(0)
    turns = [(1, WARMUP), (WARMUP, WARMUP + DRAWS)]
    cases = {
        f"{case}-{after}-{chance.randrange(3)}": (case, after)
        for case in KILLED
        for after in (chance.randrange(*stage) for stage in turns)
    }
    for task in ("kill", "resume"):
        subprocess.run([sys.executable, __file__, task, tmp_path, *cases], check=True, timeout=300)
        for name, (_, after) in cases.items():
            kept = Checkpoint.load_samples(tmp_path / f"{name}.pt")
            # Files are written after so many turns, and after the warm-up.
            number = max(after - after % EVERY, WARMUP if after >= WARMUP else 0) - WARMUP
            assert {len(value) for value in kept.values()} == {max(0, number) if task == "kill" else DRAWS}
    for case, (factory, model, data) in KILLED.items():
        expected = run(factory(model), data)
        for name in (name for name, (each, _) in cases.items() if each == case):
            samples, diagnostics = torch.load(tmp_path / f"{name}.samples", weights_only=True)
            assert all(torch.equal(samples[site], value) for site, value in expected.get_samples().items())
            assert diagnostics == repr(expected._diagnostics)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", STOPPED)
def test_stopped_runs(name, tmp_path):
    """Runs that end by an error, also in replayed turns, and what their files hold in the end."""
    factory, model, data = STOPPED[name]
    expected = run(factory(model), data)
    path = tmp_path / "run.pt"
    stopped(Checkpoint(factory(model), path, EVERY), data, after=12)
    stopped(Checkpoint.resume(path, model), data, after=WARMUP + 7, seed=1)
    stopped(Checkpoint.resume(path, model), data, after=3, seed=1)
    check_same(run(Checkpoint.resume(path, model), data, seed=1), expected)
    # Now everything is in the file, as get_samples returns it.
    check_same(run(Checkpoint.resume(path, model), data, seed=1), expected)
    for grouped in (False, True):
        kept = Checkpoint.load_samples(path, group_by_chain=grouped)
        assert kept.keys() == expected.get_samples().keys()
        assert all(torch.equal(kept[site], value) for site, value in expected.get_samples(None, grouped).items())
    # More draws are those of a longer run.
    longer = run(Checkpoint.resume(path, model), data, seed=1, num_samples=DRAWS + 4)
    check_same(longer, run(factory(model), data, num_samples=DRAWS + 4))


def test_interruption_by_the_keyboard(tmp_path):
    """All draws so far are in the file, and a later run draws those after its last state again."""
    path, calls = tmp_path / "run.pt", [None]

    def impatient(y):
        if calls[0] is not None:
            calls[0] -= 1
            if calls[0] < 0:
                raise KeyboardInterrupt
        regression(y)

    def hook(kernel, params, stage, index):
        if stage == "Sample" and index == 7:
            calls[0] = 3

    kernel = Checkpoint(RandomWalkKernel(impatient), path)
    with pytest.raises(KeyboardInterrupt):
        run(kernel, ROWS, hook_fn=hook)
    # A turn that was interrupted is not kept.
    kernel.cleanup()
    expected = run(RandomWalkKernel(regression), ROWS)
    kept = Checkpoint.load_samples(path)
    assert all(torch.equal(kept[site], value[: len(kept[site])]) for site, value in expected.get_samples().items())
    assert {len(value) for value in kept.values()} == {8 + 3}
    check_same(run(Checkpoint.resume(path, regression), ROWS, seed=1), expected)


def test_chains_one_after_the_other(tmp_path):
    options = {"num_chains": 2, "initial_params": {"scale": torch.zeros(2), "weights": torch.zeros(2, 2)}}
    with mock.patch("pyro.infer.mcmc.api.mp.cpu_count", lambda: 1), pytest.warns(UserWarning, match="sequentially"):
        expected = run(RandomWalkKernel(regression), ROWS, **options)
        for after in (30, WARMUP + DRAWS + 30):
            path = tmp_path / f"{after}.pt"
            stopped(Checkpoint(RandomWalkKernel(regression), path, EVERY), ROWS, after=after, **options)
            kept = Checkpoint.load_samples(path, group_by_chain=True)["scale"]
            assert kept.shape == ((1, 6) if after == 30 else (2, 6))
            check_same(run(Checkpoint.resume(path, regression), ROWS, **options), expected)
        path.unlink()
        with pytest.raises(ValueError, match=r"path: expected no file, got .*\.1\.pt; Checkpoint.resume goes on"):
            run(Checkpoint(RandomWalkKernel(regression), path), ROWS)
    path = tmp_path / "30.pt"
    kept = Checkpoint.load_samples(path, group_by_chain=True)
    assert all(torch.equal(kept[site], value) for site, value in expected.get_samples(None, True).items())


@pytest.mark.skipif(torch.cuda.is_available(), reason="autograd does not survive a fork where there is a GPU")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_parallel_chains(tmp_path):
    options = {"num_chains": 2, "mp_context": "fork"}
    path = tmp_path / "run.pt"
    with mock.patch("pyro.infer.mcmc.api.mp.cpu_count", lambda: 3):
        expected = run(RandomWalkKernel(regression), ROWS, **options)
        stopped(Checkpoint(RandomWalkKernel(regression), path, 1), ROWS, after=30, **options)
        check_same(run(Checkpoint.resume(path, regression), ROWS, **options), expected)
    assert Checkpoint.load_samples(path, group_by_chain=True)["scale"].shape == (2, DRAWS)


class Adaptive(StepKernel):
    """A step whose size is learned, in every kind of attribute that data can tell of."""

    def prepare(self, model, names, warmup_steps, args, kwargs):
        self.names, self.left, (self.y,) = names, warmup_steps, args
        self.sizes, self.seen = np.ones(2), {"all": set(), ("by", "name"): []}
        self.best = self.total = torch.zeros(2)
        self.spread = Spread()
        # As it is made by chance, it has to be made by the same chance again.
        self.shift = functools.partial(torch.add, torch.randn(2))

    def step(self, values):
        weights = self.shift(values["weights"]) + self.spread.scale * torch.from_numpy(
            self.sizes
        ).float() * torch.randn(2)
        if self.left:
            self.left -= 1
            self.sizes *= 0.9
            self.spread.history = [*self.spread.history, float(weights[0])]
            self.spread.scale = np.float64(np.std(self.spread.history) + 0.5)
        self.seen["all"].add(self.left)
        self.seen["by", "name"].append((self.left, weights))
        # In place, under both names.
        self.total += weights
        scale = values["scale"] + 0.01 * np.random.rand() + 0.01 * random.random()
        return {"weights": weights, "scale": scale}

    def report(self):
        return {"total": self.total.tolist(), "seen": len(self.seen["all"]), "same": self.best is self.total}


class Spread:
    def __init__(self):
        self.scale, self.history, self.itself = 1.0, [], self


class Private(Adaptive):
    """A kernel whose state is hidden in a generator of its own."""

    def prepare(self, *args):
        super().prepare(*args)
        self.chance = random.Random(0)

    def step(self, values):
        return {**super().step(values), "scale": values["scale"] + self.chance.random()}


class Public(Private):
    """A kernel that provides its hidden state."""

    def state_dict(self):
        hidden = ("sizes", "left", "total", "seen")
        state = {name: getattr(self, name) for name in hidden}
        return {**state, "spread": [self.spread.scale, self.spread.history], "chance": self.chance.getstate()}

    def load_state_dict(self, state):
        state = dict(state)
        self.spread.scale, self.spread.history = state.pop("spread")
        self.chance.setstate(state.pop("chance"))
        vars(self).update(state, best=state["total"])


@pytest.mark.parametrize("kind", [Adaptive, Public])
def test_own_kernels(kind, tmp_path):
    expected = run(kind(regression), ROWS)
    for after in (9, WARMUP + 7):
        path = tmp_path / f"{after}.pt"
        stopped(Checkpoint(kind(regression), path, EVERY), ROWS, after=after)
        with pytest.raises(ValueError, match=f"model: expected a new kernel .* got a model; {kind.__name__}: expected"):
            Checkpoint.resume(path, regression)
        stopped(Checkpoint.resume(path, kind(regression)), ROWS, after=after + EVERY, seed=1)
        check_same(run(Checkpoint.resume(path, kind(regression)), ROWS, seed=2), expected)
    message = r"kernel\.chance: expected tensors, .* got random\.Random; give .* state_dict and load_state_dict"
    with pytest.raises(NotImplementedError, match=message):
        run(Checkpoint(Private(regression), tmp_path / "private.pt"), ROWS)


def test_potentials_and_sites_that_are_functions(tmp_path):
    """Kernels that a file cannot describe are given once more."""

    def potential(params):
        return (params["x"] ** 2).sum() / 2

    def hmc():
        return HMC(potential_fn=potential, trajectory_length=0.5)

    def gibbs():
        return Gibbs(
            [(HMC(regression, trajectory_length=0.5), lambda trace: ["scale"]), (RandomWalkKernel(regression), None)]
        )

    for name, factory, args, options in (
        ("potential", hmc, (), {"initial_params": {"x": torch.ones(2)}}),
        ("function", gibbs, (ROWS,), {}),
    ):
        expected = run(factory(), *args, **options)
        path = tmp_path / name
        stopped(Checkpoint(factory(), path, EVERY), *args, after=WARMUP + 6, **options)
        check_same(run(Checkpoint.resume(path, factory()), *args, seed=1), expected)


class Bound:
    def model(self, y):
        regression(y)

    def sites(self):
        return [(HMC(self.model, trajectory_length=0.5), ["scale"]), (RandomWalkKernel(self.model), None)]


def test_models_that_are_methods(tmp_path):
    bound = Bound()
    stopped(Checkpoint(Gibbs(bound.sites()), tmp_path / "run.pt", EVERY), ROWS, after=30)
    check_same(run(Checkpoint.resume(tmp_path / "run.pt", bound.model), ROWS), run(Gibbs(bound.sites()), ROWS))


def test_pickled_kernels(tmp_path):
    """Kernels can be pickled, as for spawned processes."""
    path = tmp_path / "run.pt"
    stopped(pickle.loads(pickle.dumps(Checkpoint(HMC(regression, trajectory_length=0.5), path, EVERY))), ROWS, after=30)
    kernel = pickle.loads(pickle.dumps(Checkpoint.resume(path, regression)))
    check_same(run(kernel, ROWS, seed=1), run(HMC(regression, trajectory_length=0.5), ROWS))


def test_streams_and_chosen_sites(tmp_path):
    path = tmp_path / "run.pt"
    stopped(Checkpoint(RandomWalkKernel(regression), path, EVERY), ROWS, after=30, save_params=["weights"])
    assert Checkpoint.load_samples(path).keys() == {"weights"}
    expected = run(RandomWalkKernel(regression), ROWS)
    message = r"save_params: expected \['weights'\] as at the start .*, got \['scale', 'weights'\]"
    with pytest.raises(ValueError, match=message):
        run(Checkpoint.resume(path, regression), ROWS)
    pyro.set_rng_seed(1)
    streaming = StreamingMCMC(
        Checkpoint.resume(path, regression), DRAWS, WARMUP, disable_progbar=True, save_params=["weights"]
    )
    streaming.run(ROWS)
    mean = streaming.get_statistics(group_by_chain=False)["weights"]["mean"]
    torch.testing.assert_close(mean, expected.get_samples()["weights"].mean(0))


def learned(y):
    pyro.sample("x", dist.Normal(pyro.param("mean", torch.tensor(0.0)), 1.0))


def test_refusals(tmp_path):
    path = tmp_path / "run.pt"
    stopped(Checkpoint(RandomWalkKernel(regression), path, EVERY), ROWS, after=30)

    def again(**options):
        return run(Checkpoint.resume(path, regression), options.pop("y", ROWS), **options)

    for options, message in (
        ({"warmup_steps": 10}, "warmup_steps: expected 24 as at the start of the chain in .*run.pt, got 10"),
        ({"num_samples": 5}, "num_samples: expected at least 6, the draws in .*run.pt, got 5$"),
        ({"y": ROWS + 1e-6}, "args: expected the arguments of the model as at the start .*, got others"),
        ({"y": ROWS.double()}, "args: expected the arguments of the model"),
        ({"y": object()}, "args: expected tensors, arrays, numbers, texts and containers .* got <object"),
        ({"initial_params": {"scale": torch.ones(())}}, "initial_params: expected none, or the values to start with"),
    ):
        with pytest.raises(ValueError, match=message):
            again(**options)
    with pytest.raises(ValueError, match="path: expected no file, got .*run.pt; Checkpoint.resume goes on"):
        run(Checkpoint(RandomWalkKernel(regression), path), ROWS)
    (tmp_path / "other.pt").write_bytes(b"u")
    torch.save({"a": 1}, tmp_path / "tensors.pt")
    stored = path.read_bytes()
    (tmp_path / "short.pt").write_bytes(stored[:-100])
    draws = Checkpoint.load_samples(path)["weights"][0].numpy().tobytes()
    (tmp_path / "other_digits.pt").write_bytes(stored.replace(draws, bytes([draws[0] ^ 1]) + draws[1:]))
    torch.save(dict(list(torch.load(path, weights_only=True).items())[:-1]), tmp_path / "lacking.pt")
    for name in ("other.pt", "tensors.pt", "short.pt", "other_digits.pt", "lacking.pt"):
        for read in (Checkpoint.load_samples, lambda path: Checkpoint.resume(path, regression)):
            with pytest.raises(ValueError, match=f"path: expected a file that Checkpoint wrote, got .*{name}"):
                read(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="none.pt"):
        Checkpoint.resume(tmp_path / "none.pt", regression)
    for read in (Checkpoint.load_samples, lambda path: Checkpoint.resume(path, regression)):
        with pytest.raises(ValueError, match="path: expected a path, got 3"):
            read(3)
    with pytest.raises(ValueError, match="group_by_chain: expected True or False, got 1"):
        Checkpoint.load_samples(path, 1)
    with pytest.raises(ValueError, match="model: expected a Pyro model or a kernel, got 3"):
        Checkpoint.resume(path, 3)
    for kernel in (regression, Checkpoint(NUTS(regression), path)):
        with pytest.raises(ValueError, match="kernel: expected a kernel for .* that is no Checkpoint, got"):
            Checkpoint(kernel, path)
    with pytest.raises(ValueError, match="every: expected an integer of at least 1, got 0"):
        Checkpoint(NUTS(regression), path, every=0)
    with pytest.raises(ValueError, match=r"blocks: expected no Checkpoint, .* Checkpoint\(Gibbs\(blocks\), path\)"):
        Gibbs([(Checkpoint(NUTS(regression), path), None)])


def edited(prior=0.0, scale=1.0, more=False):
    def model(y):
        x = pyro.sample("x", dist.Normal(prior, 1.0))
        if more:
            pyro.sample("more", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(x, scale), obs=y)

    return model


@pytest.mark.parametrize(
    "change, sites",
    [({"prior": 5.0}, "'x', 'y'"), ({"scale": 2.0}, "'y'"), ({"more": True}, "'more', 'y'"), ({}, None)],
)
def test_models_that_were_edited(change, sites, tmp_path):
    path, y = tmp_path / "run.pt", torch.ones(5)
    stopped(Checkpoint(RandomWalkKernel(edited()), path, EVERY), y, after=30)
    state = torch.get_rng_state()
    resumed = Checkpoint.resume(path, edited(**change))
    if sites is None:
        run(resumed, y)
        return
    with pytest.warns(UserWarning, match=rf"model: expected that of the first time, got one whose sites \[{sites}\]"):
        resumed.setup(24, y)
    assert torch.equal(torch.get_rng_state(), state)


def test_kernels_with_other_arguments(tmp_path):
    path, y = tmp_path / "run.pt", torch.ones(5)
    stopped(Checkpoint(NUTS(edited(), step_size=0.1), path, EVERY), y, after=30)
    for kernel in (HMC(edited(), step_size=0.1), NUTS(edited(), step_size=0.1, max_tree_depth=3)):
        with pytest.raises(ValueError, match="model: expected a kernel with the arguments of the first time, got"):
            Checkpoint.resume(path, kernel)
    run(Checkpoint.resume(path, NUTS(edited(), step_size=0.1)), y)


def test_folders_that_are_not_there(tmp_path):
    for path in (tmp_path, tmp_path / "missing" / "run.pt"):
        with pytest.raises(ValueError, match="path: expected a file in a folder that exists, got '.*'"):
            Checkpoint(NUTS(learned), path)


def test_parameters_have_to_be_there_again(tmp_path):
    path = tmp_path / "run.pt"
    pyro.clear_param_store()
    pyro.param("mean", torch.tensor(3.0))
    stopped(Checkpoint(NUTS(learned), path, EVERY), ROWS, after=30)
    pyro.clear_param_store()
    with pytest.raises(ValueError, match="model: expected the parameter 'mean' of Pyro's store as at the start"):
        run(Checkpoint.resume(path, learned), ROWS)


def test_a_file_is_the_old_one_or_the_new_one(tmp_path):
    """Processes that are killed while they write leave what was there."""
    path = tmp_path / "run.pt"
    stopped(Checkpoint(RandomWalkKernel(regression), path, EVERY), ROWS, after=30)
    before = path.read_bytes()
    with mock.patch("os.replace", side_effect=Stopped), pytest.raises(Stopped):
        run(Checkpoint.resume(path, regression), ROWS)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 2
    # Parents of joblib's processes cannot be asked.
    for orphan in (mock.Mock(is_alive=lambda: False), mock.Mock(is_alive=mock.Mock(side_effect=ValueError), pid=-1)):
        with mock.patch("multiprocessing.parent_process", lambda orphan=orphan: orphan):
            with pytest.raises(RuntimeError, match="run.pt: expected a process that waits for this chain, got none"):
                run(Checkpoint.resume(path, regression), ROWS)
    assert path.read_bytes() == before
    check_same(run(Checkpoint.resume(path, regression), ROWS), run(RandomWalkKernel(regression), ROWS))
    assert [each.name for each in tmp_path.iterdir()] == ["run.pt"]


if __name__ == "__main__":
    script(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
