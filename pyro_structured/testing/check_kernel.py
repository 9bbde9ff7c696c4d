"""Suite of checks of the contract of a kernel for Pyro's MCMC."""

__all__ = ["check_kernel"]

import gc
import multiprocessing
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import pyro
import torch
from pyro.infer import MCMC
from pyro.infer.mcmc.api import StreamingMCMC
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_structured.foundation.ops.private_members import mcmc_run
from pyro_structured.testing.check_invariance import check_invariance
from pyro_structured.testing.kernel_case import Draw, KernelCase

WARMUP, DRAWS = 3, 5
# Largest number of draws of data until chains differ.
ATTEMPTS = 10
# Seconds within which the last draws of a chain arrive after its process has ended.
PATIENCE = 10.0
# Seconds for parallel chains, and number of times that they are started: processes that are forked beside threads may
# deadlock whatever the kernel is.
DEADLINE, STARTS = 120.0, 2
# Number of steps after which no more graphs may be kept, and number of steps in which graphs are counted.
SETTLED, WATCHED = 5, 10


def check_kernel(
    factory: Callable[[Callable[..., Any]], MCMCKernel],
    model: Callable[..., Any],
    draw: Draw,
    infeasible: dict[str, Tensor] | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    num_replicates: int = 200,
    num_steps: int = 2,
    contexts: Sequence[str] = ("fork", "spawn"),
) -> None:
    """Checks that a kernel keeps the contract of ``pyro.infer.MCMC``, and leaves the posterior distribution invariant.

    The checks are

    - chains: one, two in sequence, two in parallel, from one kernel or from several: equal seeds give equal draws, so
      nothing is left over from an earlier chain; ``cleanup`` may be called twice;
    - starts: ``initial_params`` are where the chain starts; infeasible ones raise a ValueError;
    - runners: ``save_params``, ``StreamingMCMC``, ``hook_fn``, ``logging`` and ``diagnostics``;
    - memory: draws have no gradient, and no graphs are kept;
    - invariance: started from exact draws of the posterior, the chain keeps the distribution of all latent entries, of
      the log-density and of the log-likelihood. A p-value of each is computed by a chi-square test; the p-value of all
      together has to be above 1e-6.

    A step takes part in many chains, so it should be fast. The random generators are seeded, and restored at the end.

    :param factory: Function from a model to a kernel that does not adapt, as adaptation has no invariant distribution:
        ``lambda model: NUTS(model, step_size=0.5, adapt_step_size=False)``.
    :param model: A Pyro model of data; it has to be picklable for the context "spawn".
    :param draw: Draws values of all latent sites and a tuple of data, the arguments of the model, from the joint
        distribution.
    :param dict infeasible: ``initial_params`` of density zero, given data from ``draw``; ``None``: this is not checked.
    :param dict parameters: Values of ``pyro.param`` sites other than those that ``draw`` uses. Kernels start with
        these values and have to see those of ``draw``.
    :param int num_replicates: Number of chains that show invariance, at least 50.
    :param int num_steps: Length of these chains.
    :param contexts: Start methods of the processes of parallel chains, among "fork" and "spawn". Where there is a GPU,
        "fork" is left out: autograd does not survive it there.
    :raises AssertionError: at the first check that fails.
    :raises ValueError: if there are too few replicates.

    Example::

        >>> import pyro.distributions as dist
        >>> from pyro_structured.inference import BinaryGibbs
        >>> def model(y):
        ...     x = pyro.sample("x", dist.Bernoulli(0.3))
        ...     pyro.sample("y", dist.Normal(x, 1.0), obs=y)
        >>> def draw():
        ...     x = dist.Bernoulli(0.3).sample()
        ...     return {"x": x}, (dist.Normal(x, 1.0).sample(),)
        >>> check_kernel(BinaryGibbs, model, draw, num_replicates=50, contexts=())
    """
    if num_replicates < 50:
        raise ValueError(f"num_replicates: expected at least 50, got {num_replicates}")
    case = KernelCase(factory, model, draw)
    state = pyro.util.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pyro.set_rng_seed(0)
            latents, args = _draw_uncertain(case)
            _check_start(case, latents, args, infeasible)
            _check_chains(case, args)
            _check_parallel_chains(case, args, contexts)
            _check_runners(case, args)
            _check_memory(case, args)
            check_invariance(case, parameters or {}, num_replicates, num_steps)
    finally:
        pyro.util.set_rng_state(state)


