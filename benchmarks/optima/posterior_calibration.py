"""Simulation-based calibration of the kernels for observed optima.

Claim: parameters and costs drawn from their joint distribution have uniform ranks among draws that ``ConstrainedSlice``
makes from the posterior given their optima: no chi-square test has a p-value below 1e-4.
"""

from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from unittest.mock import patch

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from scipy.stats import chisquare
from torch.distributions import biject_to
from tqdm import tqdm

from benchmarks.measurement import Report, arguments, small
from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.inference import ConstrainedSlice, CostsReparam, Gibbs, Interweave
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.structures import ConnectedComponents, Matching, ShortestPath

TEXT = """
Parameters and costs are drawn from the prior, and optima are computed from the costs. Then `ConstrainedSlice(model)`,
as users call it, draws parameters and costs given the optima alone. The first draw is as likely as all others, so its
rank among them is uniform (Talts et al. 2018); ties are broken at random. Every replicate has one rank for each
quantity. Tables show Pearson's chi-square test of the numbers of all ranks, and the largest deviation of the ranks'
cumulative distribution from the uniform one; the band in the picture contains all of a uniform distribution's curve
with a probability of 95 %.

Models: *matchings* (two in every replicate, of 3 pairs), with normal costs of scale 0.6, whose means are linear in two
weights with standard normal priors; *paths* (one in every replicate, through 4 nodes and 5 edges), with log-normal
costs whose scale is a parameter too; *components* (two in every replicate, of 5 nodes and 5 edges), with costs
truncated to the unit interval, logistic means (the paper's Equation 2) and a scale that is a parameter. Replicates of
these have parameters of their own, in a plate: one chain draws from all posteriors at once. It finds its start itself.
*Matchings, alone*: the model as users write it, with one global weight, and one chain for each replicate, which starts
at the truth and forgets it.

Lengths of chains and the prior of the paths' scale are those of a second run. In the first, with a median of 0.5 in
place of 1, the least of the 25 p-values was 3.9e-03, for paths: smaller scales tie parameters to costs, and draws that
are not independent have too many extreme ranks.

*Exact draws*: the same three models, one chain for every four replicates. Chains start at exact draws from the
posterior (the truth) and make two steps of `Gibbs([(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None),
(NUTS(model), None)])` that do not adapt. The ranks are those of the places where they end, among independent draws from
the joint distribution. Here, joint moves of parameters and costs are large.

*Wrong on purpose*: matchings again, so that the tests show what they can find.
"""
LEAST_P_VALUE, NUM_STEPS, NUM_BANDS = 1e-4, 2, 20_000
# Small chains that one job runs.
PART = 20
NOISE, PRIOR_SCALE, TOO_WIDE, TOO_NARROW = 0.6, 1.0, 1.2, 0.6
FEATURES = torch.randn(2, 9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double) / 2
PAIRS = Matching(3)
ROADS = ShortestPath(torch.tensor([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]), 4, 0, 3)
CLUSTERS = ConnectedComponents(torch.tensor([[0, 1], [1, 2], [2, 0], [2, 3], [3, 4]]), 5, 0.5)


def weights():
    return pyro.sample("psi", dist.Normal(torch.zeros(2).double(), PRIOR_SCALE).to_event(1))


def scale(median):
    return pyro.sample("sigma", dist.LogNormal(torch.tensor(median).double().log(), 0.4)).unsqueeze(-1)


def linear(psi, num, size):
    return (FEATURES[:num, :size] * psi.unsqueeze(-2)).sum(-1)


def observe(costs, problem, y):
    with pyro.plate("instances", costs.batch_shape[1], dim=-1):
        return pyro.sample("y", RandOM(costs.to_event(len(problem.cost_shape)), problem), obs=y)


def matchings(num, y=None):
    with pyro.plate("replicates", num, dim=-2):
        means = linear(weights(), 2, 9)
        return observe(dist.Normal(means.unflatten(-1, (3, 3)), NOISE), PAIRS, y)


