"""Fields of several labels under patterns, against enumeration, and against fields of two."""

import itertools
import math

import numpy as np
import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import SVI, Trace_ELBO
from torch import Generator  # Its examples are the same under all seeds of a run.

from pyro_structured.distributions import CategoricalPatternCRF, JunctionTree, PatternCRF
from pyro_structured.fields.ops import field_sums as module
from pyro_structured.fields.ops.pattern_potential import pattern_slopes
from pyro_structured.fields.solvers import field_bounds
from pyro_structured.inference import AnnealedImportanceSampling
from pyro_structured.structures import CliqueTree, Grid
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical

SIZES = [((1, 1), 4), ((1, 4), 3), ((2, 2), 4), ((3, 2), 3), ((2, 3), 2), ((2, 1), 5)]


@st.composite
def fields(draw, sizes=SIZES):
    """A field of either sign of weights and penalties, with impossible labels, all compositions and temperatures; its
    table, and its penalties.
    """
    (shape, labels), number = draw(st.sampled_from(sizes)), draw(st.integers(0, 3))
    paired, seed = draw(st.booleans()), draw(st.integers(0, 2**31))
    scheme = draw(st.sampled_from(["sum", "min", "table"])) if number else "sum"
    temperature = draw(st.sampled_from([0, 0.5, 1, 2, 3]))
    scale = draw(st.sampled_from([0.5, 3.0, 50.0]))
    torch.manual_seed(seed)
    grid = Grid(*shape)

    def random(*size):
        return scale * torch.randn(*size, dtype=torch.double)

    def some(size, share):
        return torch.rand(size) < share

    unary = random(*shape, labels)
    unary = unary.masked_fill(some(unary.shape, 0.1), -torch.inf)
    penalties = random(grid.num_edges)
    penalties = penalties.masked_fill(some(penalties.shape, 0.05), torch.inf) if paired else None
    weights, biases = random(number, *shape, labels), random(number).masked_fill(some((number,), 0.1), -torch.inf)
    table = random(number + 1).masked_fill(some((number + 1,), 0.2), -torch.inf)
    if scheme != "table":
        table = torch.full((number + 1,), 0.0 if scheme == "sum" else -torch.inf).double()
        table[min(1, number)] = 0.0
    composition = table if scheme == "table" else scheme
    return CategoricalPatternCRF(unary, penalties, weights, biases, grid, composition, temperature), table, penalties


def all_values(number, labels):
    values = list(itertools.product(range(labels), repeat=number))
    return torch.tensor(values, dtype=torch.long).reshape(labels**number, number)


def brute_force(d, table, penalties):
    """All labelings and their log-weights, from the definition."""
    unary, weights = d.unary_logits.flatten(0, 1), d.weights.flatten(1, 2)
    y = all_values(*unary.shape)
    pixels = torch.arange(len(unary))
    score = unary[pixels, y].sum(-1)
    if penalties is not None:
        for (one, other), penalty in zip(d.grid.edges.tolist(), penalties, strict=True):
            score = score - penalty.where(y[:, one] != y[:, other], 0.0)
    activations = weights[:, pixels, y].sum(-1).T + d.pattern_logits
    units = all_values(len(d.pattern_logits), 2)
    chosen = activations.unsqueeze(1).where(units > 0, 0.0).sum(-1) + table[units.sum(-1)]
    temperature = d.temperature
    best = chosen.amax(1) if temperature == 0 else temperature * (chosen / temperature).logsumexp(1)
    return y, score + best


