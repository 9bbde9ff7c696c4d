"""Costs given an observed matching: effective samples per second, against the paper's sampler and Pyro's kernels.

Claim: one compiled chain of 30 rows has at least 10 times the effective samples per second of Algorithm 2 with a
dynamic Hungarian algorithm, 50 times those of a compiled solver from scratch, 100 times those of scipy's from Python.
"""

import statistics
import time
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from numba import njit
from pyro.infer import MCMC, NUTS
from pyro.infer.mcmc.rwkernel import RandomWalkKernel
from pyro.infer.mcmc.util import initialize_model

from benchmarks.measurement import Report, arguments, duration, ratio
from benchmarks.optima.algorithm_two import make_solver, run_compiled, run_dynamic, run_scipy
from pyro_structured.distributions import RandOM
from pyro_structured.inference import CostsReparam
from pyro_structured.optima.inference import compiled_sweep
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sweep import sweep
from pyro_structured.optima.ops.density_family import DensityFamily
from pyro_structured.optima.ops.matching_sweep import matching_sweep
from pyro_structured.optima.structures.matching import Matching

TEXT = """
Posterior of a matrix of costs given that a matching is optimal for it. Costs are normal with means from U(0, 1) and
scale 0.1; the matching is optimal for costs drawn from this distribution, which are therefore an exact draw from the
posterior: all chains start there. Every run draws new means and a new matching; figures are medians over the runs.

*Effective samples*: the smallest effective sample size (Geyer's initial monotone sequence) of six statistics: the first
cost; the cost of the matching; the mean of all costs; the largest cost; the slack of the second cheapest exchange of
the first row with another; the sum of squared deviations from the means. *Calls*: searches of shortest paths for one
row (ours), or tests whether the matching is still optimal (Algorithm 2).

Contestants: *ours*: `sweep`, the update that `ConstrainedSlice` makes for a matching; *ours, compiled loop*: the same
compiled update in a loop that is compiled too, as the compiled peers have it; *ours, torch*: `sweep` without numba,
also for 100 chains at once (only the time of a sweep is measured: the states are the same, up to rounding). Algorithm 2
(`benchmarks/optima/algorithm_two.py`, with the stale flag corrected, and the density along a line in O(1)) asks scipy's
solver from Python; a compiled solver (shortest augmenting paths) from scratch; or a compiled dynamic Hungarian
algorithm. Its step is the fastest of a grid, for each of the three and each size. Pyro's kernels run on the same model,
from the same start, after as many warm-up steps, which do not count; `RandomWalkKernel` ignores the start that it is
given and fails to find one, and is helped. With 100 rows, Algorithm 2 makes 1,000 to 2,000 sweeps, which are only a few
effective samples: its figures there are rough. The strongest control is Algorithm 2 with the dynamic Hungarian
algorithm; with 5 rows, where calls from Python count, its compiled loop is faster than our update, and so is that with
the solver from scratch.
"""
JUDGED, SCALE, STEPS = 30, 0.1, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
WANTED = {"Algorithm 2, dynamic": 10, "Algorithm 2, compiled": 50, "Algorithm 2, scipy": 100}
# Numbers that a block of states may hold.
BLOCK = 2**22


@dataclass
class Instance:
    """One problem, with an exact draw from the posterior."""

    loc: np.ndarray
    costs: np.ndarray
    columns: np.ndarray

    @classmethod
    def draw(cls, num_rows, rng):
        loc = rng.random((num_rows, num_rows))
        costs = loc + SCALE * rng.standard_normal(loc.shape)
        return cls(loc, costs, Matching(num_rows).solve(torch.from_numpy(costs)).numpy())

    @property
    def base(self):
        return dist.Normal(torch.from_numpy(self.loc), SCALE).to_event(2)

    def statistics(self, costs):
        """Six numbers for each matrix, on the last axis."""
        rows = np.arange(len(self.columns))
        matched = costs[..., rows, self.columns]
        exchanged = costs[..., 0, self.columns] + costs[..., :, self.columns[0]]
        slack = exchanged[..., 1:] - matched[..., :1] - matched[..., 1:]
        found = [
            costs[..., 0, 0],
            matched.sum(-1),
            costs.mean((-2, -1)),
            costs.max((-2, -1)),
            np.partition(slack, 1)[..., 1],
            ((costs - self.loc) ** 2).sum((-2, -1)),
        ]
        return np.stack(found, -1)