def paths(num, y=None):
    with pyro.plate("replicates", num, dim=-2):
        return observe(dist.LogNormal(linear(weights(), 1, 5), scale(1.0)), ROADS, y)


def components(num, y=None):
    with pyro.plate("replicates", num, dim=-2):
        return observe(TruncatedNormal(linear(weights(), 2, 5).sigmoid(), scale(0.5), 0.0, 1.0), CLUSTERS, y)


def matchings_alone(num, y=None):
    """One replicate."""
    features = FEATURES[..., 0].unflatten(-1, (3, 3))
    psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
    with pyro.plate("rows", len(features)):
        return pyro.sample("y", RandOM(dist.Normal(features * psi, NOISE).to_event(2), PAIRS), obs=y)


@contextmanager
def wide_costs():
    """In all kernels that draw costs."""

    def wide(base, *others):
        normal = base.base_dist
        return cost_conditionals(dist.Normal(normal.loc, TOO_WIDE * normal.scale).to_event(2), *others)

    kernels = "pyro_structured.optima.inference"
    with (
        patch(f"{kernels}.constrained_slice.cost_conditionals", wide),
        patch(f"{kernels}.interweave.cost_conditionals", wide),
    ):
        yield


def narrow_prior():
    # Workers run these functions in a namespace that is no module.
    return patch.dict(globals(), PRIOR_SCALE=TOO_NARROW)


@dataclass(frozen=True)
class Study:
    """A model, and how its chains run."""

    name: str
    model: object
    problem: object
    # Replicates in one chain; 0 for all.
    size: int = 0
    warmup: int = 60
    thinning: int = 15
    num_draws: int = 19
    # Makes the chain wrong.
    mistake: object = nullcontext

    def ranks(self, num, seed):
        """Ranks for every replicate and quantity, one chain after the other."""
        pyro.set_rng_seed(seed)
        size = self.size or num
        found = [self._ranks(size) for _ in range(0, num, size)]
        return {name: torch.cat([each[name] for each in found])[:num] for name in found[0]}

    def _ranks(self, num):
        truth, y = self._simulate(num)
        start = self._unconstrained(num, truth) if self.size else None
        with self.mistake():
            draws = self._run(ConstrainedSlice(self.model), self.num_draws * self.thinning, self.warmup, start, num, y)
        kept = [
            {name: v[i] for name, v in draws.items()}
            for i in range(self.thinning - 1, len(draws["psi"]), self.thinning)
        ]
        others = [self._quantities(num, values, y) for values in kept]
        return _ranks(self._quantities(num, truth, y), others)

    def _simulate(self, num):
        trace = poutine.trace(self._named(num)).get_trace()
        values = {
            name: node["value"] for name, node in trace.iter_stochastic_nodes() if name in ("psi", "sigma", "y_costs")
        }
        return values, trace.nodes["y"]["value"]

    def _named(self, num):
        return poutine.reparam(lambda: self.model(num), config={"y": CostsReparam()})

    def _unconstrained(self, num, values):
        trace = poutine.trace(self._named(num)).get_trace()
        supports = {name: trace.nodes[name]["fn"].support for name in values}
        return {name: v if name == "y_costs" else biject_to(supports[name]).inv(v) for name, v in values.items()}

    @staticmethod
    def _run(kernel, num_samples, warmup, start, *args):
        mcmc = MCMC(kernel, num_samples, warmup, initial_params=start, disable_progbar=True)
        mcmc.run(*args)
        return mcmc.get_samples()

    def _quantities(self, num, values, y):
        """Numbers for every replicate."""
        trace = poutine.trace(poutine.condition(self._named(num), values)).get_trace()
        trace.compute_log_prob(lambda name, _: name in values)
        rows = {name: value.reshape(num, -1) for name, value in values.items()}
        costs = rows.pop("y_costs")
        found = {f"{name}[{i}]": value[:, i] for name, value in rows.items() for i in range(value.shape[1])}
        found["first cost"], found["mean of the costs"] = costs[:, 0], costs.mean(1)
        if isinstance(self.problem, ConnectedComponents):
            found["number of open edges"] = (costs > CLUSTERS.threshold).double().sum(1)
        else:
            found["cost of the optima"] = (self.problem.incidence(y).reshape(num, -1) * costs).sum(1)
        densities = [trace.nodes[name]["log_prob"].reshape(num, -1).sum(1) for name in values]
        found["log-density"] = torch.stack(densities).sum(0)
        return found