def close(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@settings(max_examples=400)
@given(fields(), st.booleans(), st.integers(0, 2**31))
def test_queries(case, over_labelings, seed):
    d, table, penalties = case
    y, scores = brute_force(d, table, penalties)
    if over_labelings:
        d._sums.hidden = None
    log_z, shape, labels = scores.logsumexp(0), d.event_shape, d.unary_logits.shape[-1]
    values = y.reshape(-1, *shape)
    close(d.unnormalized_log_prob(values), scores)
    if log_z == -torch.inf:
        with pytest.raises(ValueError, match="^unary_logits: expected at least one value of positive probability"):
            _ = d.log_partition_function
        return
    log_probs = scores - log_z
    probs = log_probs.exp()
    indicators = torch.nn.functional.one_hot(values, labels).double()
    marginals = torch.tensordot(probs, indicators, 1)
    close(d.log_partition_function, log_z)
    close(d.log_prob(values), log_probs)
    close(d.marginals, marginals)
    large = marginals > 1e-12
    close(d.marginal_logits[large], marginals[large].log(), 1e-6)
    close(d.entropy(), -(probs * log_probs.masked_fill(probs == 0, 0.0)).sum())
    close(d.log_prob(d.mode), log_probs.amax())
    torch.manual_seed(seed)
    value, observed = y[torch.multinomial(probs, 1)[0]], torch.rand(y.shape[1]) < 0.4
    agrees = ((y == value) | ~observed).all(-1)
    evidence = log_probs[agrees].logsumexp(0)
    event, where = value.reshape(shape), observed.reshape(shape)
    close(d.marginal_log_prob(event, where), evidence)
    given_value = d.condition(event, where)
    close(given_value.marginals, torch.tensordot((log_probs - evidence).exp().where(agrees, 0.0), indicators, 1))
    close(given_value.log_partition_function - log_z, evidence)


@settings(max_examples=100)
@given(fields(), st.integers(0, 2**31))
def test_conditionals(case, seed):
    """Conditionals of single pixels from log-weights of labelings that differ there, and Besag's sum of them."""
    d, table, penalties = case
    y, scores = brute_force(d, table, penalties)
    torch.manual_seed(seed)
    labels = d.unary_logits.shape[-1]
    values = y[torch.randint(len(y), (5,))]
    found = d.conditional_logits(values.reshape(-1, *d.event_shape)).reshape(5, -1, labels)
    units = labels ** torch.arange(y.shape[1] - 1, -1, -1)
    base = (values * units).sum(-1, keepdim=True) - values * units
    joint = scores[base.unsqueeze(-1) + units.unsqueeze(-1) * torch.arange(labels)]
    total = joint.logsumexp(-1)
    possible = total > -torch.inf
    expected = joint - total.unsqueeze(-1)
    torch.testing.assert_close(found[possible], expected[possible], rtol=1e-9, atol=1e-7)
    own, sure = expected.gather(-1, values.unsqueeze(-1)).squeeze(-1).sum(-1), possible.all(-1)
    pseudo = d.pseudo_log_prob(values.reshape(-1, *d.event_shape))
    torch.testing.assert_close(pseudo[sure], own[sure], rtol=1e-8, atol=1e-6)


@settings(max_examples=40)
@given(fields(sizes=[((1, 3), 3), ((2, 2), 3), ((1, 2), 4)]))
def test_derivatives(case):
    """The gradient and Hessian-vector products of log Z, along all parameters, are those of the enumerated sum."""
    d, table, penalties = case
    if brute_force(d, table, penalties)[1].logsumexp(0) == -torch.inf or d.temperature == 0:
        return
    names = ["unary_logits", "weights", "pattern_logits", "composition"] + ["pairwise"] * (penalties is not None)
    leaves = {name: getattr(d, name).detach().clone().requires_grad_() for name in names}
    parts = [leaves["unary_logits"], leaves.get("pairwise"), leaves["weights"], leaves["pattern_logits"], d.grid]
    results = []
    for log_z in (
        CategoricalPatternCRF(*parts, leaves["composition"], d.temperature).log_partition_function,
        _enumerated(d, leaves),
    ):
        first = torch.autograd.grad(log_z, list(leaves.values()), create_graph=True, materialize_grads=True)
        torch.manual_seed(0)
        along = sum((g.nan_to_num() * torch.randn_like(g)).sum() for g in first)
        second = torch.autograd.grad(along, list(leaves.values()), allow_unused=True, materialize_grads=True)
        results.append([*first, *second])
    for found, expected in zip(*results, strict=True):
        finite = expected.isfinite()
        torch.testing.assert_close(found[finite], expected[finite], rtol=1e-7, atol=1e-7)
        assert found.isfinite().all()


def _enumerated(d, leaves):
    """Log Z with everything in the graph, of what is possible."""
    unary, weights = leaves["unary_logits"].flatten(0, 1), leaves["weights"].flatten(1, 2)
    y, pixels = all_values(*unary.shape), torch.arange(len(unary))
    possible = unary[pixels, y].isfinite().all(-1)
    if "pairwise" in leaves:
        ends = y[:, d.grid.edges]
        differ = ends[..., 0] != ends[..., 1]
        possible &= ~(differ & leaves["pairwise"].isinf()).any(-1)
    y = y[possible]
    score = unary[pixels, y].sum(-1)
    if "pairwise" in leaves:
        finite = leaves["pairwise"].masked_fill(leaves["pairwise"].isinf(), 0.0)
        score = score - finite.where(differ[possible], 0.0).sum(-1)
    units = all_values(len(d.pattern_logits), 2)
    c, g = leaves["pattern_logits"], leaves["composition"]
    units = units[~((units[:, c == -math.inf] > 0).any(-1) | (g == -math.inf)[units.sum(-1)])]
    activations = weights[:, pixels, y].sum(-1).T + c.masked_fill(c == -math.inf, 0.0)
    chosen = activations @ units.T.double() + g[units.sum(-1)]
    return (score + d.temperature * (chosen / d.temperature).logsumexp(-1)).logsumexp(0)


@pytest.mark.parametrize(("composition", "temperature"), [("sum", 1), ("min", 1), ("sum", 2), ("sum", 0)])
@pytest.mark.parametrize("paired", [True, False])
def test_samples(composition, temperature, paired):
    torch.manual_seed(0)
    grid = Grid(2, 2)
    weights, biases = 2 * torch.randn(2, 2, 2, 2, 3), torch.randn(2)
    pairwise = torch.rand(2, 4) if paired else None
    d = CategoricalPatternCRF(torch.randn(2, 2, 3), pairwise, weights, biases, grid, composition, temperature)
    d = d.expand((2,))
    values = d.enumerate_support(expand=False)
    probs = d.log_prob(values).double().exp()
    drawn = d.sample((50_000,)).flatten(-2)
    assert drawn.dtype == torch.long
    place = (drawn * 3 ** torch.arange(3, -1, -1)).sum(-1)
    for row in range(2):
        assert discrete_goodness_of_fit(probs[:, row], place[:, row].bincount(minlength=81)) > 2e-9


@pytest.mark.slow
@settings(max_examples=60)
@given(fields(sizes=[((2, 3), 2), ((2, 2), 2)]), st.integers(0, 2**31))
def test_two_labels(case, seed):
    """A field of two labels is one of zeros and ones, with differences in place of odds and weights."""
    d, table, penalties = case
    off, on = d.unary_logits.unbind(-1)
    if ((off == -torch.inf) & (on == -torch.inf)).any():
        return
    odds = torch.where(off == -torch.inf, torch.inf, on - off.masked_fill(off == -torch.inf, 0.0))
    biases = d.pattern_logits + d.weights[..., 0].sum((-1, -2))
    composition = d._scheme or table
    weights = d.weights[..., 1] - d.weights[..., 0]
    binary = PatternCRF(odds, penalties, weights, biases, d.grid, composition, d.temperature)
    base = torch.where(off == -torch.inf, on, off).sum()
    values = d.enumerate_support()
    torch.testing.assert_close(
        d.unnormalized_log_prob(values), binary.unnormalized_log_prob(values.double()) + base, rtol=1e-9, atol=1e-9
    )
    try:
        log_z = binary.log_partition_function
    except ValueError:
        return
    close(d.log_partition_function, log_z + base, 1e-9)
    close(d.marginals[..., 1], binary.marginals, 1e-9)
    close(d.entropy(), binary.entropy(), 1e-8)
    value = binary.sample()
    logits = d.conditional_logits(value)
    sure = logits.isfinite().all(-1)
    close((logits[..., 1] - logits[..., 0])[sure], binary.conditional_logits(value)[sure], 1e-7)
    try:
        expected = binary.map()[1]
    except NotImplementedError as error:
        with pytest.raises(NotImplementedError, match=str(error)[:40]):
            d.map()
        return
    close(d.map()[1].value, expected.value + base, 1e-8)
    if composition == "sum":
        proved = d.map("branch_and_bound")[1]
        assert proved.optimal
        close(proved.value, d.unnormalized_log_prob(d.mode), 1e-8)


@settings(max_examples=150)
@given(fields())
def test_searches(case):
    """The values that are found, and a bound that is one, which is the value at T = 0 and without patterns."""
    d, table, penalties = case
    _, scores = brute_force(d, table, penalties)
    best = scores.amax()
    methods = ["enumeration"] if penalties is not None and (penalties < 0).any() else ["enumeration", "em"]
    for method in methods:
        if best == -torch.inf:
            with pytest.raises(ValueError, match="^unary_logits: expected at least one value of positive probability"):
                d.map(method)
            continue
        labels, found = d.map(method)
        close(d.unnormalized_log_prob(labels), found.value)
        assert found.value <= best + 1e-9 * (1 + best.abs()) and found.upper_bound >= best - 1e-9 * (1 + best.abs())
        if method == "enumeration":
            assert found.upper_bound <= best + d.temperature * len(d.pattern_logits) * math.log(2) + 1e-9 * best.abs()
            if not d.temperature or not len(d.pattern_logits):
                close(found.value, best, 1e-9)
                assert found.optimal


def five_by_five(seeds, composition="sum", labels=3):
    """A batch of fields at temperature zero, where the best labels for each state of the hidden units are the best."""
    grid, parts = Grid(5, 5), []
    for seed in seeds:
        generator = Generator().manual_seed(seed)
        weights, unary = (
            torch.randn(*shape, 5, 5, labels, generator=generator, dtype=torch.double) for shape in ((6,), ())
        )
        pairwise = torch.empty(grid.num_edges, dtype=torch.double).exponential_(1.0, generator=generator) / 2
        parts.append((unary, pairwise, weights, -weights.sum((-1, -2, -3)) / labels))
    stacked = [torch.stack(part) for part in zip(*parts, strict=True)]
    return CategoricalPatternCRF(*stacked, grid, composition, 0.0)


@pytest.mark.parametrize(("composition", "seeds"), [("sum", (4, 6, 9, 16)), ("min", (0, 2, 4, 16))])
def test_switched_patterns_lead_to_better_labels(composition, seeds):
    """From optima that expansion moves do not leave by themselves to the best of all."""
    d = five_by_five(seeds, composition)
    best = d.map("enumeration")[1]
    assert best.optimal.all() and (d.map("em", num_switches=0)[1].value < best.value - 0.1).all()
    labels, found = d.map("em")
    close(found.value, best.value, 1e-9)
    assert torch.equal(d.map("em", labels)[0], labels)


@pytest.mark.parametrize("labels", [2, 3])
def test_batches_of_one_part_alone(labels):
    """Weights of labels that all rows share, and as many optima as rows."""
    d = five_by_five((0,), labels=labels)
    shared = [part[0] for part in (d.unary_logits, d.pairwise, d.weights)]
    biases = d.pattern_logits + torch.tensor([[0.0], [2.0], [-9.0]])
    for method in ("em", "enumeration"):
        found = CategoricalPatternCRF(*shared, biases, Grid(5, 5), temperature=0.0).map(method)
        for row, bias in enumerate(biases):
            alone = CategoricalPatternCRF(*shared, bias, Grid(5, 5), temperature=0.0).map(method)
            assert torch.equal(found[0][row], alone[0])
            close(found[1].value[row], alone[1].value, 1e-12)


def test_value_beside_huge_weights():
    """Large numbers in place of -inf do not swallow what the other labels are worth."""
    unary = torch.tensor([[[-1e30, 0.0], [0.5, 3.25], [0.0, 0.0]]])
    d = CategoricalPatternCRF(unary, torch.ones(2), torch.zeros(0, 1, 3, 2), torch.zeros(0), Grid(1, 3))
    for method in ("em", "cut", "dual", "branch_and_bound", "enumeration"):
        labels, found = d.map(method)
        assert labels.tolist() == [[1, 1, 1]] and found.value == d.unnormalized_log_prob(labels) == 3.25


def test_mode_without_patterns():
    """Modes by a pass, where labelings are too many, against expansion moves and the junction tree; batched."""
    torch.manual_seed(4)
    grid = Grid(3, 12)
    none = torch.zeros(0, 3, 12, 3), torch.zeros(0)
    unary, pairwise = torch.randn(2, 3, 12, 3).double(), torch.rand(grid.num_edges).double()
    d = CategoricalPatternCRF(unary, pairwise, *none, grid)
    found, value = d.mode, d.unnormalized_log_prob(d.mode)
    assert found.dtype == torch.long and (d.map()[1].value <= value + 1e-9).all()
    factors = [([pixel], weights) for pixel, weights in enumerate(unary[0].flatten(0, 1))]
    factors += [(e.tolist(), p * (torch.eye(3).double() - 1)) for e, p in zip(grid.edges, pairwise, strict=True)]
    tree = JunctionTree.from_factors(factors, [3] * 36, CliqueTree.grid(3, 12, 3))
    assert torch.equal(tree.mode, found[0].flatten())
    for composition, number in (("sum", 3), ("min", 70)):
        weights, biases = torch.randn(number, 3, 12, 3).double(), torch.randn(number).double()
        cold = CategoricalPatternCRF(unary, pairwise, weights, biases, grid, composition, 0)
        at_zero = cold.map("enumeration")[1]
        assert at_zero.optimal.all() and (cold.map()[1].value <= at_zero.value + 1e-9).all()
        close(cold.unnormalized_log_prob(cold.mode), at_zero.value)
    each = CategoricalPatternCRF(unary.unsqueeze(1) + weights, pairwise, *none, grid)
    close(at_zero.value, (each.unnormalized_log_prob(each.mode) + biases).amax(-1))


def test_grid_without_patterns_equals_junction_tree():
    torch.manual_seed(2)
    for shape in ((4, 3), (3, 4)):
        grid = Grid(*shape)
        unary, pairwise = torch.randn(*shape, 3).double(), torch.randn(grid.num_edges).double()
        d = CategoricalPatternCRF(unary, pairwise, torch.zeros(0, *shape, 3), torch.zeros(0), grid)
        potts = torch.eye(3).double() - 1
        factors = [([pixel], weights) for pixel, weights in enumerate(unary.flatten(0, 1))]
        factors += [(edge.tolist(), p * potts) for edge, p in zip(grid.edges, pairwise, strict=True)]
        tree = JunctionTree.from_factors(factors, [3] * 12, CliqueTree.grid(*shape, 3))
        close(d.log_partition_function, tree.log_partition_function)
        close(d.marginals.flatten(0, 1), tree.marginals)
        close(d.entropy(), tree.entropy())


def test_shapes_of_one_class():
    """Patterns with weights for one label only, in a table that allows for one of each class, say what is where."""
    grid = Grid(6, 6)
    shapes = torch.zeros(2, 6, 6, 3)
    shapes[0, 1:4, 1:4, 1], shapes[1, 3:, 3:, 2] = 4.0, 4.0
    clean = torch.zeros(6, 6, dtype=torch.long)
    clean[1:4, 1:4], clean[3:, 3:] = 1, 2
    torch.manual_seed(0)
    seen = torch.randn(6, 6, 3) + 1.5 * torch.nn.functional.one_hot(clean, 3)
    weights = shapes - 0.3 * (shapes == 0) * (torch.arange(3) > 0)
    d = CategoricalPatternCRF(seen, torch.full((grid.num_edges,), 0.2), weights, torch.full((2,), -16.0), grid)
    alone = CategoricalPatternCRF(seen, torch.full((grid.num_edges,), 0.2), shapes[:0], torch.zeros(0), grid)
    assert (d.map()[0] != clean).sum() < (alone.map()[0] != clean).sum()


def test_learning():
    """Learning by the likelihood and by Pyro's inference, in a plate."""
    torch.manual_seed(1)
    grid, truth = Grid(2, 3), 0.7
    field = CategoricalPatternCRF(
        torch.zeros(2, 3, 3), torch.full((7,), truth), torch.zeros(0, 2, 3, 3), torch.zeros(0), grid
    )
    data = field.sample((2000,))

    def model():
        penalty = pyro.param("penalty", torch.tensor(0.1))
        prior = CategoricalPatternCRF(
            torch.zeros(2, 3, 3), penalty.expand(7), torch.zeros(0, 2, 3, 3), torch.zeros(0), grid
        )
        with pyro.plate("rows", 2000):
            pyro.sample("y", prior, obs=data)

    pyro.clear_param_store()
    svi = SVI(model, lambda: None, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(80):
        svi.step()
    assert pyro.param("penalty").item() == pytest.approx(truth, abs=0.06)


def test_batches():
    """Rows of their own, broadcast with parameters that all have in common, equal single fields."""
    torch.manual_seed(3)
    grid = Grid(2, 2)
    unary, weights = torch.randn(3, 1, 2, 2, 3).double(), torch.randn(2, 2, 2, 2, 3).double()
    biases, pairwise = torch.randn(2, 2).double(), torch.rand(4).double()
    d = CategoricalPatternCRF(unary, pairwise, weights, biases, grid)
    assert d.batch_shape == (3, 2) and d.map()[0].shape == (3, 2, 2, 2)
    value = d.sample()
    for i, j in itertools.product(range(3), range(2)):
        one = CategoricalPatternCRF(unary[i, 0], pairwise, weights[j], biases[j], grid)
        close(d.log_prob(value)[i, j], one.log_prob(value[i, j]))
        close(d.marginals[i, j], one.marginals)
        close(d.conditional_logits(value)[i, j], one.conditional_logits(value[i, j]))
        close(d.map()[1].value[i, j], one.map()[1].value)
    empty = d.expand((0, 3, 2))
    assert empty.sample((2,)).shape == (2, 0, 3, 2, 2, 2) and empty.map()[0].shape == (0, 3, 2, 2, 2)
    assert empty.marginals.shape == (0, 3, 2, 2, 2, 3) and empty.log_prob(empty.sample()).shape == (0, 3, 2)


def test_limits(monkeypatch):
    """Queries that are too large are refused, with the costs and alternatives."""
    grid = Grid(16, 16)
    d = CategoricalPatternCRF(
        torch.zeros(16, 16, 3), torch.ones(grid.num_edges), torch.zeros(2, 16, 16, 3), torch.zeros(2), grid
    )
    with pytest.raises(NotImplementedError, match=r"got 4\.4e\+10 over hidden states; conditional_logits, .* limit"):
        _ = d.log_partition_function
    with pytest.raises(
        NotImplementedError,
        match=r"mode: expected at most 2\^18 labelings, two labels, no pattern, .* got 3\^256, 2 patterns and 1",
    ):
        _ = d.mode
    assert d.unnormalized_log_prob(torch.zeros(16, 16)) == pytest.approx(2 * math.log(2))
    free = CategoricalPatternCRF(torch.zeros(16, 16, 3), None, torch.zeros(2, 16, 16, 3), torch.zeros(2), grid)
    assert free.log_partition_function == pytest.approx(256 * math.log(3) + 2 * math.log(2), rel=1e-6)
    with pytest.raises(NotImplementedError, match=r"at most 2\^18 labelings, got 3\^256"):
        free.entropy()
    with pytest.raises(NotImplementedError, match=r"'enumeration': exact sums are limited to .*, got 4\.4e\+10 over"):
        d.map("enumeration")
    for query in ("mean", "variance"):
        with pytest.raises(NotImplementedError, match=f"{query}: labels have none; use marginals"):
            getattr(free, query)
    monkeypatch.setattr(module, "MOST_NUMBERS", 5)
    one = CategoricalPatternCRF(torch.zeros(1, 2, 3), None, torch.zeros(1, 1, 2, 3), torch.zeros(1), Grid(1, 2))
    with pytest.raises(NotImplementedError, match=r"8\.0e\+00 over hidden states, 1\.8e\+01 over labelings"):
        _ = one.marginals


GOOD = {
    "unary_logits": torch.zeros(2, 3, 4),
    "pairwise": torch.zeros(7),
    "weights": torch.zeros(5, 2, 3, 4),
    "pattern_logits": torch.zeros(5),
    "grid": Grid(2, 3),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (2, 3)}, "grid: expected a Grid, got tuple"),
        ({"unary_logits": torch.zeros(3, 2, 4)}, r"unary_logits: expected shape \(..., 2, 3, 4\), got \(3, 2, 4\)"),
        ({"unary_logits": torch.zeros(2, 3, 1)}, "unary_logits: expected a last axis of at least two labels"),
        ({"unary_logits": torch.full((2, 3, 4), math.nan)}, "unary_logits"),
        ({"unary_logits": torch.full((2, 3, 4), math.inf)}, "unary_logits"),
        ({"unary_logits": [0.0]}, "unary_logits: expected a floating point tensor"),
        ({"pairwise": torch.zeros(6)}, r"pairwise: expected shape \(..., 7\), got \(6,\)"),
        ({"pairwise": torch.full((7,), -math.inf)}, "pairwise"),
        ({"weights": torch.zeros(5, 2, 3, 3)}, r"weights: expected shape \(..., 5, 2, 3, 4\), got \(5, 2, 3, 3\)"),
        ({"weights": torch.full((5, 2, 3, 4), math.inf)}, "weights: expected finite numbers"),
        ({"pattern_logits": torch.full((5,), math.inf)}, "pattern_logits"),
        ({"composition": "max"}, r"composition: expected one of \('sum', 'min'\) or a table, got 'max'"),
        ({"composition": torch.zeros(4)}, r"composition: expected shape \(..., 6\), got \(4,\)"),
        ({"temperature": -1.0}, "temperature: expected a finite number of at least 0, got -1.0"),
    ],
)
def test_wrong_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        CategoricalPatternCRF(**{**GOOD, **changes}, validate_args=True)