@njit(cache=True)
def run_ours(costs, columns, allowed, base, kept, rng):
    num_rows = costs.shape[1]
    for state in range(len(kept)):
        uniform = rng.random((1, num_rows, num_rows))
        matching_sweep(costs, columns, allowed, False, DensityFamily.NORMAL, base, uniform)
        kept[state] = costs[0]


def ours_in_a_loop(instance, rng):
    """Advances one chain by as many states as there is room for; returns the number of calls."""
    shape, costs = instance.loc.shape, instance.costs[None].copy()
    parts = np.broadcast_arrays(instance.loc, SCALE, -np.inf, np.inf, 0.0)
    base, allowed, columns = np.stack(parts, -1)[None], np.ones((1, *shape), dtype=bool), instance.columns[None]

    def advance(kept):
        run_ours(costs, columns, allowed, base, kept[0], rng)
        return kept.shape[1] * shape[0]

    return advance


def ours(instance, start, compiled):
    """The same for chains that the package updates."""
    problem, conditionals = Matching(len(instance.loc)), cost_conditionals(instance.base, 2)
    value, costs = torch.from_numpy(instance.columns), torch.from_numpy(start)

    def advance(kept):
        nonlocal costs
        kernel = matching_sweep if compiled else None
        with patch.object(compiled_sweep, "compiled_function", lambda *_: kernel):
            for state in range(kept.shape[1]):
                costs, _ = sweep(costs, value, problem, conditionals, 1)
                kept[:, state] = costs.numpy()
        return kept.shape[0] * kept.shape[1] * len(instance.loc)

    return advance


def algorithm_two(run, instance, step, rng):
    costs, solver = instance.costs.copy(), make_solver(len(instance.loc))

    def advance(kept):
        return run(costs, instance.columns, instance.loc, SCALE, step, kept[0], solver, rng)

    return advance


