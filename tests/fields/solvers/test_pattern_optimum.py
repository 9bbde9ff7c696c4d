"""Most probable labelings of fields under patterns, against enumeration."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.fields.ops.field import Field, binary_states
from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.fields.solvers.joint_cut import ascend, maximize_jointly
from pyro_structured.fields.solvers.minimum_branching import branch_and_bound
from pyro_structured.fields.solvers.pattern_dual import (
    FORMS,
    decompose,
    maximize_pixels_with_pattern,
    maximize_with_pattern,
)
from pyro_structured.fields.solvers.potential_chords import potential_chords, potential_of, rectified
from pyro_structured.fields.solvers.signed_graph import Unbalanced, balancing_flips
from pyro_structured.fields.solvers.sum_branching import PatternMajorizer
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.structures import Grid

TEMPERATURES = [0.0, 0.5, 1.0, 2.0, 3.0]


def make(shape, number, composition, temperature, seed, signs=None, paired=True, scale=2.0, rows=1):
    """Fields of normal numbers, with exponential penalties, some certain pixels, and patterns that are half on."""
    torch.manual_seed(seed)
    grid = Grid(*shape)
    odds = scale * torch.randn(rows, grid.num_pixels).double()
    odds = odds.masked_fill(torch.rand_like(odds) < 0.05, -torch.inf).masked_fill(
        torch.rand_like(odds) < 0.05, torch.inf
    )
    penalties = torch.distributions.Exponential(2.0).sample((rows, grid.num_edges)).double() * paired
    weights = scale * torch.randn(rows, number, grid.num_pixels).double()
    if signs is not None:
        weights = weights.abs() * torch.tensor(signs).double().reshape(-1, 1)
    biases = torch.randn(rows, number).double() - weights.sum(-1) / 2
    biases = biases.masked_fill((torch.rand_like(biases) < 0.05) & (torch.arange(number) > 0), -torch.inf)
    if composition == "table":
        composition = torch.randn(rows, number + 1).double()
        composition[:, number // 2] = -torch.inf
    states, level = binary_states(odds)
    base = torch.randn(rows).double() + level
    return Field(states, base, penalties, shape, weights, biases, composition, temperature)


def values(field):
    """Log-weights of all labelings, shape ``(rows, 2 ** D)``."""
    labels = all_labelings(field.odds.shape[-1], field.odds)
    rows = range(field.num_rows)
    index = torch.zeros(len(labels), dtype=torch.long)
    return torch.stack([field.rows(index + row).log_weight(labels) for row in rows])


def starts(field):
    return (field.odds > 0).double()


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.sampled_from([(1, 3), (2, 2), (2, 3), (3, 3)]),
    st.integers(1, 4),
    st.sampled_from(["sum", "min", "table"]),
    st.sampled_from(TEMPERATURES),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_searches(shape, number, composition, temperature, paired, seed):
    field = make(shape, number, composition, temperature, seed, paired=paired, rows=2)
    best = values(field).amax(1)
    possible = best > -torch.inf
    found = ascend(field, starts(field), 1000)
    assert (field.log_weight(found.labels) >= field.log_weight(starts(field))).all()
    assert (field.log_weight(found.labels) <= best + 1e-10).all()
    if isinstance(composition, torch.Tensor) or composition == "table" or not possible.all():
        return
    proved = branch_and_bound(field, found.labels, 50_000 if composition == "sum" else 500)
    assert (proved.upper_bound >= best - 1e-12).all()
    assert (field.log_weight(proved.labels) <= best + 1e-10).all()
    if composition == "sum":
        # With "min", where a cut for each pattern is nearly exact, a proof may take many more cuts.
        torch.testing.assert_close(field.log_weight(proved.labels), best, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(proved.upper_bound, best, rtol=1e-9, atol=1e-9)
    stopped = branch_and_bound(field, found.labels, 3)
    assert (stopped.upper_bound >= best - 1e-12).all() and (stopped.num_cuts <= 4).all()
    if composition == "min":
        joint = maximize_jointly(field)
        assert (joint.upper_bound >= best - 1e-12).all()
        assert (field.log_weight(joint.labels) >= best - temperature * math.log(number) - 1e-10).all()
        return
    for form in FORMS:
        dual = decompose(field, found.labels, 60, form)
        assert (dual.upper_bound >= best - 1e-10).all()
        assert (field.log_weight(dual.labels) <= best + 1e-10).all()


def test_expectation_maximisation_never_decreases():
    """5,000 steps of all temperatures and compositions, one by one."""
    steps, seed = 0, 0
    while steps < 5000:
        for composition in ("sum", "min", "table"):
            for temperature in TEMPERATURES:
                seed += 1
                field = make((5, 5), 6, composition, temperature, seed, rows=40, scale=0.7)
                labels = (torch.rand(40, 25) < 0.5).double()
                labels = torch.where(field.odds.isinf(), starts(field), labels)
                network = FieldCut(field.edges.numpy(), 25)
                worth, moved = field.log_weight(labels), torch.ones(40, dtype=torch.bool)
                while moved.any():
                    odds = field.tangent(labels).odds
                    new = torch.from_numpy(network.maximize(odds.numpy(), field.penalties.numpy())).double()
                    value = field.log_weight(new)
                    assert (value >= worth - 1e-10 * (1 + worth.abs())).all()
                    moved = value > worth + 1e-10 * (1 + worth.abs())
                    labels, worth = torch.where(moved.unsqueeze(-1), new, labels), torch.maximum(worth, value)
                    steps += int(moved.sum())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_joint_cuts(temperature):
    """Patterns of one sign each: the best at temperature zero, and near it above."""
    for seed in range(60):
        signs = [1.0, -1.0, 1.0] if seed % 2 else [-1.0, -1.0, -1.0]
        field = make((3, 3), 3, "sum", temperature, seed, signs)
        best = values(field).amax(1)
        found = maximize_jointly(field)
        gap = found.upper_bound - best
        assert (gap >= -1e-12).all() and (gap <= temperature * 3 * math.log(2) + 1e-9).all()
        if temperature == 0:
            torch.testing.assert_close(field.log_weight(found.labels), best, rtol=1e-10, atol=1e-10)
    with pytest.raises(Unbalanced):
        maximize_jointly(make((3, 3), 2, "sum", 0.0, 0))


def test_balanced_signs():
    """Negative penalties that some exchange of labels makes positive, and a cycle where none does."""
    rng = np.random.default_rng(0)
    grid = Grid(3, 3)
    edges, labels = grid.edges.numpy(), all_labelings(9, torch.zeros(())).double().numpy()
    for _ in range(50):
        hidden = rng.random(9) < 0.5
        strengths = rng.exponential(size=12) * np.where(hidden[edges[:, 0]] == hidden[edges[:, 1]], 1, -1)
        strengths[rng.random(12) < 0.2] = 0
        flips = balancing_flips(9, edges, strengths)
        assert ((flips[edges[:, 0]] == flips[edges[:, 1]]) == (strengths > 0))[strengths != 0].all()
        odds = rng.normal(size=(1, 9))
        found = FieldCut(edges, 9).maximize(odds, strengths[None])[0]
        cut = labels[:, edges[:, 0]] != labels[:, edges[:, 1]]
        worth = labels @ odds[0] - cut @ strengths
        own = float(odds[0] @ found - strengths[found[edges[:, 0]] != found[edges[:, 1]]].sum())
        assert own == pytest.approx(worth.max(), abs=1e-10)
    for negative in range(12):
        strengths = np.ones(12)
        strengths[negative] = -1.0
        with pytest.raises(Unbalanced) as caught:
            balancing_flips(9, edges, strengths)
        cycle = caught.value.cycle
        pairs = [{one, other} for one, other in zip(cycle, cycle[1:] + cycle[:1], strict=True)]
        signs = [strengths[[set(edge) == pair for edge in edges.tolist()]][0] for pair in pairs]
        assert math.prod(signs) == -1


@pytest.mark.slow
@settings(max_examples=500)
@given(st.sampled_from([None, 1.0, -1.0]), st.sampled_from(TEMPERATURES), st.booleans(), st.integers(0, 2**31))
def test_single_patterns(sign, temperature, paired, seed):
    """Weights of either sign and of both, with and without pairwise terms."""
    rng = np.random.default_rng(seed)
    edges = Grid(3, 3).edges.numpy()
    odds, weights = 2 * rng.normal(size=9), 3 * rng.normal(size=9)
    weights = weights if sign is None else sign * np.abs(weights)
    weights[rng.random(9) < 0.1] = 0.0
    odds[rng.random(9) < 0.1] = 0.0
    odds[rng.random(9) < 0.05] = -np.inf
    bias = float(3 * rng.normal() - weights.sum() / 2)
    penalties = rng.exponential(size=12) * paired
    labels = all_labelings(9, torch.zeros(())).double().numpy() > 0
    labels = labels[~(labels & np.isneginf(odds)).any(1)]

    def field(chosen):
        cut = chosen[..., edges[:, 0]] != chosen[..., edges[:, 1]]
        return chosen @ np.where(np.isinf(odds), 0.0, odds) - cut @ penalties

    def potential(chosen):
        return [potential_of(np.array([bias + w]), "sum", temperature) for w in np.atleast_1d(chosen @ weights)]

    best = (field(labels) + potential(labels)).max()
    if not paired:
        found = maximize_pixels_with_pattern(odds, weights, bias, temperature)
        assert float(field(found)) + potential(found)[0] == pytest.approx(best, abs=1e-10)
    network = FieldCut(edges, 9)
    found, bound = maximize_with_pattern(
        lambda slope: network.maximize((odds + slope * weights)[None], penalties[None])[0],
        lambda chosen: float(field(chosen)),
        weights,
        bias,
        temperature,
    )
    assert float(field(found)) + potential(found)[0] == pytest.approx(best, abs=1e-10)
    assert bound == pytest.approx(best, abs=1e-9)


@settings(max_examples=200)
@given(st.sampled_from(["sum", "min"]), st.sampled_from(TEMPERATURES), st.integers(0, 2**31))
def test_chords_are_above(scheme, temperature, seed):
    rng = np.random.default_rng(seed)
    low = 5 * rng.normal(size=4)
    high = low + rng.exponential(size=4) * rng.choice([0.0, 0.1, 5.0], size=4)
    chords = potential_chords(low, high, 5 * rng.normal(size=4), scheme, temperature)
    for activations in rng.uniform(low, high, (200, 4)):
        assert chords.at(activations) >= potential_of(activations, scheme, temperature) - 1e-10


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(TEMPERATURES), st.floats(0, 1), st.floats(0, 3), st.integers(0, 2**31))
def test_majorants_are_above(temperature, certain, width, seed):
    """Majorants are above the potential of all labels with activations in ranges, and equal to it along their order."""
    rng = np.random.default_rng(seed)
    weights, biases, labels = 2 * rng.normal(size=(3, 6)), 2 * rng.normal(size=3), all_labelings(6, torch.zeros(()))
    free, known = rng.random(6) >= certain / 2, rng.random(6) < 0.5
    shares = rng.random(6)
    labels = labels.numpy() > 0
    labels = labels[(labels == known)[:, ~free].all(1)]
    parts = np.concatenate([weights.T.clip(min=0), -weights.T.clip(max=0)])
    least = biases + weights[:, ~free] @ known[~free] + weights[:, free].clip(max=0).sum(1)
    most = least + np.abs(weights[:, free]).sum(1)
    middle = rng.uniform(least, most)
    low, high = np.maximum(least, middle - width), np.minimum(most, middle + width)
    activations = labels @ weights.T + biases
    wide, narrow = ((least, most), (low, high))
    for ends in (wide, narrow):
        majorant = PatternMajorizer(parts, temperature).near(shares, free, least, *ends)
        inside = ((activations >= ends[0] - 1e-12) & (activations <= ends[1] + 1e-12)).all(1)
        each = np.array([majorant.at(label) for label in labels])
        potentials = rectified(activations, temperature)
        assert (each >= potentials - 1e-9)[inside].all()
        np.testing.assert_allclose(
            each.sum(1), labels[:, free] @ majorant.tilt[free] + majorant.base, rtol=1e-9, atol=1e-9
        )
    # With positive weights, there is one such path, and a bound is exact there with its labels as means.
    positive = np.concatenate([np.abs(weights).T, 0 * weights.T])
    for label in labels:
        floor = biases.copy()
        exact = PatternMajorizer(positive, temperature).near(
            label.astype(float), free | True, floor, floor, floor + np.abs(weights).sum(1)
        )
        mine = rectified(np.abs(weights) @ label + biases, temperature)
        assert (exact.at(label) >= mine - 1e-9).all()
        np.testing.assert_allclose(exact.at(label)[: len(free)], mine, rtol=1e-9, atol=1e-9)


@settings(max_examples=100)
@given(st.sampled_from([(1, 4), (2, 3), (3, 3)]), st.booleans(), st.integers(0, 2**31))
def test_margins_of_cuts(shape, flipped, seed):
    """Labels that differ from the best ones at a node lose at least its margin; alone, they lose no less."""
    rng = np.random.default_rng(seed)
    edges, number = Grid(*shape).edges.numpy(), math.prod(shape)
    hidden = flipped & (rng.random(number) < 0.5)
    penalties = rng.exponential(size=len(edges)) * np.where(hidden[edges[:, 0]] == hidden[edges[:, 1]], 1, -1)
    odds = rng.normal(size=number) * 2
    network = FieldCut(edges, number)
    best = network.maximize(odds[None], penalties[None])[0]
    margins = network.margins()
    labels = all_labelings(number, torch.zeros(())).numpy() > 0
    worth = labels @ odds - (labels[:, edges[:, 0]] != labels[:, edges[:, 1]]) @ penalties
    for node in range(number):
        other = worth[labels[:, node] != best[node]].max()
        assert -1e-9 <= margins[node] <= worth.max() - other + 1e-9


def test_margins_without_pairs_are_exact():
    odds = np.array([1.5, -0.5, 0.25])
    network = FieldCut(np.array([[0, 1], [1, 2]]), 3)
    network.maximize(odds[None], np.zeros((1, 2)))
    np.testing.assert_allclose(network.margins(), np.abs(odds), atol=1e-12)