class Walk(Study):
    """Chains that start at exact draws and make a few steps."""

    def _ranks(self, num):
        truth, y = self._simulate(num)
        nuts = NUTS(self.model, step_size=0.3, adapt_step_size=False, max_tree_depth=3)
        kernel = Gibbs([(ConstrainedSlice(self.model), ["y_costs"]), (Interweave(self.model), None), (nuts, None)])
        draws = self._run(kernel, NUM_STEPS, 0, self._unconstrained(num, truth), num, y)
        ends = {name: value[-1] for name, value in draws.items()}
        joint = self._quantities(num * self.num_draws, *self._simulate(num * self.num_draws))
        others = [{name: value[i :: self.num_draws] for name, value in joint.items()} for i in range(self.num_draws)]
        return _ranks(self._quantities(num, ends, y), others)


def _ranks(quantities, draws):
    """Ranks among the draws, from 0 on; ties are broken at random."""
    found = {}
    for name, value in quantities.items():
        others = torch.stack([each[name] for each in draws])
        ties = (others == value).sum(0)
        found[name] = (others < value).sum(0) + (torch.rand(value.shape) * (ties + 1)).long()
    return found


CALIBRATED = (
    Study("matchings", matchings, PAIRS),
    Study("paths", paths, ROADS, warmup=40, thinning=8, num_draws=9),
    Study("components", components, CLUSTERS, thinning=5),
    Study("matchings, alone", matchings_alone, PAIRS, size=1, warmup=6, thinning=2, num_draws=5),
)
WALKS = tuple(
    Walk(f"{name}, exact draws", model, problem, size=4)
    for name, model, problem in (
        ("matchings", matchings, PAIRS),
        ("paths", paths, ROADS),
        ("components", components, CLUSTERS),
    )
)
WRONG = (
    replace(CALIBRATED[0], name="costs drawn with a scale 20 % too large", mistake=wide_costs),
    replace(CALIBRATED[0], name="prior of the weights 40 % too narrow", mistake=narrow_prior),
)


@dataclass
class Uniformity:
    """Of the uniformity of ranks from 0 to ``num_draws``."""

    ranks: np.ndarray
    num_draws: int

    @property
    def counts(self):
        return np.bincount(self.ranks, minlength=self.num_draws + 1)

    @property
    def chi_square(self):
        return chisquare(self.counts)

    @property
    def deviations(self):
        """Of the cumulative distribution, after every rank but the last."""
        return np.cumsum(self.counts)[:-1] / len(self.ranks) - levels(self.num_draws)


def levels(num_draws):
    return np.arange(1, num_draws + 1) / (num_draws + 1)


def band(num, num_draws, rng):
    """Half the width of a simultaneous 95 % band for the deviations."""
    counts = rng.multinomial(num, np.full(num_draws + 1, 1 / (num_draws + 1)), size=NUM_BANDS)
    expected = levels(num_draws)
    size = np.sqrt(expected * (1 - expected) / num)
    deviations = np.cumsum(counts, 1)[:, :-1] / num - expected
    return np.quantile(np.abs(deviations / size).max(1), 0.95) * size