def test_wrong_values():
    d = CategoricalPatternCRF(**GOOD, temperature=np.int64(2))
    assert isinstance(d.temperature, float)
    for query in (d.log_prob, d.unnormalized_log_prob):
        with pytest.raises(ValueError, match="must be a Tensor"):
            query(np.zeros((2, 3)))
    inside, zero = torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3)
    for wrong in (-1.0, 4.0, 0.5, math.nan):
        with pytest.raises(ValueError):
            d.log_prob(zero + wrong)
        with pytest.raises(ValueError, match=r"value: expected integers in range\(4\) where observed"):
            d.condition(zero + wrong, inside)
    with pytest.raises(ValueError, match=r"start: expected integers in range\(4\), got other numbers"):
        d.map(start=zero + 4)
    with pytest.raises(ValueError, match="method: expected one of"):
        d.map("best")
    with pytest.raises(
        NotImplementedError, match="method: 'cut' needs two labels; 'em' and 'enumeration' take any number"
    ):
        d.map("cut")
    with pytest.raises(ValueError, match="max_cuts: expected an integer of at least 1, got 0"):
        d.map(max_cuts=0)
    negative = CategoricalPatternCRF(**{**GOOD, "pairwise": -torch.ones(7)})
    with pytest.raises(NotImplementedError, match="'em' needs penalties of at least 0 where there are more than two"):
        negative.map()


