"""Effective samples of a parameter a second, where costs can be summed out, of three ways to sample.

Claims: `MCMC(ConstrainedSlice(model))` makes at least 50 effective samples a second of the parameter of Gumbel
rankings, and at least half of those of NUTS on the exact likelihood, which draws no costs; and more than NUTS where
that likelihood is a quadrature, and costs are kept.
"""

import time
import warnings

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size

from benchmarks.measurement import Report, arguments, duration, ratio
from pyro_structured.distributions import RandOM
from pyro_structured.inference import ConstrainedSlice, Gibbs, Interweave
from pyro_structured.structures import Matching, Ranking, TopK

TEXT = """
A parameter with a standard normal prior scales features of 40 rows, drawn at random: the locations of costs, whose
optima are observed, simulated at the value 1. *Default*: `MCMC(ConstrainedSlice(model))`, which sums the costs out of
the parameter's density where they can be drawn exactly given their optimum, and draws them anew in each step. *Costs
kept*: `Gibbs([(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None), (NUTS(model), ["slope"])])`, the
composition for several parameters of costs that cannot be summed out. *NUTS*: `MCMC(NUTS(model))`, which uses
`RandOM.log_prob` and draws no costs, the strongest control. Effective samples are those of
`pyro.ops.stats.effective_sample_size`; seconds are of the clock, warm-up included.

Normal choices, as rankings, have likelihoods by quadrature, which takes longer than joint moves of the parameter and
the costs: the default keeps these costs, with `Interweave` alone. (NUTS takes fewer samples there.)
"""
ROWS, SAMPLES, WARMUP, KEPT_SAMPLES = 40, 2_000, 300, 400
# Samples, and steps of warm-up, of likelihoods by quadrature.
SLOW_SAMPLES, SLOW_WARMUP = 150, 100
# Effective samples a second; share of those of NUTS, where costs are summed out, and where they are kept.
LEAST_RATE, LEAST_SHARE, LEAST_SHARE_KEPT = 50.0, 0.5, 1.0


def model(features, problem, kind, value=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(features)):
        base = kind(slope * features, 1.0).to_event(features.dim() - 1)
        return pyro.sample("y", RandOM(base, problem), obs=value)


def kept(program):
    return Gibbs([(ConstrainedSlice(program), ["y_costs"]), (Interweave(program), None), (NUTS(program), ["slope"])])


def measured(make, data, num_samples, warmup, seed):
    """Effective samples a second, seconds of a step, and mean and standard deviation of the parameter."""
    pyro.set_rng_seed(seed)
    mcmc = MCMC(make(model), num_samples=num_samples, warmup_steps=warmup, disable_progbar=True)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(*data)
    seconds = time.perf_counter() - start
    slopes = mcmc.get_samples()["slope"].double()
    number = float(effective_sample_size(slopes.unsqueeze(0)))
    return number / seconds, seconds / (num_samples + warmup), float(slopes.mean()), float(slopes.std())


def main():
    options = arguments(__doc__)
    report = Report("Summed costs", TEXT, options)
    cases = {
        "rankings of 5, Gumbel costs": ((5,), Ranking(5), dist.Gumbel),
        "matchings of 2 x 2, normal costs": ((2, 2), Matching(2), dist.Normal),
        "choices of one of 5, normal costs": ((5,), TopK(5, 1), dist.Normal),
    }
    rows = []
    for name, (shape, problem, kind) in cases.items():
        pyro.set_rng_seed(options.seed)
        features = torch.randn(ROWS, *shape)
        with torch.no_grad():
            value = simulated(features, problem, kind)
        data = features, problem, kind, value
        is_summed = kind is dist.Gumbel or isinstance(problem, Matching)
        number, warmup, few = (20, 10, 10) if options.quick else (SAMPLES, WARMUP, KEPT_SAMPLES)
        alone = number, warmup
        if not is_summed:
            alone = (6, 3) if options.quick else (SLOW_SAMPLES, SLOW_WARMUP)
        found = {
            "default": measured(ConstrainedSlice, data, number, warmup, options.seed),
            "costs kept": measured(kept, data, few, warmup, options.seed),
            "NUTS": measured(NUTS, data, *alone, options.seed),
        }
        rates = {key: each[0] for key, each in found.items()}
        for key, (rate, step, mean, deviation) in found.items():
            cells = [f"{rate:.3g}", ratio(rate / rates["costs kept"]), duration(step), f"{mean:.3f} ± {deviation:.3f}"]
            rows.append([name, key, *cells])
        if kind is dist.Gumbel:
            rate = rates["default"]
            report.claim(f"{name}: a second", f">= {LEAST_RATE:g}", f"{rate:.3g}", rate >= LEAST_RATE)
        share, least = rates["default"] / rates["NUTS"], LEAST_SHARE if is_summed else LEAST_SHARE_KEPT
        report.claim(f"{name}: of NUTS", f">= {least:g}", f"{share:.2f}", share >= least)
    header = ["data", "kernel", "effective samples a second", "over costs kept", "a step", "slope"]
    report.table("The parameter", header, rows)
    report.finish()


def simulated(features, problem, kind):
    """Optima of costs whose parameter is 1."""
    return RandOM(kind(features, 1.0).to_event(features.dim() - 1), problem).sample()


if __name__ == "__main__":
    main()
