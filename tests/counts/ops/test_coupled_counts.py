"""Counts on trees of edges against polynomials in ball arithmetic, and against each other."""

import math

import numpy as np
import pytest
import torch

from pyro_structured.counts.ops import coupled_counts
from pyro_structured.counts.ops.coupled_counts import solve_coupled
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets

flint = pytest.importorskip("flint")

SHAPES = ("path", "star", "caterpillar", "random")


def tree_edges(shape, size, rng):
    if shape == "path":
        return [(d, d + 1) for d in range(size - 1)]
    if shape == "star":
        return [(0, d) for d in range(1, size)]
    if shape == "caterpillar":
        spine = size // 2
        return [(d, d + 1) for d in range(spine - 1)] + [
            (d - spine if d < 2 * spine else 0, d) for d in range(spine, size)
        ]
    return [(int(rng.integers(d)), d) for d in range(1, size)]


def exact_log_partition(logits, count_logits, edges, edge_logits, excess=False):
    """Log Z of one potential on the count of all variables of a tree, by polynomials from the leaves to the root;
    or its excess over the weight of the heaviest vector without tables.
    """
    with flint.ctx.workprec(200):
        log_z = ball_log_partition(logits, count_logits, edges, edge_logits)
        if log_z is None:
            return -math.inf
        heaviest = sum((flint.arb(x) for x in logits.tolist() if excess and 0 < x < math.inf), flint.arb(0))
        return float((log_z - heaviest).mid())


def ball_log_partition(logits, count_logits, edges, edge_logits):
    """Log Z as a ball, or ``None`` where it is -inf."""
    with flint.ctx.workprec(200):

        def weight(number):
            return flint.arb(0) if number == -math.inf else flint.arb(float(number)).exp()

        order, parent = [0], {0: None}
        neighbours = {d: [] for d in range(len(logits))}
        for index, (a, b) in enumerate(edges):
            neighbours[a].append((b, edge_logits[index]))
            neighbours[b].append((a, edge_logits[index].T))
        for d in order:
            for other, table in neighbours[d]:
                if other not in parent:
                    parent[other] = (d, table)
                    order.append(other)
        messages = []
        for x in logits.tolist():
            off, on = flint.arb(0 if x == math.inf else 1), flint.arb(1) if x == math.inf else weight(x)
            messages.append([flint.arb_poly([off]), flint.arb_poly([0, on])])
        for d in reversed(order[1:]):
            above, table = parent[d]
            for state in (0, 1):
                into = messages[d][0] * weight(table[state, 0]) + messages[d][1] * weight(table[state, 1])
                messages[above][state] = messages[above][state] * into
        counts = list(messages[0][0] + messages[0][1])
        total = sum((c * weight(f) for c, f in zip(counts, count_logits.tolist(), strict=False)), flint.arb(0))
        return None if total.is_zero() else total.log()


def exact_odds(logits, count_logits, edges, edge_logits, variable):
    sides = []
    for clamp in (math.inf, -math.inf):
        clamped = logits.clone()
        clamped[variable] = clamp
        sides.append(ball_log_partition(clamped, count_logits, edges, edge_logits))
    if None in sides:
        return math.nan if sides == [None, None] else -math.inf if sides[0] is None else math.inf
    with flint.ctx.workprec(200):
        return float((flint.arb(float(logits[variable])) + sides[0] - sides[1]).mid())


def potentials(size, rng):
    counts = np.arange(size + 1.0)
    noise = 3 * rng.standard_normal(size + 1)
    exactly = np.full(size + 1, -np.inf)
    exactly[int(0.9 * size)] = 0.0
    ends = np.full(size + 1, -np.inf)
    ends[[0, -1]] = 0.0
    return {
        "noise": noise,
        "exactly": exactly,
        "ends": ends,
        "bimodal": -np.minimum((counts - size / 3) ** 2, (counts - 2 * size / 3) ** 2),
        "convex": 4 * (counts - size / 2) ** 2 / size,
        "parity": np.where(counts % 2, -np.inf, 0.0),
    }