def _draw_uncertain(case: KernelCase) -> tuple[dict[str, Tensor], tuple[Any, ...]]:
    """Latent variables and data for which chains with different seeds differ: others would hide faults."""
    for _ in range(ATTEMPTS):
        latents, args = case.draw()
        state = pyro.util.get_rng_state()
        first, second = (_run(case.new(), args, seed=seed).get_samples() for seed in range(2))
        pyro.util.set_rng_state(state)
        if all(name in second and not torch.equal(value, second[name]) for name, value in first.items()):
            return latents, args
    raise AssertionError(f"chains: expected draws that differ with the seed, got equal ones for {ATTEMPTS} data sets")


def _check_start(
    case: KernelCase, latents: dict[str, Tensor], args: tuple[Any, ...], infeasible: dict[str, Tensor] | None
) -> None:
    given = case.unconstrained(latents, args)
    kernel = case.started(given, args)
    initial: Any = kernel.initial_params
    _agree("initial_params", {name: initial[name] for name in initial}, given)
    kernel.cleanup()
    kernel.cleanup()
    own, fresh = (_own_start(started, args) for started in (kernel, case.new()))
    _agree("initial_params after cleanup", own, fresh)
    if infeasible is None:
        return
    try:
        case.started(infeasible, args)
    except ValueError:
        return
    raise AssertionError("initial_params: expected a ValueError for an infeasible start, got none")


def _own_start(kernel: Any, args: tuple[Any, ...]) -> dict[str, Tensor]:
    pyro.set_rng_seed(1)  # not that of the given start
    kernel.setup(0, *args)
    start: dict[str, Tensor] = dict(kernel.initial_params)
    kernel.cleanup()
    return start


def _check_chains(case: KernelCase, args: tuple[Any, ...]) -> None:
    kernel = case.new()
    first = _run(kernel, args).get_samples()
    _agree("another kernel, the same seed", _run(case.new(), args).get_samples(), first)
    _run(kernel, args, seed=1)
    _agree("the same kernel once more", _run(kernel, args).get_samples(), first)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "num_chains=2 is more than available_cpu")
        both = _run(case.new(), args, num_chains=2)
    chains = both.get_samples(group_by_chain=True)
    _agree("the first of two chains", {name: value[0] for name, value in chains.items()}, first)
    # The second one goes on with the generator as the first left it.
    _run(case.new(), args)
    following = _run(case.new(), args, seed=None).get_samples()
    _agree("the second of two chains", {name: value[1] for name, value in chains.items()}, following)
    of_chains = mcmc_run(both).diagnostics
    for reported in of_chains:
        assert isinstance(reported, dict), f"diagnostics: expected a dict, got {reported!r}"
        named = sorted(set(reported) & set(first))
        assert not named, f"diagnostics: expected keys that are no names of sites, got {named}"
        assert reported.keys() == of_chains[0].keys(), "diagnostics: expected the same keys for all chains"


def _check_parallel_chains(case: KernelCase, args: tuple[Any, ...], contexts: Sequence[str]) -> None:
    for context in contexts:
        is_known = context in multiprocessing.get_all_start_methods()
        if not is_known or (context == "fork" and torch.cuda.is_available()):
            continue
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            chains = _run_in_parallel(case, args, context)
        for chain in range(2):
            alone = _run(case.new(), args, seed=chain).get_samples()
            _agree(f"chain {chain} of two by {context}", {name: value[chain] for name, value in chains.items()}, alone)


def _run_in_parallel(case: KernelCase, args: tuple[Any, ...], context: str) -> dict[str, Tensor]:
    for start in range(STARTS):
        try:
            mcmc = _run(case.new(), args, num_chains=2, mp_context=context, cpus=3)
        except TimeoutError:
            if start + 1 == STARTS:
                raise
        else:
            break
    chains: dict[str, Tensor] = mcmc.get_samples(group_by_chain=True)
    return chains


