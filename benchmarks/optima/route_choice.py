"""Route choice: learning what drivers dislike from 1,832 trips, against recursive logit and the fastest path.

Claims: the peer reaches the published log-likelihood, -6303; paths at the learned costs of a randomized optimum model
overlap more with held-out trips than the fastest paths do, and no less than those of recursive logit.
"""

import time

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.optim import ClippedAdam
from torch.distributions import constraints
from tqdm import tqdm

from benchmarks.measurement import Report, arguments, duration
from benchmarks.optima.recursive_logit import RecursiveLogit
from pyro_structured.datasets import load_borlange_trips
from pyro_structured.distributions import RandOM
from pyro_structured.inference import MCEM, Splitting
from pyro_structured.structures import ShortestPath

TEXT = """
Trips of cars in Borlänge: 7,288 road links, 21,452 turns between them, and an origin and a destination for each trip.

*RandOM*: a driver takes the cheapest path under random costs of all turns, which are independent and log-normal. The
median cost is the time on the entered link in minutes, plus a penalty for each left turn, u-turn and link; the last
step, into a destination, has a median of 0.01. Penalties and the scale of the logarithms are four numbers, learned by
`MCEM` with one gradient step a minibatch and a control variate. *Recursive logit* has the same four attributes; see
Fosgerau, Frejinger, Karlström (2013), who published a log-likelihood of -6303. Both learn from the same trips.
*Fastest* minimises travel time and learns nothing.

A predicted path is the shortest one at median costs (RandOM), the most probable one (recursive logit), or the fastest.
*Overlap*: time on the edges of both paths over the time on the edges of either, in the mean over held-out trips; *±* is
the standard error. *Links found*: share of the links on the observed path that are on the predicted one. For some
held-out trips, `Splitting` estimates log P of the whole observed path, and its standard error; in the mean, estimates
are too small by half of their variance.

The strongest control is the recursive logit: RandOM gains nothing on it, neither in overlap nor in log P.
"""
LAST_STEP = 0.01
START = [0.5, 3.0, 0.1], 1.0


def median_costs(features, penalties):
    """Minutes."""
    return (features[:, 0] + features[:, 1:] @ penalties).clamp(min=LAST_STEP)


class RouteModel:
    """The randomized optimum model."""

    def __init__(self, data, trips):
        self.features, edges = torch.from_numpy(data.features), torch.from_numpy(data.edges)
        self.edges, self.num_nodes, self.data = edges, data.num_nodes, data
        self.problem, self.paths = self.observe(trips)

    def observe(self, trips):
        """Problems of some trips and their paths."""
        ends = (torch.from_numpy(nodes[trips]) for nodes in (self.data.origins, self.data.destinations))
        problem = ShortestPath(self.edges, self.num_nodes, *ends)
        return problem, torch.from_numpy(self.data.path_values(trips))

    def costs(self):
        penalties = pyro.param("penalties", torch.tensor(START[0]), constraint=constraints.positive)
        scale = pyro.param("scale", torch.tensor(START[1]), constraint=constraints.positive)
        return dist.LogNormal(median_costs(self.features, penalties).log(), scale)

    def __call__(self, batch_size):
        costs = self.costs()
        with pyro.plate("trips", len(self.paths), subsample_size=batch_size) as rows:
            base = costs.expand((len(rows), len(self.edges))).to_event(1)
            pyro.sample("path", RandOM(base, self.problem[rows]), obs=self.paths[rows].double())


def learn(model, num_steps, batch_size):
    """Parameters after every step."""
    optimiser = ClippedAdam({"lr": 0.08, "lrd": 0.05 ** (1 / num_steps), "clip_norm": float("inf")})
    learner, found = MCEM(model, lambda batch_size: None, optimiser, control_variate=True), []
    for _ in tqdm(range(num_steps), desc="RandOM", disable=None):
        learner.step(batch_size)
        found.append([*pyro.param("penalties").tolist(), pyro.param("scale").item()])
    return np.array(found)


def predict(data, costs, trips):
    """Shortest paths of trips, as indices of edges."""
    found = []
    edges, costs = torch.from_numpy(data.edges), torch.as_tensor(costs)
    for some in np.array_split(trips, max(1, len(trips) // 200)):
        ends = (torch.from_numpy(nodes[some]) for nodes in (data.origins, data.destinations))
        paths = ShortestPath(edges, data.num_nodes, *ends).solve(costs)
        found += [path.nonzero().flatten().numpy() for path in paths]
    return found


def scores(data, predicted, trips):
    """For every trip the overlap, the share of its links that were found, and whether all of the path is right."""
    minutes, rows = data.features[:, 0], []
    for trip, path in zip(trips, predicted, strict=True):
        both, either = np.intersect1d(path, data.paths[trip]), np.union1d(path, data.paths[trip])
        found = len(both) / len(data.paths[trip])
        rows.append((minutes[both].sum() / minutes[either].sum(), found, len(both) == len(either)))
    return np.array(rows, dtype=float)


def mean(values, digits=3):
    values = np.asarray(values, dtype=float)
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / len(values) ** 0.5:.{digits}f}"


def log_probabilities(model, trips, num_particles):
    """Estimates and standard errors, one trip after the other."""
    estimator, found = Splitting(num_particles, num_sweeps=1), []
    with torch.no_grad():
        base = model.costs().to_event(1)
        for trip in tqdm(trips, desc="log P", disable=None):
            problem, path = model.observe([trip])
            found.append(
                [float(each) for each in RandOM(base, problem, estimator=estimator).estimate_log_prob(path.double())]
            )
    return np.array(found).T


def draw_picture(path, results, log_probs):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, found), style in zip(results.items(), ("-", "--", ":"), strict=True):
        overlaps = np.sort(found[:, 0])
        left.plot(overlaps, 1 - np.arange(len(overlaps)) / len(overlaps), style, label=name)
    left.set(xlabel="overlap with the observed path, at least", ylabel="share of held-out trips", ylim=(0, 1))
    left.legend(loc="lower left")
    logit, ours, errors = log_probs
    least = min(logit.min(), ours.min()) - 1
    right.plot([least, 0], [least, 0], color="grey", linewidth=0.8)
    right.errorbar(logit, ours, errors, fmt="o", markersize=4, linewidth=1)
    right.set(xlabel="log P, recursive logit", ylabel="log P, RandOM", title="held-out paths")
    figure.savefig(path, dpi=150)


