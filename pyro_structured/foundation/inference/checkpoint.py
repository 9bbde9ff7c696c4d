"""Checkpoints of Markov chains, which survive the end of their process."""

__all__ = ["Checkpoint", "model_sums", "other_sites"]

import copy
import math
import multiprocessing
import os
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_structured.foundation.inference.chain_file import (
    chain_path,
    chain_paths,
    read_chain,
    remove_unfinished,
    write_chain,
)
from pyro_structured.foundation.inference.data_digest import data_digest
from pyro_structured.foundation.inference.object_state import ObjectState
from pyro_structured.foundation.inference.random_state import load_random_state, random_state, same_random_state
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.structures.argument_checks import check_flag, check_size, checked_path
from pyro_structured.foundation.structures.representation import Represented

# Relative tolerance of sums, since rounding differs between machines, and few of many discrete values may differ with
# it.
TOLERANCE = 1e-4


def model_sums(model: Callable[..., Any] | None, args: Any, kwargs: Any) -> dict[str, float]:
    """Sums of the values that all sites, observed ones included, draw with a fixed seed; empty if a model cannot draw.

    :param model: A Pyro model; ``None``: there are no sums.
    :param args: Arguments of the model.
    :param kwargs: Keyword arguments of the model.

    Cost: one run of the model. The states of random number generators stay as they were.
    """
    if model is None:
        return {}
    with same_random_state(), warnings.catch_warnings(), torch.no_grad(), poutine.block():
        warnings.simplefilter("ignore")
        pyro.set_rng_seed(0)
        try:
            trace: Any = poutine.trace(poutine.uncondition(model)).get_trace(*args, **kwargs)
        # Improper priors, for example, raise errors of any class.
        except Exception:
            return {}
    values = {name: node["value"] for name, node in trace.nodes.items() if node["type"] == "sample"}
    return {name: float(value.double().sum()) for name, value in values.items() if isinstance(value, Tensor)}


