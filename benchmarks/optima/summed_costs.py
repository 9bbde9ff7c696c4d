"""Effective samples of a parameter a second, where costs can be summed out, of three ways to sample; and the work of a
step where they cannot.

Claims: `MCMC(ConstrainedSlice(model))` makes at least 50 effective samples a second of the parameter of Gumbel
rankings, and at least half of those of NUTS on the exact likelihood, which draws no costs. Where costs are kept, a step
runs the model 5 times, takes 8 ms, and leaves an autocorrelation time of at most 4.
"""

import time
import warnings
from typing import NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size

from benchmarks.measurement import Report, arguments, duration, ratio
from pyro_structured.distributions import RandOM
from pyro_structured.inference import ConstrainedSlice, Gibbs, Interweave
from pyro_structured.structures import Matching, Ranking

TEXT = """
A parameter with a standard normal prior scales features of 40 rows, drawn at random: the locations of costs, whose
optima are observed, simulated at the value 1. *Default*: `MCMC(ConstrainedSlice(model))`, which sums the costs out of
the parameter's density, and draws them anew, exactly, in each step. *Costs kept*: `Gibbs([(ConstrainedSlice(model),
["y_costs"]), (Interweave(model), None), (NUTS(model), ["slope"])])`, the composition for costs that cannot be summed
out. *NUTS*: `MCMC(NUTS(model))`, which uses `RandOM.log_prob` and draws no costs, the strongest control. Effective
samples are those of `pyro.ops.stats.effective_sample_size`; seconds are of the clock, warm-up included.

The second table is of costs of 40 matchings of 5 x 5, which cannot be summed out, and of one parameter: the weight of
features, which are the locations of normal or Gumbel costs; the logarithm of the scale of normal costs around features;
and that of the length of the intervals, which begin at .3 of the features, of uniform costs. *Default*:
`MCMC(ConstrainedSlice(model))`. *One move*: `Interweave(model, num_moves=1)` in the composition. *No joint moves*:
without `Interweave`. *Autocorrelation time*: samples for each effective one.
"""
ROWS, SAMPLES, WARMUP, KEPT_SAMPLES = 40, 2_000, 300, 400
LEAST_RATE, LEAST_SHARE = 50.0, 0.5
LONG_SAMPLES, MOST_RUNS, MOST_MS, MOST_TIME = 800, 5.0, 8.0, 4.0


def model(features, problem, kind, value=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(features)):
        base = kind(slope * features, 1.0).to_event(features.dim() - 1)
        return pyro.sample("y", RandOM(base, problem), obs=value)


class Counted:
    """A model whose parameter moves costs in one of several ways, and the number of its runs."""

    def __init__(self, make_base):
        self.make_base, self.runs = make_base, 0

    def __call__(self, features, value=None):
        self.runs += 1
        slope = pyro.sample("slope", dist.Normal(torch.zeros((), dtype=torch.double), 1.0))
        with pyro.plate("rows", len(features)):
            return pyro.sample("y", RandOM(self.make_base(slope, features).to_event(2), Matching(5)), obs=value)


KEPT = {
    "normal costs, locations": lambda slope, x: dist.Normal(slope * x, 1.0),
    "Gumbel costs, locations": lambda slope, x: dist.Gumbel(slope * x, 1.0),
    "normal costs, scale": lambda slope, x: dist.Normal(x, slope.exp()),
    "uniform costs, ends": lambda slope, x: dist.Uniform(0.3 * x, 0.3 * x + slope.exp()),
}
KERNELS = {
    "default": ConstrainedSlice,
    "one move": lambda program: kept(program, num_moves=1),
    "no joint moves": lambda program: Gibbs([(ConstrainedSlice(program), ["y_costs"]), (NUTS(program), ["slope"])]),
}


def kept(program, **options):
    interweave = Interweave(program, **options)
    return Gibbs([(ConstrainedSlice(program), ["y_costs"]), (interweave, None), (NUTS(program), ["slope"])])