def best_step(run, instance, rng):
    """The step with the shortest time; the chain's distribution does not depend on it."""
    size = len(instance.loc)
    kept, times = np.empty((1, max(3, 1000 // size**2), size, size)), {}
    for step in STEPS:
        advance = algorithm_two(run, instance, step, rng)
        times[step] = min(timed(advance, kept)[0] for _ in range(3))
    return min(times, key=times.get)


def effective_samples(trace):
    """The least of the effective numbers of samples of columns: Geyer's initial monotone sequence.

    As Pyro's ``effective_sample_size`` for one chain, which takes memory quadratic in the number of samples.
    """
    size = len(trace) - len(trace) % 2
    spectrum = np.fft.rfft(trace - trace.mean(0), 2 * len(trace), axis=0)
    covariances = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[:size]
    if (covariances[0] <= 1e-20).any():
        return 0.0
    pairs = (covariances / covariances[0]).reshape(-1, 2, trace.shape[1]).sum(1)
    pairs = np.minimum.accumulate(pairs, 0).clip(min=0)
    return float((len(trace) / (2 * pairs.sum(0) - 1)).min())


def timed(advance, kept):
    start = time.process_time()
    calls = advance(kept)
    return time.process_time() - start, calls


@dataclass
class Result:
    per_second: float
    per_call: float
    sweep: float
    sweeps_per_sample: float


def measure(instance, advance, budget, least, most):
    """Runs a chain for about so many seconds, but no fewer and no more sweeps than given."""
    size = len(instance.loc)
    first = min(timed(advance, np.empty((1, 2, size, size)))[0] / 2 for _ in range(2))
    wanted = int(np.clip(budget / first, least, most))
    room = max(1, min(wanted, BLOCK // size**2))
    kept, traces, seconds, calls = np.empty((1, room, size, size)), [], 0.0, 0
    for done in range(0, wanted, room):
        block = kept[:, : wanted - done]
        took, made = timed(advance, block)
        seconds, calls = seconds + took, calls + made
        traces.append(instance.statistics(block[0]))
    effective = effective_samples(np.concatenate(traces))
    return Result(effective / seconds, effective / calls, seconds / wanted, wanted / effective)


def algorithm_two_contestants(size, limits, rng):
    """Algorithm 2 with each of the solvers, the steps of which are chosen on an instance of their own."""
    tuning, found = Instance.draw(size, rng), {}
    for name, run in (("dynamic", run_dynamic), ("compiled", run_compiled), ("scipy", run_scipy)):
        step = best_step(run, tuning, rng)

        def make(instance, rng, run=run, step=step):
            return algorithm_two(run, instance, step, rng)

        found[f"Algorithm 2, {name}"] = make, limits
    return found


def compare(size, options, rng):
    """Results of all contestants, one for each run."""
    limits = (0.01, 50, 100) if options.quick else (2.0, 1000, 20_000)
    makers = {
        "ours": (lambda instance, rng: ours(instance, instance.costs, True), limits),
        "ours, compiled loop": (ours_in_a_loop, limits),
        **algorithm_two_contestants(size, limits, rng),
    }
    results = {name: [] for name in (*makers, "ours, torch", "ours, torch, 100 chains")}
    for _ in range(options.repeats):
        instance = Instance.draw(size, rng)
        for name, (make, limits) in makers.items():
            results[name].append(measure(instance, make(instance, rng), *limits))
        for name, chains in (("ours, torch", 1), ("ours, torch, 100 chains", 100)):
            results[name].append(by_torch(instance, chains, results["ours, compiled loop"][-1]))
        Report.progress(
            f"{size}: " + ", ".join(f"{name} {each[-1].per_second:.3g}/s" for name, each in results.items())
        )
    return results


def by_torch(instance, chains, compiled):
    """Without numba the states are the same, up to rounding; only the time differs."""
    start = np.broadcast_to(instance.costs, (chains, *instance.costs.shape)).copy()
    advance, kept = ours(instance, start, False), np.empty((chains, 1, *instance.costs.shape))
    seconds = min(timed(advance, kept)[0] for _ in range(2)) / chains
    return Result(
        compiled.per_call * len(instance.loc) / seconds, compiled.per_call, seconds, compiled.sweeps_per_sample
    )


def pyro_kernels(size, options, rng):
    """Rows of a table: results of Pyro's own kernels on the same model, from the same start."""
    instance, rows = Instance.draw(size, rng), []
    start = {"y_costs": torch.from_numpy(instance.costs)}

    def model():
        pyro.sample("y", RandOM(instance.base, Matching(size)), obs=torch.from_numpy(instance.columns))

    named = pyro.poutine.reparam(model, config={"y": CostsReparam()})
    # The kernel does not use the start that it is given, and finds none itself.
    started = partial(initialize_model, initial_params=start)
    for name, kernel, num in (("NUTS", NUTS(named), 300), ("random walk", RandomWalkKernel(named), 10_000)):
        begun, num = [], 20 if options.quick else num

        def note(kernel, params, stage, i, begun=begun):
            if stage.startswith("Sample") and not begun:
                begun.append(time.process_time())

        run = MCMC(kernel, num, warmup_steps=num, initial_params=start, disable_progbar=True, hook_fn=note)
        with patch("pyro.infer.mcmc.rwkernel.initialize_model", started):
            run.run()
        seconds = time.process_time() - begun[0]
        effective = effective_samples(instance.statistics(run.get_samples()["y_costs"].numpy()))
        divergent = len(run.diagnostics().get("divergences", {}).get("chain 0", ()))
        rows.append([size, name, num, f"{effective:.1f}", f"{effective / seconds:.3g}", f"{divergent / num:.0%}"])
    return rows


def violations(num_updates, rng):
    """Number of updates of rows that leave a matching worse than the optimum by 1e-9 of the range."""
    size, found = 10, 0
    instance = Instance.draw(size, rng)
    advance, kept = ours_in_a_loop(instance, rng), np.empty((1, 1000, size, size))
    problem, value = Matching(size), torch.from_numpy(instance.columns)
    for _ in range(num_updates // kept.shape[1] // size):
        advance(kept)
        costs = torch.from_numpy(kept[0])
        worse = problem.objective(costs, value) - problem.objective(costs, problem.solve(costs))
        found += int((worse > 1e-9 * (costs.amax((-2, -1)) - costs.amin((-2, -1)))).sum())
    return found


def median(results, name):
    return statistics.median(getattr(each, name) for each in results)


def ratio_to(results, name, peer):
    """Median over the runs, each with its own instance."""
    pairs = zip(results[name], results[peer], strict=True)
    return statistics.median(ours.per_second / other.per_second for ours, other in pairs)


def draw_picture(path, results):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in next(iter(results.values())):
        style = {"linestyle": "-", "marker": "o"} if name.startswith("ours") else {"linestyle": "--", "marker": "s"}
        axes.plot(list(results), [median(each[name], "per_second") for each in results.values()], label=name, **style)
    axes.set(xscale="log", yscale="log", xlabel="rows and columns", ylabel="effective samples per second")
    axes.set_xticks(list(results), [str(size) for size in results])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main():
    options = arguments(__doc__, updates=(10**6, "updates of rows that are checked"))
    options.repeats = min(options.repeats, 5)
    sizes, updates = ((4, 5), 10**4) if options.quick else ((5, 10, 30, 100), options.updates)
    report, rng = Report("Costs given an observed matching", TEXT, options), np.random.default_rng(options.seed)
    results = {size: compare(size, options, rng) for size in sizes}
    judged = sizes[0] if options.quick else JUDGED
    for name, wanted in WANTED.items():
        found = ratio_to(results[judged], "ours", name)
        report.claim(f"ours against {name}, {judged} rows", f">= {wanted}x", ratio(found), found >= wanted)
    found = violations(updates, rng)
    text = f"matchings worse than the optimum by 1e-9 of the range, after {updates} updates of 10 rows"
    report.claim(text, "0", str(found), found == 0)
    path = report.picture("matching_sampler", "Effective samples per second by number of rows")
    if options.write:
        draw_picture(path, results)
    header = ["", *(f"{size} rows" for size in sizes)]
    columns = {
        "Effective samples per second": ("per_second", lambda value: f"{value:.3g}"),
        "Effective samples per call": ("per_call", lambda value: f"{value:.2g}"),
        "Time of a sweep over one chain": ("sweep", duration),
        "Sweeps per effective sample": ("sweeps_per_sample", lambda value: f"{value:.3g}"),
    }
    for title, (field, text) in columns.items():
        rows = [[name, *(text(median(results[size][name], field)) for size in sizes)] for name in results[judged]]
        report.table(title, header, rows)
    peers = [name for name in results[judged] if name != "ours"]
    rows = [[name, *(ratio(ratio_to(results[size], "ours", name)) for size in sizes)] for name in peers]
    report.table("Effective samples per second, ours over others", header, rows)
    rows = [row for size in sizes[:2] for row in pyro_kernels(size, options, rng)]
    header = ["rows", "kernel", "samples", "effective samples", "per second", "divergent"]
    report.table("Pyro's kernels", header, rows)
    report.finish()


if __name__ == "__main__":
    main()