def other_sites(sums: dict[str, float], stored: dict[str, float]) -> list[str]:
    """Names of sites that only one of two models has, or whose draws differ; none if one of them has no sums."""
    if not sums or not stored:
        return []
    names = set(sums) ^ set(stored)
    for name in set(sums) & set(stored):
        pair = sums[name], stored[name]
        alike = math.isclose(*pair, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or all(map(math.isnan, pair))
        names |= set() if alike else {name}
    return sorted(names)


class Checkpoint(Represented, MCMCKernel):
    r"""Keeps draws and state of any kernel in a file, so that a killed run can be continued; a kernel for ``MCMC``.

    A run that goes on, in a new process, returns the draws of the uninterrupted one bit for bit, on the same kind of
    machine with the same number of threads: adapted step sizes and mass matrices, counters, positions and the
    generators of random numbers go on as they were. The first turns are taken from the file, which takes no time::

        kernel = Checkpoint.resume(path, model) if path.exists() else Checkpoint(NUTS(model), path)
        mcmc = MCMC(kernel, num_samples=10_000, warmup_steps=1_000)
        mcmc.run(data)

    The file is written at the start, after every so many turns, at the end of the warm-up and of the chain, and if a
    turn is interrupted by the keyboard or an error. Each time, it is replaced as a whole, so that a process that is
    killed at any moment leaves a file that can be read; :meth:`load_samples` does, also while the run goes on. Each
    chain that the kernel runs has a file: the first one the path itself, others with their number before its suffix,
    ``run.pt``, ``run.1.pt``, ...

    The state of a kernel are the attributes that change after ``setup``: tensors, arrays, numbers, texts, containers of
    these, and objects made of them, such as Pyro's adapters. Objects with the methods ``state_dict`` and
    ``load_state_dict``, kernels among them, provide their state themselves; others are refused.

    :param kernel: The outermost kernel: of Pyro, of this package, or your own.
    :param path: Path of a file that does not exist yet.
    :param int every: Number of turns after which the file is written again.
    :raises ValueError: if the kernel is not a kernel, or is a Checkpoint, or the folder does not exist; at the start of
        a run, if the file exists.
    :raises NotImplementedError: at the start of a run, if an attribute of the kernel has a state of another kind.

    A file holds all draws and is written anew each time, so larger ``every`` suit long chains of many variables. Draws
    are held in memory once more. ``hook_fn`` sees turns from the file again; it must not draw random numbers. Models
    must not change while they run, except for the parameters in Pyro's store, whose values at the start have to be
    there again.

    Example::

        >>> import tempfile
        >>> import pyro.distributions as dist
        >>> from pyro.infer import MCMC, NUTS
        >>> def model(y):
        ...     x = pyro.sample("x", dist.Normal(0.0, 1.0))
        ...     pyro.sample("y", dist.Normal(x, 1.0), obs=y)
        >>> def interrupt(kernel, params, stage, index):
        ...     if stage == "Sample" and index == 7:
        ...         raise KeyboardInterrupt
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "run.pt"
        >>> mcmc = MCMC(Checkpoint(NUTS(model), path, every=5), 20, 10, hook_fn=interrupt, disable_progbar=True)
        >>> try:
        ...     mcmc.run(torch.tensor(1.0))
        ... except KeyboardInterrupt:
        ...     print(Checkpoint.load_samples(path)["x"].shape)
        torch.Size([5])
        >>> mcmc = MCMC(Checkpoint.resume(path, model), 20, 10, disable_progbar=True)
        >>> mcmc.run(torch.tensor(1.0))
        >>> mcmc.get_samples()["x"].shape
        torch.Size([20])
        >>> folder.cleanup()
    """

    def __init__(self, kernel: MCMCKernel, path: str | os.PathLike[str], every: int = 100) -> None:
        if not isinstance(kernel, MCMCKernel) or isinstance(kernel, Checkpoint):
            raise ValueError(f"kernel: expected a kernel for pyro.infer.MCMC that is no Checkpoint, got {kernel!r}")
        check_size("every", every)
        self.kernel, self.path, self.every = kernel, checked_path("path", path), every
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ValueError(f"path: expected a file in a folder that exists, got {str(self.path)!r}")
        self.model = getattr(kernel, "model", None)
        # Processes of parallel chains start with copies of this kernel.
        self._run, self._process = uuid.uuid4().hex, os.getpid()
        self._description = _described(kernel, self.model)
        self._resumes, self._num_chains = False, 0
        self._given: dict[str, Tensor] | None = None
        self._chain: _Chain | None = None

    @classmethod
    def resume(cls, path: str | os.PathLike[str], model: Callable[..., Any] | MCMCKernel) -> "Checkpoint":
        """Kernel that continues the chains of a file, for an ``MCMC`` with the same numbers of chains and steps.

        More samples than the first time may be asked for. Chains that had not started yet start now; if they run in
        parallel, seed the generators as the first time.

        :param path: Path of the first chain's file.
        :param model: The Pyro model; or a new kernel with the same arguments as the first time, if the first one was
            not made of classes and functions of Pyro and of this package alone.
        :raises FileNotFoundError: if there is no file.
        :raises ValueError: if the file is not that of a Checkpoint, or does not describe the kernel, or describes
            another kernel than the given one; at the start of the run, if the arguments of the model, Pyro's
            parameters, ``initial_params``, ``save_params`` or ``warmup_steps`` are not those of the first time; at its
            end, if ``num_samples`` is less than the number of draws in the file. A warning is given if the model draws
            other values than the first time from the same seed: draws of two models would be mixed.
        """
        content = read_chain(checked_path("path", path))
        kernel = model if isinstance(model, MCMCKernel) else _rebuilt(content["kernel"], model)
        resumed = cls(kernel, path, content["every"])
        if kernel is model and not _are_alike(resumed._description, content["kernel"]):
            raise ValueError(f"model: expected a kernel with the arguments of the first time, got another, {kernel!r}")
        resumed._run, resumed._resumes = content["run"], True
        return resumed

    def of_chain(self, number: int) -> "Checkpoint":
        """A copy that runs the chain of this number, for chains that do not run one after the other in one kernel.

        :param int number: Number of the chain, at least 0.
        """
        check_size("number", number, 0)
        copied = copy.deepcopy(self)
        copied._num_chains = number
        return copied

    @staticmethod
    def load_samples(path: str | os.PathLike[str], group_by_chain: bool = False) -> dict[str, Tensor]:
        """Draws so far, as ``mcmc.get_samples`` returns them, of a run that was interrupted or is still running.

        :param path: Path of the first chain's file.
        :param bool group_by_chain: Whether to have shape ``(chains, draws, ...)``, for which chains are cut to the
            length of the shortest one that has draws.
        :raises FileNotFoundError: if there is no file.
        :raises ValueError: if the file is not that of a Checkpoint.
        """
        check_flag("group_by_chain", group_by_chain)
        first, *others = chain_paths(checked_path("path", path))
        contents = [read_chain(first), *map(read_chain, others)]
        chains = [chain for chain in contents if chain["run"] == contents[0]["run"]]
        chains = [chain for chain in chains if len(chain["draws"])] or chains[:1]
        length = min(len(chain["draws"]) for chain in chains)
        samples = [_constrained(chain) for chain in chains]
        if group_by_chain:
            return {name: torch.stack([chain[name][:length] for chain in samples]) for name in samples[0]}
        return {name: torch.cat([chain[name] for chain in samples]) for name in samples[0]}

    @property
    def transforms(self) -> dict[str, Any] | None:
        """Transforms of the kernel to unconstrained space."""
        return getattr(self.kernel, "transforms", None)

    @property
    def initial_params(self) -> dict[str, Tensor] | None:
        """Unconstrained values to start with."""
        params: dict[str, Tensor] | None = self.kernel.initial_params
        return params

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor] | None) -> None:
        self._given = self.kernel.initial_params = params

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Starts a chain as the first time, with the same random numbers."""
        path = chain_path(self.path, self._number())
        data, generators = data_digest((args, kwargs), "args"), random_state()
        stored = self._stored(path, data)
        if stored:
            load_random_state(stored["start"])
            self.kernel.initial_params = stored["given"]
        self.kernel.setup(warmup_steps, *args, **kwargs)
        if stored:
            load_random_state(generators)
        sums = model_sums(self.model, args, kwargs)
        parameters = {name: data_digest(value.detach()) for name, value in pyro.get_param_store().items()}
        header = stored or {
            "run": self._run,
            "kernel": self._description,
            "every": self.every,
            "warmup_steps": warmup_steps,
            "data": data,
            "parameters": parameters,
            "start": generators,
            "given": self._given,
            "sums": sums,
        }
        for name in header["parameters"].keys() & parameters.keys():
            expected = f"the parameter {name!r} of Pyro's store"
            _check_same("model", expected, parameters[name], header["parameters"][name], path)
        if others := other_sites(sums, header["sums"]):
            warnings.warn(
                f"model: expected that of the first time, got one whose sites {others} draw other values from the same "
                f"seed than at the start of the chain in {path}: its draws would be of two models; start anew, with "
                "another path",
                stacklevel=frames_below_user(),
            )
        constants = {f"argument {key}": value for key, value in [*enumerate(args), *kwargs.items()]}
        # The state that a kernel provides itself leaves out the kernels that it is composed with.
        root = {"kernel": self.kernel, "composition": getattr(self.kernel, "_composed", None)}
        state = ObjectState(root, {"model": self.model, **constants})
        self._chain = _Chain(self.kernel, state, path, warmup_steps, header)

    def _stored(self, path: Path, data: str) -> dict[str, Any] | None:
        """Content of the file of a chain that is continued, or ``None`` if it starts now."""
        stored = read_chain(path) if self._resumes and path.exists() else None
        if stored is None or stored["run"] != self._run:
            return None
        _check_same("args", "the arguments of the model", data, stored["data"], path)
        if self._given is not None:
            given = data_digest(self._given), data_digest(stored["given"])
            _check_same("initial_params", "none, or the values to start with", *given, path)
        return stored

    def _number(self) -> int:
        """Number of the chain, which is the name of Pyro's process in parallel runs."""
        name = multiprocessing.current_process().name
        return int(name) if os.getpid() != self._process and name.isdigit() else self._num_chains

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values after one turn of the kernel, or after the next turn of the file."""
        chain = self._chain
        assert chain is not None
        if not chain.has_started:
            if not chain.goes_on:
                self._check_free(chain.path)
            params = chain.start(params, getattr(self, "save_params", None))
            self._num_chains += 1
        return chain.sample(params)

    def _check_free(self, path: Path) -> None:
        """Raises a ValueError if the file, or one of another run, exists: it would be taken for a chain of this run."""
        for file in chain_paths(self.path):
            if file.exists() and (file == path or read_chain(file)["run"] != self._run):
                raise ValueError(
                    f"path: expected no file, got {file}; Checkpoint.resume goes on with its chain, or remove it"
                )

    def logging(self) -> dict[str, str]:
        """Log entries of the kernel."""
        return self.kernel.logging() or {}

    def diagnostics(self) -> dict[str, Any]:
        """Diagnostics of the kernel."""
        diagnostics: dict[str, Any] = self.kernel.diagnostics()
        return diagnostics

    def cleanup(self) -> None:
        """Writes the file of a chain that ended, and forgets the chain."""
        chain, self._chain, self._given = self._chain, None, None
        if chain is not None:
            chain.finish()
        self.kernel.cleanup()


class _Chain:
    """A chain, from its start or from a file.

    :param state: State of the kernel, made after its ``setup``.
    :param dict content: Content of the file, if the chain is continued; otherwise the entries that stay the same.
    """

    def __init__(self, kernel: Any, state: ObjectState, path: Path, warmup_steps: int, content: dict[str, Any]) -> None:
        self._kernel, self._state, self.path, self._content = kernel, state, path, content
        self._turn, self._warmup_steps = 0, warmup_steps
        # Numbers of turns and draws in the file.
        self._num_turns, self._num_draws = content.get("turn", 0), len(content.get("draws", ()))
        self._draws: list[Tensor] = []
        self.has_started, self.goes_on = False, "turn" in content
        # False in the middle of a turn, or after an error there, when the state cannot be the start of another turn.
        self._is_between = True

    def start(self, params: dict[str, Tensor], names: Sequence[str] | None) -> dict[str, Tensor]:
        """Writes the file, or restores its state; returns the values to start with."""
        content, names = self._content, sorted(params) if names is None else list(names)
        if not self.goes_on:
            content["names"], self._params, self.has_started = names, params, True
            self._save()
            return params
        for name, given, stored in (
            ("warmup_steps", self._warmup_steps, content["warmup_steps"]),
            ("save_params", names, content["names"]),
        ):
            _check_same(name, repr(stored), given, stored, self.path)
        remove_unfinished(self.path)
        self._state.load(content["state"])
        self._params, self.has_started = content["params"], True
        # Draws after the saved state are drawn again.
        self._draws = list(content["draws"][: max(0, self._num_turns - self._warmup_steps)])
        if not self._num_turns:
            load_random_state(content["random"])
        return dict(self._params)

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values after the next turn, of the file or of the kernel."""
        if self._turn < self._num_turns:
            return self._repeat()
        self._is_between = False
        try:
            params = self._kernel.sample(params)
        except BaseException:
            if len(self._draws) > self._num_draws:
                self._write()
            raise
        self._params = params
        self._turn += 1
        if self._turn > self._warmup_steps:
            values = [params[name].detach().reshape(-1) for name in self._content["names"]]
            self._draws.append(torch.cat(values) if values else torch.zeros(0))
        self._is_between = True
        if self._turn % self._content["every"] == 0 or self._turn == self._warmup_steps:
            self._save()
        return params

    def _repeat(self) -> dict[str, Tensor]:
        """Values after a turn of the file; turns of the warm-up return the last values."""
        self._turn += 1
        if self._turn == self._num_turns:
            load_random_state(self._content["random"])
        if self._turn == self._num_turns or self._turn <= self._warmup_steps:
            return dict(self._params)
        draw = _split(self._draws[self._turn - self._warmup_steps - 1], self._shapes())
        return {name: value.to(self._params[name]) for name, value in draw.items()}

    def finish(self) -> None:
        """Writes the file of a chain that ended."""
        if self._warmup_steps <= self._turn < self._num_turns:
            raise ValueError(
                f"num_samples: expected at least {self._num_turns - self._warmup_steps}, the draws in {self.path}, got "
                f"{self._turn - self._warmup_steps}"
            )
        if self._is_between and self.has_started and self._turn > self._content["turn"]:
            self._save()

    def _save(self) -> None:
        self._content.update(
            turn=self._turn,
            params={name: value.detach().clone() for name, value in self._params.items()},
            state=self._state.save(),
            random=random_state(),
        )
        self._write()

    def _write(self) -> None:
        """Writes the last state, and all draws: also those after it."""
        shapes, transforms = self._shapes(), self._kernel.transforms or {}
        width = sum(torch.Size(shape).numel() for shape in shapes.values())
        draws = torch.stack(self._draws) if self._draws else torch.zeros(0, width)
        values = _split(draws, shapes)
        constrained = {name: transforms[name].inv(values[name]).detach().cpu() for name in values if name in transforms}
        self._content.update(shapes=shapes, draws=draws.cpu(), constrained=constrained)
        write_chain(self.path, self._content)
        self._num_draws = len(draws)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(self._params[name].shape) for name in self._content["names"]}