def assert_accurate(logits, count_logits, edges, edge_logits, variables):
    d = RecursiveCardinality(
        logits, count_logits, NestedSubsets([range(len(logits))], len(logits), edges=edges), edge_logits=edge_logits
    )
    exact = exact_log_partition(logits, count_logits, edges, edge_logits)
    certificate = d.certificate
    scale = max(1.0, abs(exact), float(logits.abs().sum()), float(edge_logits.abs().sum()))
    error = abs(float(d.log_partition_function) - exact)
    assert error <= 1e-12 * scale
    assert error <= certificate.log_partition_error + 1e-15 * scale
    for variable in variables:
        reference = exact_odds(logits, count_logits, edges, edge_logits, variable)
        error = abs(float(d.marginal_logits[variable]) - reference)
        assert error <= certificate.marginal_logits_error[variable] + 1e-14 * max(1.0, abs(reference))
        p = 1 / (1 + math.exp(-abs(reference)))
        assert abs(float(torch.sigmoid(d.marginal_logits[variable].abs())) - p) <= 1e-9
    return certificate


@pytest.mark.slow(keep=8)
@pytest.mark.parametrize("name", potentials(2, np.random.default_rng(0)))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fourier_width", [1000, 16])
def test_accuracy(shape, name, fourier_width, monkeypatch):
    """The promise of the documentation for 256 variables, without transforms and with them."""
    monkeypatch.setattr(coupled_counts, "FOURIER_WIDTH", fourier_width)
    rng = np.random.default_rng(0)
    edges = tree_edges(shape, 256, rng)
    logits = torch.from_numpy(2 * rng.standard_normal(256))
    tables = torch.from_numpy(2 * rng.standard_normal((255, 2, 2)))
    assert_accurate(logits, torch.from_numpy(potentials(256, rng)[name]), edges, tables, [0, 100, 255])


@pytest.mark.slow
def test_certificates_of_a_thousand_trees(monkeypatch):
    """Errors are within their certified bounds, whatever the numbers are, on 200 trees with five potentials each."""
    fallbacks, rows = 0, 5
    for seed in range(200):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(coupled_counts, "FOURIER_WIDTH", int(rng.choice([4, 1000])))
        size = int(rng.integers(2, 24))
        edges = tree_edges(SHAPES[rng.integers(4)], size, rng)
        scales = rng.choice([0.1, 3.0, 50.0, 1e4], (3, rows, 1))
        logits = torch.from_numpy(scales[0] * rng.standard_normal((rows, size)))
        couplings = torch.from_numpy(scales[1, :, :, None, None] * rng.standard_normal((rows, size - 1, 2, 2)))
        couplings[torch.from_numpy(rng.random(couplings.shape) < 0.02)] = -math.inf
        drawn = [potentials(size, rng) for _ in range(rows)]
        tables = torch.from_numpy(
            np.stack([list(each.values())[rng.integers(len(each))] for each in drawn]) * scales[2]
        )
        forest = NestedSubsets([range(size)], size, edges=edges).coupling
        with torch.no_grad():
            solution = solve_coupled(forest, logits, torch.cat([tables, couplings.flatten(1)], 1), errors=True)
        fallbacks += int((solution.num_fallback_nodes > 0).sum())
        variables = rng.integers(size, size=rows).tolist()
        for row, variable in enumerate(variables):
            given = logits[row], tables[row], edges, couplings[row]
            exact = exact_log_partition(*given, excess=True)
            excess = float(solution.excess[row])
            if exact == -math.inf:
                assert excess == -math.inf
                continue
            assert abs(excess - exact) <= solution.excess_error[row] + 1e-15 * abs(exact)
            reference = exact_odds(*given, variable)
            found = float(solution.marginal_logits[row, variable])
            if math.isfinite(reference):
                error = float(solution.marginal_logits_error[row, variable])
                assert abs(found - reference) <= error + 1e-14 * abs(reference)
            else:
                assert found == reference
    assert fallbacks > 10