def _check_runners(case: KernelCase, args: tuple[Any, ...]) -> None:
    seen: list[tuple[str, int, dict[str, Tensor]]] = []

    def look(kernel: Any, params: dict[str, Tensor], stage: str, index: int) -> None:
        seen.append((stage, index, params))
        logged = kernel.logging()
        assert isinstance(logged, dict), f"logging: expected a dict, got {logged!r}"
        wrong = {key: text for key, text in logged.items() if not isinstance(key, str) or not isinstance(text, str)}
        assert not wrong, f"logging: expected strings, got {wrong}"

    mcmc = _run(case.new(), args, hook_fn=look)
    stages = [(stage, index) for stage, index, _ in seen]
    expected = [("Warmup", index) for index in range(WARMUP)] + [("Sample", index) for index in range(DRAWS)]
    assert stages == expected, f"hook_fn: expected calls {expected}, got {stages}"
    samples = mcmc.get_samples()
    for index, (_, _, params) in enumerate(seen[WARMUP:]):
        constrained = {
            name: mcmc.transforms[name].inv(value) if name in mcmc.transforms else value
            for name, value in params.items()
        }
        _agree("hook_fn", constrained, {name: value[index] for name, value in samples.items()})
    assert len({id(params) for _, _, params in seen}) == len(seen), "sample: expected a new dict each time"
    names = sorted(samples)[-1:]
    kept = _run(case.new(), args, save_params=names).get_samples()
    _agree("save_params", kept, {name: samples[name] for name in names})
    pyro.set_rng_seed(0)
    streaming = StreamingMCMC(case.new(), DRAWS, WARMUP, disable_progbar=True)
    streaming.run(*args)
    means = {name: statistic["mean"] for name, statistic in streaming.get_statistics(group_by_chain=False).items()}
    _agree("StreamingMCMC", means, {name: value.mean(0) for name, value in samples.items()}, tolerance=1e-4)


def _check_memory(case: KernelCase, args: tuple[Any, ...]) -> None:
    pyro.set_rng_seed(0)
    kernel = case.new()
    kernel.setup(0, *args)
    params: Any = kernel.initial_params
    before = 0
    for index in range(SETTLED + WATCHED):
        before = _num_graphs() if index == SETTLED else before
        params = kernel.sample(params)
        graphs = [name for name, value in params.items() if value.requires_grad]
        assert not graphs, f"sample: expected tensors without gradients, got some for {graphs}"
    after = _num_graphs()
    assert after < before + WATCHED, f"sample: expected no graphs to be kept, got {after - before} in {WATCHED} steps"
    kernel.cleanup()


def _num_graphs() -> int:
    gc.collect()
    tensors = [tensor for tensor in gc.get_objects() if issubclass(type(tensor), Tensor)]
    return sum(tensor.grad_fn is not None for tensor in tensors)


def _run(kernel: MCMCKernel, args: tuple[Any, ...], seed: int | None = 0, cpus: int = 1, **options: Any) -> Any:
    if seed is not None:
        pyro.set_rng_seed(seed)
    with mock.patch("pyro.infer.mcmc.api.mp.cpu_count", lambda: cpus):
        mcmc = MCMC(kernel, DRAWS, WARMUP, disable_progbar=True, **options)
    finished = threading.Event()
    watch = threading.Thread(target=_watch, args=(mcmc.sampler, finished), daemon=True)
    watch.start()
    try:
        mcmc.run(*args)
    finally:
        finished.set()
        watch.join()
    return mcmc


def _watch(sampler: Any, finished: threading.Event) -> None:
    """Ends runs of parallel chains whose processes have ended silently, or hang: Pyro would wait forever."""
    started = time.monotonic()
    while not finished.wait(PATIENCE):
        workers = getattr(sampler, "workers", ())
        error: Exception | None = None
        if workers and all(worker.exitcode is not None for worker in workers):
            codes = [worker.exitcode for worker in workers]
            error = AssertionError(f"parallel chains: expected draws, got exit codes {codes}")
        elif workers and time.monotonic() - started > DEADLINE:
            for worker in workers:
                worker.kill()
            error = TimeoutError(f"parallel chains: expected draws in {DEADLINE:.0f} seconds, got none")
        if error is not None:
            sampler.result_queue.put((0, error))
            return


def _agree(what: str, found: dict[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-6) -> None:
    assert found.keys() == expected.keys(), f"{what}: expected sites {sorted(expected)}, got {sorted(found)}"
    for name, value in expected.items():
        shapes = f"{tuple(value.shape)}, got {tuple(found[name].shape)}"
        assert found[name].shape == value.shape, f"{what}: expected {name!r} of shape {shapes}"
        error = (found[name].double() - value.double()).abs()
        close = bool((error <= tolerance * (1 + value.double().abs())).all())
        assert close, f"{what}: expected other values of {name!r}, got an error of {float(error.max()):.2g}"