def run_all(studies, options):
    """Tests for each study and quantity."""
    jobs = []
    for study in studies:
        num = PART * study.size or options.replicates
        jobs += [(study, min(num, options.replicates - done)) for done in range(0, options.replicates, num)]
    seeds = np.random.SeedSequence(options.seed).generate_state(len(jobs)).tolist()
    parts = defaultdict(dict)
    with (
        ProcessPoolExecutor(options.processes, get_context("spawn")) as pool,
        tqdm(total=sum(num for _, num in jobs), desc="replicates") as bar,
    ):
        running = {
            pool.submit(study.ranks, num, seed): (study, place, num)
            for place, ((study, num), seed) in enumerate(zip(jobs, seeds, strict=True))
        }
        for done in as_completed(running):
            study, place, num = running[done]
            parts[study.name][place] = done.result()
            bar.update(num)
    return {study.name: _tests(study, parts[study.name]) for study in studies}


def _tests(study, parts):
    found = [parts[place] for place in sorted(parts)]
    return {name: Uniformity(torch.cat([each[name] for each in found]).numpy(), study.num_draws) for name in found[0]}


def least_p_value(tests):
    return min(test.chi_square.pvalue for test in tests.values())


def table_rows(studies, results):
    return [
        [
            study.name,
            name,
            len(test.ranks),
            study.num_draws + 1,
            f"{test.chi_square.statistic:.1f}",
            small(test.chi_square.pvalue),
            f"{np.abs(test.deviations).max():.3f}",
        ]
        for study in studies
        for name, test in results[study.name].items()
    ]


def draw_picture(path, studies, results, rng):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.6 * ((len(studies) + 1) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(studies) // 2), 2, sharex=True, squeeze=False).ravel()
    for axes, study in zip(panels, studies, strict=True):
        tests = results[study.name]
        num, places = len(next(iter(tests.values())).ranks), [0, *levels(study.num_draws), 1]
        width = np.pad(band(num, study.num_draws, rng), 1)
        axes.fill_between(places, -width, width, color="0.88")
        for name, test in tests.items():
            axes.plot(places, np.pad(test.deviations, 1), label=name, linewidth=1.2)
        axes.set_title(study.name, fontsize="medium")
        axes.legend(fontsize="xx-small", ncols=2)
    figure.supxlabel("rank, as a fraction")
    figure.supylabel("cumulative distribution minus uniform")
    figure.savefig(path, dpi=130)


def main():
    options = arguments(
        __doc__, replicates=(400, "replicates of each model"), processes=(2, "processes that share the chains")
    )
    calibrated, walks, wrong = CALIBRATED, WALKS, WRONG
    if options.quick:
        # Another process would take longer to start than to run.
        options.replicates, options.processes = 4, 1
        calibrated, wrong = (
            [replace(study, warmup=2, thinning=1, num_draws=3) for study in studies] for studies in (calibrated, wrong)
        )
    report = Report("Calibration of posteriors given observed optima", TEXT, options)
    results = run_all([*calibrated, *wrong, *walks], options)
    for title, studies in (("calibration", calibrated), ("exact draws after two steps", walks)):
        least = min(least_p_value(results[study.name]) for study in studies)
        number = sum(len(results[study.name]) for study in studies)
        text = f"{title}: least of {number} p-values, {options.replicates} replicates each"
        report.claim(text, f"> {LEAST_P_VALUE:.0e}", small(least), least > LEAST_P_VALUE)
    for study in wrong:
        least = least_p_value(results[study.name])
        report.claim(f"wrong on purpose, {study.name}: least p-value", "< 1e-04", small(least), least < LEAST_P_VALUE)
    path = report.picture("posterior_calibration", "Cumulative distributions of ranks minus the uniform one")
    if options.write:
        draw_picture(path, [*calibrated, *wrong], results, np.random.default_rng(options.seed))
    header = ["model", "quantity", "replicates", "bins", "chi-square", "p-value", "largest deviation"]
    for title, studies in (("Ranks of the truth", calibrated), ("Exact draws", walks), ("Wrong on purpose", wrong)):
        report.table(title, header, table_rows(studies, results))
    report.finish()


if __name__ == "__main__":
    main()
