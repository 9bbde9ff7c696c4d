"""Most probable labels of grids by minimum cuts: time against another package, and of searches under patterns.

Claims: `GridCRF.mode` takes at most twice PyMaxflow's time; `map("em")` takes the time that is wanted; labels are worth
as much as those of PyMaxflow, and of the solver that is used without numba.
"""

import sys

import torch
from torch.distributions import Exponential

from benchmarks.measurement import Report, arguments, duration, interleaved, ratio, small
from pyro_structured.distributions import GridCRF, PatternCRF
from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.structures import Grid

try:
    import maxflow
except ModuleNotFoundError:
    maxflow = None

TEXT = """
*Labels of a grid*: log-odds are standard normal, penalties of neighbours that differ are uniform between 0 and a
largest one. *Compiled*: `GridCRF.mode` as it is, with numba, from the field to the labels and their check; the first
call, which compiles, is left out. *Plain*: without numba, by ortools. *PyMaxflow*: graph, flow and labels, by its calls
for whole arrays; it is under the GPL, no extra installs it, and its column is empty unless somebody did. *Difference*:
of the values of the labels, relative to the largest of them.

*Labels under patterns*: `PatternCRF(...).map("em")`; log-odds and weights are standard normal, penalties exponential
with mean 1/2, and each bias is minus half the sum of its pattern's weights. A search begins with two labellings, and
then with single patterns switched; each of its cuts begins with the flow of the one before.

Processor time; contestants of a row are called in turn, those without numba afterwards.
"""
SIDES, LARGEST = (32, 128, 256, 512), (0.5, 1.0, 2.0)
SIDE, PATTERNS, SECONDS = 256, 16, 0.7


def hide_numba():
    """What follows runs as if numba were not installed."""
    sys.modules["numba"] = None
    for name in ("foundation.ops.compiled", "optima.ops.maximum_flow"):
        sys.modules.pop(f"pyro_structured.{name}", None)
    compiled_function.cache_clear()


def of_another_package(field):
    """The labels of a field by PyMaxflow."""
    odds, penalties, edges = field.unary_logits.numpy(), field.pairwise.numpy(), field.grid.edges.numpy()
    graph = maxflow.Graph[float](odds.size, len(edges))
    nodes = graph.add_grid_nodes(odds.shape)
    graph.add_grid_tedges(nodes, (-odds).clip(min=0), odds.clip(min=0))
    flat = nodes.ravel()
    graph.add_edges(flat[edges[:, 0]], flat[edges[:, 1]], penalties, penalties)
    graph.maxflow()
    return torch.from_numpy(graph.get_grid_segments(nodes)).to(field.unary_logits)


def of_patterns(side, number):
    grid = Grid(side, side)
    odds, weights = torch.randn(side, side).double(), torch.randn(number, side, side).double()
    penalties = Exponential(2.0).sample((grid.num_edges,)).double()
    return PatternCRF(odds, penalties, weights, -weights.sum((1, 2)) / 2, grid)


def main():
    options = arguments(__doc__)
    report = Report("Cuts of grids", TEXT, options)
    fields = {}
    for side in (6, 40) if options.quick else SIDES:
        for largest in LARGEST:
            grid = Grid(side, side)
            penalties = largest * torch.rand(grid.num_edges).double()
            fields[side, largest] = GridCRF(torch.randn(side, side).double(), penalties, grid)
    patterns = of_patterns(12 if options.quick else SIDE, PATTERNS)
    patterns.map("em")
    searched = interleaved({"em": lambda: patterns.map("em")}, options.repeats)["em"]
    best = patterns.map("em")[1]
    measured, modes = {}, {}
    for key, field in fields.items():
        contestants = {"compiled": lambda field=field: field.mode}
        if maxflow is not None:
            contestants["PyMaxflow"] = lambda field=field: of_another_package(field)
        modes[key] = field.mode
        measured[key] = interleaved(contestants, options.repeats)
    hide_numba()
    rows = []
    for (side, largest), field in fields.items():
        times = measured[side, largest]
        found = {"ours": modes[side, largest], "plain": field.mode}
        slow = interleaved({"plain": lambda field=field: field.mode}, options.repeats)["plain"]
        peer = times.get("PyMaxflow")
        if peer is not None:
            found["PyMaxflow"] = of_another_package(field)
        values = torch.stack([field.unnormalized_log_prob(labels) for labels in found.values()])
        difference = float((values.max() - values.min()) / values.abs().max())
        name = f"{side} x {side}, penalties up to {largest:g}"
        report.claim(f"{name}: difference", "<= 1e-12", small(difference), difference <= 1e-12)
        if peer is not None:
            factor = times["compiled"] / peer
            report.claim(f"{name}: compiled / PyMaxflow", "<= 2", ratio(factor), factor <= 2)
        cells = [duration(times["compiled"]), duration(slow), duration(peer)]
        factors = [ratio(slow / times["compiled"]), ratio(None if peer is None else times["compiled"] / peer)]
        rows.append([f"{side} x {side}", largest, *cells, *factors, small(difference)])
    header = ["grid", "largest penalty", "compiled", "plain", "PyMaxflow", "plain / compiled", "compiled / PyMaxflow"]
    report.table("Labels of a grid", [*header, "difference"], rows)
    slow = interleaved({"plain": lambda: patterns.map("em")}, min(3, options.repeats))["plain"]
    plain = patterns.map("em")[1]
    difference = float((best.value - plain.value).abs() / plain.value.abs())
    report.claim('map("em"): difference', "<= 1e-12", small(difference), difference <= 1e-12)
    report.claim('map("em"): seconds', f"<= {SECONDS:g}", f"{searched:.2f}", searched <= SECONDS)
    size = patterns.grid.height
    cells = [duration(searched), duration(slow), ratio(slow / searched), int(best.num_cuts), small(difference)]
    header = ["grid", "patterns", "compiled", "plain", "plain / compiled", "cuts", "difference"]
    report.table("Labels under patterns", header, [[f"{size} x {size}", PATTERNS, *cells]])
    report.finish()


if __name__ == "__main__":
    main()