def table_of_kept(report, options):
    rows = []
    for name, make_base in KEPT.items():
        pyro.set_rng_seed(options.seed)
        features = torch.randn(ROWS, 5, 5, dtype=torch.double)
        truth = torch.tensor(1.0 if "locations" in name else 0.0, dtype=torch.double)
        with torch.no_grad():
            value = Matching(5).solve(make_base(truth, features).sample())
        for kernel, make in KERNELS.items():
            program = Counted(make_base)
            number, warmup = (10, 10) if options.quick else (LONG_SAMPLES, WARMUP)
            found = measured(make, program, (features, value), number, warmup, options.seed)
            runs, ms, length = program.runs / (number + warmup), 1e3 * found.step, number / found.effective
            cells = [f"{runs:.1f}", duration(found.step), f"{length:.1f}", f"{found.effective / found.seconds:.3g}"]
            rows.append([name, kernel, *cells, f"{found.mean:.3f} ± {found.deviation:.3f}"])
            if kernel == "default":
                report.claim(f"{name}: model runs a step", f"<= {MOST_RUNS:g}", f"{runs:.1f}", runs <= MOST_RUNS)
                report.claim(f"{name}: ms a step", f"<= {MOST_MS:g}", f"{ms:.1f}", ms <= MOST_MS)
                goal = f"<= {MOST_TIME:g}"
                report.claim(f"{name}: autocorrelation time", goal, f"{length:.1f}", length <= MOST_TIME)
    header = ["data", "kernel", "model runs", "a step", "autocorrelation time", "effective samples a second", "slope"]
    report.table("Costs kept, matchings of 5", header, rows)


class Found(NamedTuple):
    """Effective samples of the parameter, seconds in all and of a step, and moments of the parameter."""

    effective: float
    seconds: float
    step: float
    mean: float
    deviation: float


def measured(make, program, data, num_samples, warmup, seed):
    pyro.set_rng_seed(seed)
    start = {"slope": torch.zeros((), dtype=data[0].dtype)}
    mcmc = MCMC(make(program), num_samples, warmup, initial_params=start, disable_progbar=True)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(*data)
    seconds = time.perf_counter() - began
    slopes = mcmc.get_samples()["slope"].double()
    number = float(effective_sample_size(slopes.unsqueeze(0)))
    return Found(number, seconds, seconds / (num_samples + warmup), float(slopes.mean()), float(slopes.std()))


def main():
    options = arguments(__doc__)
    report = Report("Summed costs", TEXT, options)
    cases = {
        "rankings of 5, Gumbel costs": ((5,), Ranking(5), dist.Gumbel),
        "matchings of 2 x 2, normal costs": ((2, 2), Matching(2), dist.Normal),
    }
    rows = []
    for name, (shape, problem, kind) in cases.items():
        pyro.set_rng_seed(options.seed)
        features = torch.randn(ROWS, *shape)
        with torch.no_grad():
            value = simulated(features, problem, kind)
        data = features, problem, kind, value
        number, warmup, few = (20, 10, 10) if options.quick else (SAMPLES, WARMUP, KEPT_SAMPLES)
        found = {
            "default": measured(ConstrainedSlice, model, data, number, warmup, options.seed),
            "costs kept": measured(kept, model, data, few, warmup, options.seed),
            "NUTS": measured(NUTS, model, data, number, warmup, options.seed),
        }
        rates = {key: each.effective / each.seconds for key, each in found.items()}
        for key, each in found.items():
            cells = [f"{rates[key]:.3g}", ratio(rates[key] / rates["costs kept"]), duration(each.step)]
            rows.append([name, key, *cells, f"{each.mean:.3f} ± {each.deviation:.3f}"])
        if kind is dist.Gumbel:
            rate = rates["default"]
            report.claim(f"{name}: a second", f">= {LEAST_RATE:g}", f"{rate:.3g}", rate >= LEAST_RATE)
        share = rates["default"] / rates["NUTS"]
        report.claim(f"{name}: of NUTS", f">= {LEAST_SHARE:g}", f"{share:.2f}", share >= LEAST_SHARE)
    header = ["data", "kernel", "effective samples a second", "over costs kept", "a step", "slope"]
    report.table("The parameter", header, rows)
    table_of_kept(report, options)
    report.finish()


def simulated(features, problem, kind):
    """Optima of costs whose parameter is 1."""
    return RandOM(kind(features, 1.0).to_event(features.dim() - 1), problem).sample()


if __name__ == "__main__":
    main()
