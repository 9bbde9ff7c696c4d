"""States of learners: in new processes after kill -9, as plain data, and of everything that steps change."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.nn import PyroModule
from pyro.optim import SGD, Adam

from pyro_structured.distributions import GridCRF
from pyro_structured.foundation.inference.learning_state import plain_constraint, rebuilt_constraint
from pyro_structured.inference import ContrastiveDivergence, EarlyStopping, MeanFieldLoss, PseudoLikelihood
from pyro_structured.optima.distributions.truncated_normal import PartialInterval
from pyro_structured.structures import Grid

PROGRAM = Path(__file__).parent / "resumed_runs.py"
GRID = Grid(3, 3)
NONE = torch.zeros(GRID.num_edges)


def no_guide(*args):
    pass


def differences(first, second, place=""):
    """Places at which two states are not the same, bit for bit."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return [each for key in first for each in differences(first[key], second[key], f"{place}[{key!r}]")]
    if isinstance(first, (list, tuple)) and len(first) == len(second):
        pairs = enumerate(zip(first, second, strict=True))
        return [each for number, pair in pairs for each in differences(*pair, f"{place}[{number}]")]
    is_tensor = isinstance(first, torch.Tensor)
    return [] if (torch.equal(first, second) if is_tensor else first == second) else [place]


def labels(number=12):
    return (torch.rand(number, 3, 3) < 0.5).float()