def test_empty_batches_and_values_that_are_no_labels():
    grid = Grid(2, 2)
    for labels, weights_batch, methods in (
        (3, (), ("em", "enumeration")),
        (2, (0,), ("em", "enumeration", "cut", "dual", "branch_and_bound")),
    ):
        weights = torch.zeros(*weights_batch, 2, 2, 2, labels)
        empty = CategoricalPatternCRF(torch.zeros(0, 2, 2, labels), None, weights, torch.zeros(2), grid)
        for method in methods:
            best, found = empty.map(method)
            assert best.shape == (0, 2, 2) and found.value.shape == (0,)
    field = CategoricalPatternCRF(
        torch.zeros(2, 2, 3), None, torch.zeros(0, 2, 2, 3), torch.zeros(0), grid, validate_args=False
    )
    value = torch.tensor([[0.5, 1.0], [2.0, 0.0]])
    assert field.log_prob(value) == field.pseudo_log_prob(value) == -math.inf


def two_labels(batch=(), shape=(3, 3), patterns=2):
    """A field of two labels, and the same one of zeros and ones."""
    grid = Grid(*shape)
    unary, weights = torch.randn(*batch, *shape, 2).double(), torch.randn(patterns, *shape, 2).double()
    pairwise, biases = torch.rand(*batch, grid.num_edges).double(), torch.randn(patterns).double()
    other = PatternCRF(
        unary[..., 1] - unary[..., 0],
        pairwise,
        weights[..., 1] - weights[..., 0],
        biases + weights[..., 0].sum((-1, -2)),
        grid,
    )
    return CategoricalPatternCRF(unary, pairwise, weights, biases, grid), other, unary[..., 0].sum((-1, -2))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_two_labels_have_what_zeros_and_ones_have(batch):
    """Bounds, the Bethe approximation, mean-field approximations, and the mode of large fields."""
    torch.manual_seed(0)
    d, other, constant = two_labels(batch)
    for bound, expected in zip(d.log_partition_bounds(), other.log_partition_bounds(), strict=True):
        close(bound, expected + constant)
    close(d.bethe_log_partition()[0], other.bethe_log_partition()[0] + constant)
    logits = d.mean_field_logits(3)
    close(logits.logsumexp(-1), torch.zeros(*batch, 3, 3).double())
    close(logits[..., 1] - logits[..., 0], other.mean_field_logits(3))
    large, other, _ = two_labels(batch, (5, 5), 4)
    assert large.mode.dtype == torch.long and torch.equal(large.mode.double(), other.mode)