def compare_predictions(report, data, contestants, held_out):
    results = {name: scores(data, predict(data, costs, held_out), held_out) for name, costs in contestants.items()}
    rows = [[name, *(mean(column) for column in found.T)] for name, found in results.items()]
    report.table(
        f"Predicted paths of {len(held_out)} held-out trips",
        ["prediction", "overlap", "links found", "whole path right"],
        rows,
    )
    ours = results["RandOM"][:, 0]
    for name in ("fastest", "recursive logit"):
        gain = ours - results[name][:, 0]
        error = gain.std(ddof=1) / len(gain) ** 0.5
        report.claim(f"overlap: RandOM less {name}", "> 0, beyond 2 s.e.", mean(gain), gain.mean() > 2 * error)
    return results


def main():
    options = arguments(
        __doc__,
        trips=(150, "trips to learn from"),
        steps=(40, "steps of RandOM"),
        batch=(40, "trips of a step"),
        estimates=(12, "held-out trips whose log P is estimated"),
        particles=(30, "particles for each"),
    )
    report = Report("Route choice", TEXT, options)
    if report.lacks("paths/borlange_gps.npz"):
        report.finish()
        return
    if options.quick:
        options.trips, options.steps, options.batch, options.estimates, options.particles = 6, 2, 3, 2, 20
    torch.set_default_dtype(torch.double)
    data = load_borlange_trips()
    order = np.random.default_rng(options.seed).permutation(len(data.paths))
    if options.quick:
        order = np.array(sorted(order, key=lambda trip: len(data.paths[trip])))
    training, held_out = order[: options.trips], order[options.trips :][: 20 if options.quick else None]

    logit = RecursiveLogit(data)
    everything = np.arange(len(data.paths))
    if not options.quick:
        total = logit.fit(everything).log_likelihood(everything).sum()
        report.claim("recursive logit, all trips: log-likelihood", "-6303 ± 1", f"{total:.1f}", abs(total + 6303) < 1)
    start = time.process_time()
    logit = RecursiveLogit(data).fit(training)
    logit_seconds, start = time.process_time() - start, time.process_time()
    model = RouteModel(data, training)
    history = learn(model, options.steps, options.batch)
    seconds = time.process_time() - start
    Report.progress(f"learned {history[-1]} in {seconds:.0f} s")

    contestants = {
        "RandOM": median_costs(model.features, pyro.param("penalties").detach()),
        "recursive logit": logit.costs,
        "fastest": data.features[:, 0],
    }
    results = compare_predictions(report, data, contestants, held_out)
    penalties = logit.coefficients[1:] / logit.coefficients[0]
    rows = [
        ["RandOM", *(f"{number:.2f}" for number in history[-1, :3]), f"scale {history[-1, 3]:.2f}", duration(seconds)],
        [
            "recursive logit",
            *(f"{number:.2f}" for number in penalties),
            f"time {logit.coefficients[0]:.2f}",
            duration(logit_seconds),
        ],
    ]
    header = ["model", "left turn", "u-turn", "link", "noise", "seconds"]
    report.table("What is as bad as so many minutes", header, rows)

    some = held_out[: options.estimates]
    ours, errors = log_probabilities(model, some, options.particles)
    theirs = logit.log_likelihood(some)
    gain, error = ours - theirs, np.linalg.norm(errors) / len(some)
    rows = [
        ["RandOM", mean(ours, 2), f"{error:.2f}", f"{np.median(errors):.2f}", f"{errors.max():.2f}"],
        ["recursive logit", mean(theirs, 2), "–", "–", "–"],
        ["difference", mean(gain, 2), f"{error:.2f}", "–", "–"],
    ]
    header = ["model", "mean log P", "error of estimation", "median error of a trip", "largest"]
    report.table(f"Log-probabilities of {len(some)} held-out paths", header, rows)
    better = gain.mean() > 2 * gain.std(ddof=1) / len(gain) ** 0.5
    report.claim("mean log P: RandOM less recursive logit", "> 0, beyond 2 s.e.", mean(gain, 2), better)
    path = report.picture("route_choice", "Overlap of predicted and observed paths, and log P by two models")
    if options.write:
        draw_picture(path, results, (theirs, ours, errors))
    report.finish()


if __name__ == "__main__":
    main()
