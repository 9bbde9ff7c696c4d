"""Time of an update of all costs of a row given its optimum, with and without compiled loops, and by slice sampling.

Claims: the times that are wanted of a row; costs drawn with and without compiled loops from the same random numbers
differ by at most 1e-8.
"""

import sys

import pyro.distributions as dist
import torch

from benchmarks.measurement import Report, arguments, duration, interleaved, ratio, small
from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.optima.inference.cost_conditionals import SlicedCosts, cost_conditionals
from pyro_structured.optima.inference.cost_sweep import sweep
from pyro_structured.structures import Matching, MinimumCut, ShortestPath

TEXT = """
A step of `ConstrainedSlice` draws every cost given all others and the observed optimum, one restriction of the inverse
set after the other. *Compiled*: as it is, with numba; the first call, which compiles, is left out. *Plain*: the same
restrictions without numba. *Slices*: without numba, and by slice sampling, as for costs whose distribution cannot be
inverted. Processor time of a row, of a batch of as many rows as stated. Dashes: not measured.

Where *normal matching, J = 300* is missed, this was tried: shortest paths by buckets and by blocks of columns, and
draws by vector instructions, which are in; passes that are fused, which the compiler does not vectorise; elimination of
half of the rows before the other half is drawn, again and again, which takes as long as the searches; and proposals
that stay where they fit, so that most distances need not be known, which take two random numbers for each cost in all
problems alike.

Where *log-normal path, 60 x 60* is missed, this was tried, and is in: searches from both sides that go on only as far
as bounds may be positive, and edges of a node that stand together in memory. A move of one edge takes a search of its
neighbourhood, and a draw, one after the other.
"""


# Four nodes and five edges.
SQUARE = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])


def grid_edges(side):
    """Pairs of neighbours of a grid in both directions."""
    nodes = torch.arange(side * side).view(side, side)
    pairs = [
        torch.stack([a.ravel(), b.ravel()], 1) for a, b in ((nodes[1:], nodes[:-1]), (nodes[:, 1:], nodes[:, :-1]))
    ]
    return torch.cat(pairs)


def matching(size, kind):
    return Matching(size), kind(torch.zeros(size, size).double(), torch.ones(()).double()).to_event(2)


def student(loc, scale):
    return dist.StudentT(torch.tensor(4.0).double(), loc, scale)


def two_hills(loc, scale):
    """Mixtures of two normal variables."""
    ends = torch.tensor([-2.0, 2.0], dtype=torch.double)
    parts = dist.Normal(loc.unsqueeze(-1) + ends, scale)
    return dist.MixtureSameFamily(dist.Categorical(torch.ones_like(parts.loc)), parts)


def path(side, base):
    edges = grid_edges(side)
    edges = torch.cat([edges, edges.flip(1)])
    return ShortestPath(edges, side * side, 0, side * side - 1), base.expand([len(edges)]).to_event(1)


def cut(edges, num_nodes):
    problem = MinimumCut(edges, num_nodes)
    return problem, dist.Exponential(torch.ones(problem.cost_shape).double()).to_event(1)


class Sweep:
    """Updates of the costs of some rows, which go on where they were."""

    def __init__(self, problem, base, rows, sliced, seed):
        torch.manual_seed(seed)
        rank = len(problem.cost_shape)
        self.problem, self.base = problem.expand((rows,)), base.expand((rows,))
        self.costs = self.base.sample().double()
        self.value = self.problem.solve(self.costs)
        self.conditionals = cost_conditionals(self.base, rank)
        if sliced and type(self.conditionals) is not SlicedCosts:
            none = lambda costs: torch.zeros(costs.shape[: costs.dim() - rank]).double()  # noqa: E731
            self.conditionals = cost_conditionals(self.base, rank, none)

    def __call__(self):
        self.costs, _ = sweep(self.costs, self.value, self.problem, self.conditionals, 1)