def test_mean_field_of_several_labels():
    """A fixed point of the updates, the probabilities by themselves without couplings, differentiable."""
    torch.manual_seed(1)
    grid, size = Grid(2, 3), (2, 3, 3)
    unary, weights = torch.randn(size).double(), torch.randn(2, *size).double()
    unary[0, 0, 1] = -math.inf
    pairwise, biases = torch.randn(grid.num_edges).double() / 4, torch.randn(2).double()
    for composition, temperature in (("sum", 1.0), ("min", 0.5), (torch.randn(3).double(), 2.0)):
        d = CategoricalPatternCRF(unary, pairwise, weights, biases, grid, composition, temperature)
        found = d.mean_field_logits(500)
        probs = found.exp().reshape(6, 3)
        activations = (weights.reshape(2, 6, 3) * probs).sum((1, 2)) + biases
        slopes = pattern_slopes(activations, composition, temperature)
        expected = unary.reshape(6, 3) + torch.einsum("j,jdk->dk", slopes, weights.reshape(2, 6, 3))
        for (one, other), penalty in zip(grid.edges.tolist(), pairwise, strict=True):
            expected[one] += penalty * probs[other]
            expected[other] += penalty * probs[one]
        close(found.reshape(6, 3), expected.log_softmax(-1), 1e-6)
    free = CategoricalPatternCRF(unary, None, torch.zeros(1, *size).double(), biases[:1], grid)
    close(free.mean_field_logits(1), unary.log_softmax(-1))
    assert torch.autograd.gradcheck(
        lambda p: CategoricalPatternCRF(unary.nan_to_num(neginf=-3.0), p, weights, biases, grid).mean_field_logits(3),
        (pairwise.requires_grad_(),),
    )
    with pytest.raises(NotImplementedError, match="labels: expected two of them for Bethe approximations .* got 3"):
        d.bethe_log_partition()
    tied = CategoricalPatternCRF(unary, torch.full((grid.num_edges,), math.inf).double(), weights, biases, grid)
    with pytest.raises(NotImplementedError, match="mean_field_logits: expected finite penalties"):
        tied.mean_field_logits()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(fields(), st.booleans())