def _split(draws: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Values of all sites, by name, from draws in which they lie one after the other along the last axis."""
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    parts = zip(shapes.items(), draws.split(sizes, -1), strict=True)
    return {name: part.reshape(draws.shape[:-1] + torch.Size(shape)) for (name, shape), part in parts}


def _constrained(content: dict[str, Any]) -> dict[str, Tensor]:
    return {**_split(content["draws"], content["shapes"]), **content["constrained"]}


def _check_same(name: str, expected: str, given: Any, stored: Any, path: Path) -> None:
    if given != stored:
        got = "others" if isinstance(given, str) else repr(given)
        raise ValueError(f"{name}: expected {expected} as at the start of the chain in {path}, got {got}")


def _described(kernel: MCMCKernel, model: Any) -> dict[str, Any]:
    """Description from which a kernel can be made, or the reason why there is none."""
    try:
        return {"data": ObjectState(None, {"model": model}).encode(kernel, type(kernel).__name__)}
    except NotImplementedError as error:
        return {"error": str(error), "kind": type(kernel).__name__}


def _are_alike(description: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Whether descriptions of kernels are the same, apart from errors, which may contain addresses in memory."""
    known, reference = (
        {name: value for name, value in given.items() if name != "error"} for given in (description, stored)
    )
    return data_digest(known) == data_digest(reference)


def _rebuilt(description: dict[str, Any], model: Any) -> Any:
    if not callable(model):
        raise ValueError(f"model: expected a Pyro model or a kernel, got {model!r}")
    if "error" in description:
        raise ValueError(
            "model: expected a new kernel with the arguments of the first time, as the file does not tell how to make "
            f"one, got a model; {description['error']}"
        )
    return ObjectState(None, {"model": model}).decode(description["data"])