def hide_numba():
    """What follows runs as if numba were not installed."""
    sys.modules["numba"] = None
    for name in [name for name in sys.modules if name.startswith("pyro_structured.") and "_sweep" in name]:
        if ".ops." in name:
            del sys.modules[name]
    names = ("draw", "gamma", "interval", "quantile", "student")
    parts = (f"optima.ops.compiled_{name}" for name in names)
    for name in ("foundation.ops.compiled", "optima.ops.maximum_flow", *parts):
        sys.modules.pop(f"pyro_structured.{name}", None)
    compiled_function.cache_clear()


def main():
    options = arguments(__doc__)
    report = Report("Sweeps over costs", TEXT, options)
    one, two = torch.ones(()).double(), torch.tensor(2.0).double()
    few = options.quick
    cases = {
        "normal matching, J = 30": (*matching(4 if few else 30, dist.Normal), 10, 0.15, True),
        "Laplace matching, J = 30": (*matching(4 if few else 30, dist.Laplace), 10, 0.5, True),
        "Gumbel matching, J = 30": (*matching(4 if few else 30, dist.Gumbel), 10, None, True),
        "Student matching, J = 30": (*matching(4 if few else 30, student), 10, None, True),
        "mixture matching, J = 30": (*matching(4 if few else 30, two_hills), 10, None, True),
        "normal matching, J = 300": (*matching(5 if few else 300, dist.Normal), 1, 8.0, True),
        "log-normal path, 10 x 10": (*path(3 if few else 10, dist.LogNormal(0 * one, one)), 10, None, True),
        "Weibull path, 10 x 10": (*path(3 if few else 10, dist.Weibull(one, two)), 10, None, True),
        "gamma path, 10 x 10": (*path(3 if few else 10, dist.Gamma(two, one)), 10, 1.5, True),
        "half-Cauchy path, 10 x 10": (*path(3 if few else 10, dist.HalfCauchy(one)), 10, None, True),
        "log-normal path, 60 x 60": (*path(4 if few else 60, dist.LogNormal(0 * one, one)), 1, 12.0, True),
        "exponential cut, 16 x 16": (*cut(grid_edges(3 if few else 16), 9 if few else 256), 10, 8.0, True),
        "exponential cut, 4 nodes": (*cut(SQUARE, 4), 20 if few else 2_000, 0.0125, True),
    }
    rows, plain = [], {}
    for name, (problem, base, number, wanted, is_compiled) in cases.items():
        run = Sweep(problem, base, number, False, options.seed)
        run()
        plain[name] = run
        time = interleaved({name: run}, options.repeats)[name] / number
        rows.append([name, number, time, wanted, is_compiled])
    compiled = {}
    for name, (problem, base, number, _, is_compiled) in cases.items():
        if is_compiled:
            run = Sweep(problem, base, number, False, options.seed)
            run()
            compiled[name] = run.costs
    hide_numba()
    table = []
    for name, number, time, wanted, is_compiled in rows:
        problem, base, *_ = cases[name]
        is_long = number == 1 and not few
        slow = sliced = difference = None
        if is_compiled and not is_long:
            run = Sweep(problem, base, number, False, options.seed)
            run()
            difference = float((run.costs - compiled[name]).abs().max())
            report.claim(f"{name}: difference", "<= 1e-8", small(difference), difference <= 1e-8)
            slices = Sweep(problem, base, number, True, options.seed)
            times = interleaved({"plain": run, "slices": slices}, min(3, options.repeats))
            slow, sliced = times["plain"] / number, times["slices"] / number
        if wanted is not None:
            report.claim(f"{name}: ms a row", f"<= {wanted:g}", f"{time * 1e3:.3g}", time <= wanted * 1e-3)
        gain = None if slow is None else slow / time
        table.append([name, number, duration(time), duration(slow), duration(sliced), ratio(gain), small(difference)])
    header = ["costs", "rows", "compiled", "plain", "slices", "plain / compiled", "difference"]
    report.table("Times of a row", header, table)
    report.finish()


if __name__ == "__main__":
    main()