def test_bounds(case, strips):
    """Bounds contain log Z and log-probabilities, of narrow strips too, and given evidence."""
    d, table, penalties = case
    y, scores = brute_force(d, table, penalties)
    if scores.amax() == -math.inf or (strips and d.pairwise.isinf().any()):
        return
    log_z = scores.logsumexp(0)
    with pytest.MonkeyPatch.context() as patch:
        if strips:
            patch.setattr(field_bounds, "LABELINGS_OF_WHOLE", 2)
            patch.setattr(field_bounds, "LABELINGS_OF_STRIP", 2)
            patch.setattr(field_bounds, "NUMBERS_IN_STEP", 2**9)
        low, high = d.log_partition_bounds()
        assert low <= log_z + 1e-9 * (1 + log_z.abs()) and log_z <= high + 1e-9 * (1 + log_z.abs())
        value = y[scores.argmax()].reshape(d.event_shape)
        least, most = d.log_prob_bounds(value)
        exact = scores.amax() - log_z
        assert least <= exact + 1e-9 * (1 + log_z.abs()) and exact <= most + 1e-9 * (1 + log_z.abs())


@pytest.mark.slow
def test_bounds_of_large_fields():
    """Bounds of large fields of three labels contain an estimate, have derivatives, and are exact without couplings."""
    torch.manual_seed(2)
    grid = Grid(7, 8)
    unary, weights = torch.randn(7, 8, 3).double(), torch.randn(3, 7, 8, 3).double() / 4
    pairwise, biases = torch.rand(grid.num_edges).double().requires_grad_(), torch.randn(3).double()
    d = CategoricalPatternCRF(
        unary, pairwise, weights, biases, grid, estimator=AnnealedImportanceSampling(300, 30), validate_args=False
    )
    low, high = d.log_partition_bounds()
    value, error = d.estimate_log_partition()
    assert low < value + 4 * error and value - 4 * error < high and high - low < 40
    (gradient,) = torch.autograd.grad(low + high, pairwise)
    assert gradient.isfinite().all() and (gradient < 0).any()
    free = CategoricalPatternCRF(unary, torch.zeros(grid.num_edges), torch.zeros(0, 7, 8, 3), torch.zeros(0), grid)
    for bound in free.log_partition_bounds():
        close(bound, unary.logsumexp(-1).sum(), 1e-6)