def model(y):
    scale = pyro.param("scale", torch.ones(()), constraint=constraints.positive)
    with pyro.plate("rows", len(y)):
        pyro.sample("y", GridCRF(scale * (y - 0.5), NONE, GRID), obs=y)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of final states, from two interpreters in which every run is a process of its own."""
    folder = tmp_path_factory.mktemp("states")
    for modes in (("full", "killed"), ("resumed",)):
        # Processes that use a GPU cannot be forked.
        done = subprocess.run(
            [sys.executable, PROGRAM, folder, *modes],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_killed_runs_go_on_as_if_nothing_had_happened(folder):
    """Parameters, optimisers, schedules, buffers, chains, scores and generators are the same, in all learners."""
    runs = sorted(path.stem for path in folder.glob("*.full"))
    assert len(runs) == 17
    for name in runs:
        full, resumed, early = (torch.load(folder / f"{name}.{mode}") for mode in ("full", "resumed", "state"))
        assert differences(full, resumed) == [], name
        assert differences(full, early), name


@pytest.mark.parametrize("is_module", [True, False])
def test_buffers_go_back(is_module):
    """Buffers of modules that models register, or that are models, are restored in the same process."""

    class Network(PyroModule):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.BatchNorm1d(9)

        def forward(self, y):
            with pyro.plate("rows", len(y)):
                pyro.sample("y", GridCRF(self.inner(y.flatten(1)).reshape(-1, 3, 3), NONE, GRID), obs=y)

    class Bare(torch.nn.Module):
        """A module without parameters, with a buffer that it replaces."""

        def __init__(self):
            super().__init__()
            self.register_buffer("number", torch.zeros(()))
            self.norm = torch.nn.BatchNorm1d(9, affine=False)

        def forward(self, y):
            self.number = self.number + 1
            return self.norm(y.flatten(1)).reshape(-1, 3, 3)

    bare = Bare()

    def function(y):
        scale = pyro.param("scale", torch.ones(()))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", GridCRF(scale * bare(y), NONE, GRID), obs=y)

    learner, y = PseudoLikelihood(Network() if is_module else function, no_guide, Adam({"lr": 0.1})), labels()
    learner.step(y)
    state = learner.state_dict()
    names = ["inner."] if is_module else ["Bare 0.", "Bare 0.norm."]
    assert all(any(key.startswith(name) for key in state["buffers"]) for name in names)
    expected = [learner.step(labels()) for _ in range(3)]
    learner.load_state_dict(state)
    assert differences(learner.state_dict(), state) == []
    assert [learner.step(labels()) for _ in range(3)] == expected


def test_an_empty_store():
    """In the same process: the module that learns is the one that there is, whoever has its tensors."""
    net, y = torch.nn.Linear(9, 9), labels()

    def linear(y):
        pyro.module("net", net)
        with pyro.plate("rows", len(y)):
            pyro.sample("y", GridCRF(net(y.flatten(1)).reshape(-1, 3, 3), NONE, GRID), obs=y)

    learner = PseudoLikelihood(linear, no_guide, Adam({"lr": 0.1}))
    learner.run(2, y)
    state = learner.state_dict()
    expected = learner.run(3, y)
    pyro.clear_param_store()
    learner.load_state_dict(state)
    assert learner.run(3, y) == expected


def test_modules_that_come_later_are_seen():
    """Modules that are called later are seen, also one by one; no hook is left afterwards, since hooks recompile
    modules.
    """
    nets, hooks = [torch.nn.BatchNorm1d(9) for _ in range(3)], []

    def turns(y, number):
        hooks.append(len(torch.nn.modules.module._global_forward_pre_hooks))
        for other in range(number + 1):
            pyro.module(f"net{other}", nets[other])
        with pyro.plate("rows", len(y)):
            pyro.sample("y", GridCRF(nets[number](y.flatten(1)).reshape(-1, 3, 3), NONE, GRID), obs=y)

    learner, y = PseudoLikelihood(turns, no_guide, Adam({"lr": 0.1})), labels()
    for number in (0, 0, 1, 0, 2, 1, 2, 0, 1):
        learner.step(y, number)
    assert {name.split(".")[0] for name in learner.state_dict()["buffers"]} == {"net0", "net1", "net2"}
    # A step runs the model twice.
    assert hooks[2:4] == [0, 0] and hooks[-2:] == [0, 0] and not torch.nn.modules.module._global_forward_pre_hooks


def test_states_can_be_kept_again_before_a_step():
    """A loaded state can be saved again without loss, though the guide and its parameters do not exist yet."""

    def latent(y):
        scale = pyro.sample("scale", dist.Gamma(2.0, 2.0))
        with pyro.plate("rows", len(y), subsample_size=4) as rows:
            pyro.sample("y", GridCRF(scale * (y[rows] - 0.5), NONE, GRID), obs=y[rows])

    y = labels()

    def start():
        pyro.clear_param_store()
        return PseudoLikelihood(latent, AutoDelta(latent), Adam({"lr": 0.1}))

    learner = start()
    early = learner.state_dict()
    learner.run(3, y)
    state = learner.state_dict()
    expected, final = learner.run(3, y), learner.state_dict()
    again = start()
    again.load_state_dict(state)
    assert differences(again.state_dict(), state) == []
    assert pyro.param("AutoDelta.scale") == state["params"]["params"]["AutoDelta.scale"].exp()
    third = start()
    third.load_state_dict(again.state_dict())
    torch.rand(7)
    third.load_state_dict(state)
    assert third.run(3, y) == expected
    assert differences(third.state_dict(), final) == []
    fourth = start()
    fourth.load_state_dict(early)
    fourth.run(6, y)
    assert differences(fourth.state_dict(), final) == []


@pytest.mark.parametrize(
    "constraint",
    [
        constraints.positive,
        constraints.interval(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0], requires_grad=True) * 1),
        constraints.simplex,
        constraints.independent(constraints.greater_than(torch.tensor(-1.0)), 1),
        dist.constraints.softplus_positive,
        dist.constraints.ordered_vector,
        constraints.cat([constraints.real, constraints.unit_interval], 0, [1, 2]),
        PartialInterval(torch.tensor([-torch.inf, 0.0, 0.0]), torch.tensor([torch.inf, 2.0, torch.inf])),
    ],
)
def test_constraints_are_plain_data(constraint, tmp_path):
    plain = plain_constraint(constraint, "x")
    torch.save(plain, tmp_path / "constraint")
    found = rebuilt_constraint(torch.load(tmp_path / "constraint", weights_only=True))
    assert type(found) is type(constraint)
    x = torch.tensor([0.3, -0.2, 0.7])
    value = torch.distributions.transform_to(constraint)(x)
    assert torch.equal(torch.distributions.transform_to(found)(x), value)
    assert found.check(value).all()


def test_all_generators():
    """States include NumPy's and Python's generators, and do not change when these are used."""
    import random

    pyro.set_rng_seed(3)
    learner = PseudoLikelihood(model, no_guide, SGD({"lr": 0.1}))
    state = learner.state_dict()
    expected = torch.rand(3).tolist(), np.random.randn(3).tolist(), random.random()
    learner.load_state_dict(state)
    assert (torch.rand(3).tolist(), np.random.randn(3).tolist(), random.random()) == expected


def test_early_stopping_goes_back_to_buffers_too():
    """The best parameters and buffers are kept, and the score of the start changes nothing."""
    norm = torch.nn.BatchNorm1d(9)

    def normed(y):
        pyro.module("norm", norm)
        with pyro.plate("rows", len(y)):
            pyro.sample("y", GridCRF(norm(y.flatten(1)).reshape(-1, 3, 3), NONE, GRID), obs=y)

    learner, scores = PseudoLikelihood(normed, no_guide, Adam({"lr": 0.1})), iter([1.0, 3.0, 2.0, 0.0])
    seen = []

    def score():
        seen.append((norm.running_mean.clone(), norm.weight.detach().clone()))
        return next(scores)

    before = norm.running_mean.clone()
    EarlyStopping(learner, score, num_steps=1).run(3, labels())
    assert torch.equal(seen[0][0], before)
    assert norm.num_batches_tracked > 0
    assert torch.equal(norm.running_mean, seen[1][0]) and torch.equal(norm.weight, seen[1][1])
    assert not torch.equal(seen[1][0], seen[3][0])


@pytest.mark.parametrize("ends", ["interrupt", "end"])
def test_early_stopping_goes_on_after_it_ended(ends):
    """Parameters have gone back to the best, but the run goes on where it was."""
    y = labels()

    def start():
        pyro.clear_param_store()
        pyro.set_rng_seed(1)
        learner = ContrastiveDivergence(model, no_guide, Adam({"lr": 0.1}), persistent=True)
        return EarlyStopping(learner, lambda: -((pyro.param("scale").item() - 1.1) ** 2), num_steps=2, patience=100)

    uninterrupted = start()
    expected, final = uninterrupted.run(12, y), uninterrupted.state_dict()
    stopping = start()
    if ends == "end":
        assert stopping.run(6, y) == expected[:4]
    else:
        calm = stopping.score

        def nervous():
            if len(stopping.state_dict()["progress"]["scores"]) == 3:
                raise KeyboardInterrupt
            return calm()

        stopping.score = nervous
        with pytest.raises(KeyboardInterrupt):
            stopping.run(12, y)
    state = stopping.state_dict()
    again = start()
    again.load_state_dict(state)
    assert again.run(12, y) == expected
    assert differences(again.state_dict(), final) == []
    # Without a state, a run is a new one.
    assert len(again.run(2, y)) == 2


def test_refusals(tmp_path):
    class Odd(constraints.Constraint):
        def check(self, value):
            return value > 0

    torch.distributions.transform_to.register(Odd, lambda constraint: torch.distributions.ExpTransform())

    def odd(y):
        scale = pyro.param("odd", torch.ones(()), constraint=Odd())
        pyro.sample("y", GridCRF(scale * y, NONE, GRID), obs=y)

    y, optim = labels(), Adam({"lr": 0.1})
    learner = PseudoLikelihood(model, no_guide, optim)
    learner.step(y)
    state = learner.state_dict()
    with pytest.raises(ValueError, match="state: expected that of a learner of class MeanFieldLoss, got 'PseudoLikel"):
        MeanFieldLoss(model, no_guide, optim).load_state_dict(state)
    with pytest.raises(ValueError, match="state: expected that of a learner of class PseudoLikelihood, got None"):
        learner.load_state_dict(None)
    with pytest.raises(ValueError, match=r"state: expected what state_dict returned, got none of \['random'\]"):
        learner.load_state_dict({key: part for key, part in state.items() if key != "random"})
    with pytest.raises(ValueError, match="state: .* with an optimiser if there is one here, got one"):
        PseudoLikelihood(model, no_guide, None).load_state_dict(state)
    with pytest.raises(ValueError, match=r"net.mean: expected a buffer of shape \(3,\), .* got none of this name"):
        learner.load_state_dict({**state, "buffers": {"net.mean": torch.zeros(3)}})
    learner.step(y)
    wrong = {"module": "os", "class": "system", "arguments": {}}
    with pytest.raises(ValueError, match="state: expected constraints that PyTorch, Pyro or .*, got os.system"):
        learner.load_state_dict({**state, "params": {**state["params"], "constraints": {"scale": wrong}}})
    with pytest.raises(ValueError, match="state: expected that of an EarlyStopping, got dict of something else"):
        EarlyStopping(learner, lambda: 0.0).load_state_dict(state)

    class Other:
        model, guide = staticmethod(model), staticmethod(no_guide)

        def step(self, y):
            return 0.0

    with pytest.raises(NotImplementedError, match="learner: expected SVI, or one with .* 'state_dict', got Other"):
        EarlyStopping(Other(), lambda: 0.0).state_dict()
    other = torch.zeros(2).requires_grad_()
    pyro.clear_param_store()
    fresh = PseudoLikelihood(model, no_guide, Adam({"lr": 0.1}))
    fresh.load_state_dict({**state, "params": {**state["params"], "params": {"scale": other}}, "optim": {}})
    with pytest.raises(ValueError, match=r"scale: expected a parameter of shape \(\) and .* got shape \(2,\)"):
        fresh.step(y)
    pyro.clear_param_store()
    strange = PseudoLikelihood(odd, no_guide, optim)
    strange.step(y[0])
    with pytest.raises(ValueError, match="odd: expected a constraint of torch.distributions, .* got .*Odd; write"):
        strange.state_dict()
    pyro.clear_param_store()
    with pyro.settings.context(module_local_params=True), pytest.raises(NotImplementedError, match="module_local_par"):
        learner.state_dict()


def test_learning_of_svi_goes_on():
    """Optimiser, guide and generators of ``SVI`` are saved from outside."""

    def normal(x):
        loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", len(x), subsample_size=4) as rows:
            pyro.sample("x", dist.Normal(loc, 1.0), obs=x[rows])

    x = torch.randn(20) + 2

    def start():
        pyro.clear_param_store()
        guide = AutoDelta(normal)
        svi = SVI(normal, guide, Adam({"lr": 0.1}), Trace_ELBO())
        return EarlyStopping(svi, lambda: -abs(guide.median(x)["loc"].item() - 1), num_steps=1)

    stopping = start()
    stopping.run(3, x)
    state = stopping.state_dict()
    found = []
    for _ in range(2):
        again = start()
        again.load_state_dict(state)
        found.append(again.run(8, x))
    assert found[0] == found[1] and len(found[0]) == 9 and math.isfinite(sum(found[0]))
