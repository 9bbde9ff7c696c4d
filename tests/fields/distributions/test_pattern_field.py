"""Fields under patterns, against enumeration."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import SVI, Trace_ELBO
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_structured.distributions import RBM, DeepPatternCRF, GridCRF, PatternCRF, RecursiveCardinality
from pyro_structured.fields.ops import field_sums as module
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.inference import AnnealedImportanceSampling
from pyro_structured.structures import Grid
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical

SHAPES = [(1, 1), (1, 4), (2, 2), (3, 2), (2, 4), (3, 3)]


@st.composite
def fields(draw, shapes=SHAPES):
    """A field of either sign of weights, clamps, impossible entries, compositions and temperatures; and its parts."""
    shape, number = draw(st.sampled_from(shapes)), draw(st.integers(0, 4))
    paired, seed = draw(st.booleans()), draw(st.integers(0, 2**31))
    scheme = draw(st.sampled_from(["sum", "min", "table"])) if number else "sum"
    temperature = draw(st.sampled_from([0, 0.5, 1, 2, 3]))
    scale = draw(st.sampled_from([0.5, 3.0, 50.0]))
    sign = draw(st.sampled_from([None, 1.0, -1.0]))
    torch.manual_seed(seed)
    grid = Grid(*shape)

    def random(*size):
        return scale * torch.randn(*size, dtype=torch.double)

    def some(size, share):
        return torch.rand(size) < share

    unary = random(*shape)
    unary = unary.masked_fill(some(shape, 0.1), -torch.inf).masked_fill(some(shape, 0.05), torch.inf)
    penalties = random(grid.num_edges)
    penalties = penalties.masked_fill(some(penalties.shape, 0.05), torch.inf) if paired else None
    weights = random(number, *shape)
    weights = weights if sign is None else sign * weights.abs()
    biases = random(number).masked_fill(some((number,), 0.1), -torch.inf)
    table = random(number + 1).masked_fill(some((number + 1,), 0.2), -torch.inf)
    if scheme != "table":
        table = torch.full((number + 1,), 0.0 if scheme == "sum" else -torch.inf).double()
        table[min(1, number)] = 0.0
    composition = table if scheme == "table" else scheme
    return PatternCRF(unary, penalties, weights, biases, grid, composition, temperature), table, penalties


def brute_force(d, table, penalties):
    """All labelings and their log-weights."""
    y = all_labelings(d.grid.num_pixels, table)
    odds = d.unary_logits.flatten()
    clamped = (odds == math.inf) & (y == 0)
    score = (odds.masked_fill(odds == math.inf, 0.0).where(y == 1, 0.0)).sum(-1).masked_fill(clamped.any(-1), -math.inf)
    if penalties is not None:
        ends = y[:, d.grid.edges]
        score = score - penalties.where(ends[..., 0] != ends[..., 1], 0.0).sum(-1)
    activations = y @ d.weights.flatten(1).T + d.pattern_logits
    units = all_labelings(len(d.pattern_logits), table)
    chosen = activations.unsqueeze(1).where(units > 0, 0.0).sum(-1) + table[units.sum(-1).long()]
    temperature = d.temperature
    best = chosen.amax(1) if temperature == 0 else temperature * (chosen / temperature).logsumexp(1)
    return y, score + best


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@settings(max_examples=400)
@given(fields(), st.booleans(), st.integers(0, 2**31))
def test_queries(check_binary_field, case, over_labelings, seed):
    d, table, penalties = case
    y, scores = brute_force(d, table, penalties)
    if over_labelings:
        d._sums.hidden = None
    found = check_binary_field(d, y, scores, seed)
    if found is not None:
        value, _ = found
        other = (y == 1 - value.flatten()).all(-1).nonzero()[0, 0]
        everything = torch.ones(d.event_shape, dtype=torch.bool)
        close(d.marginal_log_prob(1 - value, everything), (scores - scores.logsumexp(0))[other])


@settings(max_examples=100)
@given(fields(), st.integers(0, 2**31))
def test_conditionals(case, seed):
    """Log-odds of single pixels are differences of log-weights, where one is finite; and Besag's sum of them."""
    d, table, penalties = case
    y, scores = brute_force(d, table, penalties)
    torch.manual_seed(seed)
    rows = torch.randint(len(y), (5,))
    value = y[rows].reshape(-1, *d.event_shape)
    found = d.conditional_logits(value).flatten(1)
    places = 2 ** torch.arange(y.shape[1] - 1, -1, -1)
    labels = y[rows].long()
    base = (labels * places).sum(-1, keepdim=True) - labels * places
    on, off = scores[base + places], scores[base]
    possible = (on > -torch.inf) | (off > -torch.inf)
    torch.testing.assert_close(found[possible], (on - off)[possible], rtol=1e-9, atol=1e-7)
    total = (torch.where(labels == 1, on, off) - torch.logaddexp(on, off)).sum(-1)
    sure = possible.all(-1)
    torch.testing.assert_close(d.pseudo_log_prob(value)[sure], total[sure], rtol=1e-8, atol=1e-6)


@settings(max_examples=40)
@given(fields(shapes=[(1, 3), (2, 2)]))
def test_derivatives(case):
    """The gradient and Hessian-vector products of log Z, along all parameters, are those of the enumerated sum."""
    d, table, penalties = case
    if brute_force(d, table, penalties)[1].logsumexp(0) == -torch.inf or d.temperature == 0:
        return
    names = ["unary_logits", "weights", "pattern_logits", "composition"] + ["pairwise"] * (penalties is not None)
    leaves = {name: getattr(d, name).detach().clone().requires_grad_() for name in names}

    def make():
        pairwise = leaves.get("pairwise")
        return PatternCRF(
            leaves["unary_logits"],
            pairwise,
            leaves["weights"],
            leaves["pattern_logits"],
            d.grid,
            leaves["composition"],
            d.temperature,
        )

    results = []
    one = make()
    for log_z in (one.log_partition_function, _enumerated(make(), leaves)):
        first = torch.autograd.grad(log_z, list(leaves.values()), create_graph=True, allow_unused=True)
        first = [torch.zeros_like(x) if g is None else g for g, x in zip(first, leaves.values(), strict=True)]
        torch.manual_seed(0)
        along = sum((g.nan_to_num() * torch.randn_like(g)).sum() for g in first)
        second = torch.autograd.grad(along, list(leaves.values()), allow_unused=True)
        results.append(
            (first, [torch.zeros_like(x) if g is None else g for g, x in zip(second, leaves.values(), strict=True)])
        )
    for found, expected in zip(*(sum(map(list, result), []) for result in results), strict=True):
        finite = expected.isfinite()
        torch.testing.assert_close(found[finite], expected[finite], rtol=1e-7, atol=1e-7)
        assert found.isfinite().all()


def _enumerated(d, leaves):
    """Log Z with everything in the graph."""
    y = all_labelings(d.grid.num_pixels, leaves["weights"])
    odds = leaves["unary_logits"].flatten()
    finite = odds.masked_fill(odds.isinf(), 0.0)
    wrong = ((odds == math.inf) & (y == 0)) | ((odds == -math.inf) & (y == 1))
    score = (finite * y).sum(-1).masked_fill(wrong.any(-1), -math.inf)
    if "pairwise" in leaves:
        ends = y[:, d.grid.edges]
        differ = ends[..., 0] != ends[..., 1]
        p = leaves["pairwise"]
        score = score - (p.masked_fill(p == math.inf, 0.0) * differ).sum(-1)
        score = score.masked_fill((differ & (p == math.inf)).any(-1), -math.inf)
    units = all_labelings(len(d.pattern_logits), leaves["weights"])
    c, g = leaves["pattern_logits"], leaves["composition"]
    a = y @ leaves["weights"].flatten(1).T + c.masked_fill(c == -math.inf, 0.0)
    never = (units[:, c == -math.inf] > 0).any(-1) | (g == -math.inf)[units.sum(-1).long()]
    chosen = a @ units.T + g.masked_fill(g == -math.inf, 0.0)[units.sum(-1).long()]
    chosen = chosen.masked_fill(never, -math.inf)
    possible = score > -math.inf
    chosen = chosen[possible][:, ~never]
    return (score[possible] + d.temperature * (chosen / d.temperature).logsumexp(-1)).logsumexp(0)


@pytest.mark.parametrize(("composition", "temperature"), [("sum", 1), ("min", 1), ("sum", 2), ("sum", 0)])
@pytest.mark.parametrize("paired", [True, False])
def test_samples(composition, temperature, paired):
    torch.manual_seed(0)
    grid = Grid(2, 3)
    pairwise = torch.rand(2, 7) if paired else None
    weights, biases = 2 * torch.randn(2, 2, 2, 3), torch.randn(2)
    d = PatternCRF(torch.randn(2, 3), pairwise, weights, biases, grid, composition, temperature).expand((2,))
    y = all_labelings(6, torch.zeros(()))
    probs = d.log_prob(y.reshape(-1, 1, 2, 3)).double().exp()
    drawn = d.sample((50_000,)).flatten(-2)
    place = (drawn * 2 ** torch.arange(5, -1, -1)).sum(-1).long()
    for row in range(2):
        assert discrete_goodness_of_fit(probs[:, row], place[:, row].bincount(minlength=64)) > 2e-9


def test_compositions_are_cardinality_models():
    """The potential of hidden units is log Z of a RecursiveCardinality model of them."""
    torch.manual_seed(1)
    w, c, g = torch.randn(4, 2, 2).double(), torch.randn(4).double(), torch.randn(5).double()
    y = (torch.rand(10, 2, 2) < 0.5).double()
    for temperature in (1.0, 2.5):
        d = PatternCRF(torch.zeros(2, 2).double(), None, w, c, Grid(2, 2), g, temperature)
        activations = y.flatten(1) @ w.flatten(1).T + c
        hidden = RecursiveCardinality(activations / temperature, g / temperature)
        close(d.unnormalized_log_prob(y), temperature * hidden.log_partition_function)


def test_empty_composition_equals_independent_pixels():
    """Patterns without weights only add a constant."""
    unary = torch.randn(3, 4).double()
    d = PatternCRF(unary, None, torch.zeros(2, 3, 4).double(), torch.zeros(2).double(), Grid(3, 4))
    close(d.log_partition_function, torch.nn.functional.softplus(unary).sum() + 2 * math.log(2))
    close(d.marginals, unary.sigmoid())


def test_grid_field_equals_junction_tree():
    from pyro_structured.distributions import JunctionTree
    from pyro_structured.structures import CliqueTree

    torch.manual_seed(2)
    grid = Grid(5, 4)
    unary, pairwise = torch.randn(5, 4).double(), torch.randn(grid.num_edges).double()
    d = GridCRF(unary, pairwise, grid)
    potts = torch.tensor([[0.0, -1.0], [-1.0, 0.0]]).double()
    factors = [([pixel], torch.stack([u * 0, u])) for pixel, u in enumerate(unary.flatten())]
    factors += [(edge.tolist(), p * potts) for edge, p in zip(grid.edges, pairwise, strict=True)]
    tree = JunctionTree.from_factors(factors, [2] * 20, CliqueTree.grid(5, 4, 2))
    close(d.log_partition_function, tree.log_partition_function)
    close(d.marginals.flatten(), tree.marginals[:, 1])
    close(d.entropy(), tree.entropy())
    close(d.log_prob(d.mode), tree.log_prob(tree.mode))


def test_mode_of_large_fields():
    """The mode of a field that is too large for a pass is found by a cut, and clamps stay."""
    torch.manual_seed(3)
    for shape in ((6, 6), (24, 24)):
        grid = Grid(*shape)
        unary = torch.randn(2, *shape).double()
        unary[0, 0, 0], unary[1, 2, 3] = torch.inf, -torch.inf
        d = GridCRF(unary, torch.rand(grid.num_edges).double(), grid)
        best = d.mode
        assert best[0, 0, 0] == 1 and best[1, 2, 3] == 0
        flipped = best.unsqueeze(0).repeat(grid.num_pixels, 1, 1, 1)
        flipped = (flipped.flatten(-2) - torch.eye(grid.num_pixels).unsqueeze(1)).abs().reshape(flipped.shape)
        assert (d.unnormalized_log_prob(flipped) <= d.unnormalized_log_prob(best)).all()
    unary, penalties = torch.randn(16, 16).double(), torch.rand(3, Grid(16, 16).num_edges).double()
    several = GridCRF(unary, penalties, Grid(16, 16)).mode
    assert torch.equal(several, torch.stack([GridCRF(unary, each, Grid(16, 16)).mode for each in penalties]))
    checkers = GridCRF(torch.full((32, 32), 0.1), -torch.ones(Grid(32, 32).num_edges), Grid(32, 32))
    assert checkers.unnormalized_log_prob(checkers.mode) == pytest.approx(2 * 32 * 31 + 51.2)
    grid = Grid(32, 32)
    one_negative = torch.ones(grid.num_edges).index_fill(0, torch.tensor(5), -1.0)
    with pytest.raises(NotImplementedError, match="mode: expected a grid with a shorter side, or penalties"):
        _ = GridCRF(torch.zeros(32, 32), one_negative, grid).mode


def test_boltzmann_machine():
    torch.manual_seed(4)
    for visible, hidden in ((5, 3), (3, 6), (4, 0)):
        w, b, c = (torch.randn(*s).double() for s in ((2, hidden, visible), (visible,), (2, hidden)))
        d = RBM(w, b, c)
        v, h = all_labelings(visible, w), all_labelings(hidden, w)
        joint = (v @ b).unsqueeze(-1) + torch.einsum("vd,bjd,hj->bvh", v, w, h) + (h @ c.T).T.unsqueeze(1)
        scores = joint.logsumexp(-1)
        log_probs = scores - scores.logsumexp(-1, keepdim=True)
        close(d.log_prob(v.unsqueeze(1)), log_probs.T)
        close(d.marginals, log_probs.exp() @ v)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("paired", [False, True])
def test_table_without_patterns(temperature, paired):
    """The log-weight of no pattern being on is part of every labelling's."""
    grid, unary = Grid(2, 2), torch.randn(2, 2, dtype=torch.double)
    penalties = torch.rand(4, dtype=torch.double) if paired else None
    none, table = unary.new_zeros(0, 2, 2), torch.tensor([[2.0], [-1.0]], dtype=torch.double)
    d = PatternCRF(unary, penalties, none, unary.new_zeros(0), grid, table, temperature)
    free = PatternCRF(unary, penalties, none, unary.new_zeros(0), grid).expand([2])
    y = free.enumerate_support()
    close(d.log_prob(y), free.log_prob(y))
    close(d.unnormalized_log_prob(y), free.unnormalized_log_prob(y) + table[:, 0])
    close(d.log_partition_function, free.log_partition_function + table[:, 0])
    close(d.entropy(), free.entropy())
    close(d.map()[1].value, free.map()[1].value + table[:, 0])


def test_unnormalized_weights():
    """Unnormalised log-weights have the shape of log-probabilities, and refuse the same values."""
    d = PatternCRF(torch.zeros(2, 3), torch.ones(7), torch.randn(2, 2, 3), torch.zeros(2), Grid(2, 3)).expand([5])
    value = torch.zeros(2, 3)
    assert d.unnormalized_log_prob(value).shape == d.log_prob(value).shape == (5,)
    for query in (d.unnormalized_log_prob, d.conditional_logits, d.pseudo_log_prob):
        with pytest.raises(ValueError):
            query(torch.zeros(5, 3, 2))
        with pytest.raises(ValueError):
            query(torch.full((5, 2, 3), 0.5))


class LargestTensor(TorchDispatchMode):
    """Remembers how many bytes the largest tensor takes."""

    size = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        for tensor in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.untyped_storage().nbytes())
        return found


def test_many_labelings_of_many_fields(monkeypatch):
    """Weights of patterns are not repeated for every labelling."""
    torch.manual_seed(4)
    parts = [part.double() for part in (torch.randn(20, 30, 6), torch.randn(20, 6), torch.randn(20, 30))]
    labels, d = torch.ones(64, 20, 6), RBM(*parts)
    with LargestTensor() as largest:
        found = d.unnormalized_log_prob(labels)
    assert largest.size == 8 * 64 * 20 * 30
    each = [RBM(*(part[row] for part in parts)) for row in range(20)]
    close(found, torch.stack([one.unnormalized_log_prob(labels[:, 0]) for one in each], 1))
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", 5000)
    with LargestTensor() as largest:
        found = d.log_partition_function
    assert d._sums.hidden is None and largest.size < 8 * 10_000
    close(found, torch.stack([one.unnormalized_log_prob(one.enumerate_support()).logsumexp(0) for one in each]))


def test_no_rows_and_no_samples():
    """Batches and samples of size 0 have all queries."""
    grid, none = Grid(2, 2), torch.zeros(0, 2, 2)
    weights, biases = torch.ones(3, 2, 2), torch.zeros(3)
    for d in (
        GridCRF(none, torch.zeros(4), grid),
        PatternCRF(none, None, weights, biases, grid),
        PatternCRF(none, None, weights, biases, grid, "min"),
        PatternCRF(none, None, weights, biases, grid, torch.zeros(0, 4)),
        PatternCRF(none, torch.zeros(0, 4), weights.expand(0, -1, -1, -1), biases.expand(0, -1), grid),
    ):
        for query in ("marginals", "marginal_logits", "mode", "variance"):
            assert getattr(d, query).shape == (0, 2, 2)
        assert d.log_partition_function.shape == d.entropy().shape == d.log_prob(none).shape == (0,)
        assert d.sample((3,)).shape == d.perfect_sample((3,)).shape == (3, 0, 2, 2)
        assert d.map("em")[0].shape == (0, 2, 2)
        if d.composition.shape[0]:
            assert d.map("branch_and_bound")[0].shape == (0, 2, 2) and d.bethe_log_partition()[1].shape == (0,)
        for bound in (*d.log_partition_bounds(), *d.log_prob_bounds(none)):
            assert bound.shape == (0,)
        d.estimator = AnnealedImportanceSampling(2, 2)
        for estimate in d.estimate_log_partition():
            assert estimate.shape == (0,)
    assert PatternCRF(torch.zeros(2, 2), None, weights, biases, grid).sample((0,)).shape == (0, 2, 2)


def test_limits(monkeypatch):
    """Queries that are too large are refused, with the costs and alternatives."""
    grid = Grid(32, 32)
    d = PatternCRF(torch.zeros(32, 32), None, torch.zeros(32, 32, 32), torch.zeros(32), grid)
    for query in ("log_partition_function", "marginals"):
        with pytest.raises(
            NotImplementedError, match=r"limited to 1\.1e\+09 numbers, got 4\.4e\+12 over hidden states"
        ):
            getattr(d, query)
    assert d.unnormalized_log_prob(torch.zeros(32, 32)) == pytest.approx(32 * math.log(2))
    small = PatternCRF(torch.zeros(32, 32), None, torch.zeros(4, 32, 32), torch.zeros(4), grid)
    assert small.log_partition_function == pytest.approx(1028 * math.log(2))
    with pytest.raises(NotImplementedError, match="all labelings of at most 18 variables, got 1024; "):
        small.entropy()
    half = PatternCRF(torch.zeros(5, 4), None, torch.zeros(4, 5, 4), torch.zeros(4), Grid(5, 4), temperature=0.5)
    with pytest.raises(NotImplementedError, match="no way to sum"):
        half.sample()
    monkeypatch.setattr(module, "MOST_NUMBERS", 5)
    with pytest.raises(NotImplementedError, match="8.0e.00 over hidden states, 3.2e.01 over labelings"):
        _ = RBM(torch.zeros(1, 4), torch.zeros(4), torch.zeros(1)).marginals


GRID = Grid(2, 3)
GOOD = {
    "unary_logits": torch.zeros(2, 3),
    "pairwise": torch.zeros(7),
    "weights": torch.zeros(4, 2, 3),
    "pattern_logits": torch.zeros(4),
    "grid": GRID,
}


@pytest.mark.parametrize(
    ("field", "advice"),
    [
        (
            DeepPatternCRF(
                *(torch.zeros(size) for size in ((20, 20), 760, (30, 20, 20), 30, (1, 30), 1)), Grid(20, 20)
            ),
            "; no pairwise terms, fewer patterns or a smaller grid make",
        ),
        (GridCRF(torch.zeros(30, 30), torch.zeros(1740), Grid(30, 30)), "; grids with a shorter side make"),
        (
            RBM(torch.zeros(40, 40), torch.zeros(40), torch.zeros(40)),
            "; fewer hidden units, or at most 18",
        ),
    ],
)
def test_advice_for_every_field(field, advice):
    """Errors advise only changes of arguments that the distribution has."""
    with pytest.raises(NotImplementedError, match=advice):
        _ = field.log_partition_function


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (2, 3)}, "grid: expected a Grid, got tuple"),
        ({"unary_logits": torch.zeros(3, 2)}, r"unary_logits: expected shape \(..., 2, 3\), got \(3, 2\)"),
        ({"unary_logits": torch.full((2, 3), math.nan)}, "unary_logits"),
        ({"pairwise": torch.zeros(6)}, r"pairwise: expected shape \(..., 7\), got \(6,\)"),
        ({"pairwise": torch.full((7,), -math.inf)}, "pairwise"),
        ({"weights": torch.zeros(3, 2, 3)}, r"weights: expected shape \(..., 4, 2, 3\), got \(3, 2, 3\)"),
        ({"weights": torch.full((4, 2, 3), math.inf)}, "weights: expected finite numbers"),
        ({"pattern_logits": torch.tensor(1.0)}, "pattern_logits: expected at least one axis"),
        ({"pattern_logits": torch.full((4,), math.inf)}, "pattern_logits"),
        (
            {"pattern_logits": torch.zeros(5, 4), "unary_logits": torch.zeros(2, 2, 3)},
            "pattern_logits: expected a batch",
        ),
        ({"composition": "max"}, r"composition: expected one of \('sum', 'min'\) or a table, got 'max'"),
        ({"composition": torch.zeros(4)}, r"composition: expected shape \(..., 5\), got \(4,\)"),
        ({"temperature": -1.0}, "temperature: expected a finite number of at least 0, got -1.0"),
        ({"temperature": "1"}, "temperature: expected a finite number of at least 0, got '1'"),
        ({"temperature": math.nan}, "temperature: expected a finite number of at least 0, got nan"),
        (
            {"weights": torch.zeros(0, 2, 3), "pattern_logits": torch.zeros(0), "composition": "min"},
            "composition: .* pattern",
        ),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        PatternCRF(**{**GOOD, **changes})


def test_bad_evidence():
    d = PatternCRF(**GOOD)
    with pytest.raises(ValueError, match="value: expected zeros and ones where observed"):
        d.condition(torch.full((2, 3), 0.5), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"value: expected a shape that broadcasts with values of shape \(2, 3\)"):
        d.condition(torch.zeros(3, 2), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"observed: expected a shape that broadcasts"):
        GridCRF(torch.zeros(1, 3), torch.zeros(2), Grid(1, 3)).condition(
            torch.zeros(1, 3), torch.ones(5, 3, dtype=torch.bool)
        )


@pytest.mark.slow
def test_pseudo_likelihood_learns():
    """The pseudo-likelihood is largest near the parameters of the data; conditionals of batches and expansions."""
    torch.manual_seed(5)
    grid = Grid(3, 3)
    truth = PatternCRF(torch.randn(3, 3), torch.ones(12), 2 * torch.randn(1, 3, 3), torch.zeros(1), grid)
    data = truth.sample((20_000,))
    leaves = [torch.zeros(3, 3), torch.zeros(12), truth.weights.clone(), truth.pattern_logits.clone()]
    optimizer = torch.optim.LBFGS([leaf.requires_grad_() for leaf in leaves], line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -PatternCRF(*leaves, grid).pseudo_log_prob(data).mean()
        value.backward()
        return value

    for _ in range(10):
        optimizer.step(loss)
    learned = PatternCRF(*(leaf.detach() for leaf in leaves), grid)
    torch.testing.assert_close(learned.marginals, truth.marginals, atol=0.02, rtol=0)
    both = truth.expand((2,))
    assert torch.equal(both.conditional_logits(data[:5].unsqueeze(1))[:, 1], truth.conditional_logits(data[:5]))


def test_a_latent_field_in_a_model():
    """Maximum likelihood of weights by SVI, the field observed: the gradient of the loss is that of log_prob."""
    pyro.set_rng_seed(0)
    grid = Grid(2, 2)
    data = GridCRF(torch.tensor([[1.0, 0.0], [0.0, -1.0]]), torch.ones(4), grid).sample((2000,))

    def model(y):
        unary = pyro.param("unary", torch.zeros(2, 2))
        pairwise = pyro.param("pairwise", torch.full((4,), 0.1), constraint=dist.constraints.positive)
        with pyro.plate("images", len(y)):
            pyro.sample("y", GridCRF(unary, pairwise, grid), obs=y)

    pyro.clear_param_store()
    svi = SVI(model, lambda y: None, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(150):
        svi.step(data)
    learned = GridCRF(pyro.param("unary").detach(), pyro.param("pairwise").detach(), grid)
    torch.testing.assert_close(learned.marginals, data.mean(0), atol=2e-3, rtol=0)


def test_gradients_pass_by_what_expansion_repeats():
    """Otherwise their memory would be that of the whole batch, as plates expand what they contain."""
    weights, logits = torch.randn(3, 4, requires_grad=True), torch.zeros(4, requires_grad=True)
    d = RBM(weights, logits, torch.zeros(3)).expand([7, 1]).expand([7, 5])
    value = torch.ones(4)
    seen, nodes = set(), [d.log_prob(value).sum().grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [parent for parent, _ in node.next_functions]
    leaves = [node for node in seen if hasattr(node, "variable")]
    assert {id(leaf.variable) for leaf in leaves} == {id(weights), id(logits)}
    for node in seen:
        parents = [parent for parent, _ in node.next_functions if parent in leaves]
        assert not parents or "Expand" not in node.name()


def test_conditionals_where_no_label_is_left():
    """NaN, by neighbours and by what is known; what is impossible about others is not looked at."""

    def check(field, value, expected):
        found = field.conditional_logits(torch.tensor([value]))
        torch.testing.assert_close(found, torch.tensor([expected]), equal_nan=True)

    alike = torch.full((2,), torch.inf)
    none = torch.zeros(1, 1, 3), torch.zeros(1)
    d = PatternCRF(torch.zeros(1, 3), alike, *none, Grid(1, 3))
    check(d, [0.0, 0.0, 1.0], [-torch.inf, torch.nan, -torch.inf])
    assert d.pseudo_log_prob(torch.tensor([[0.0, 0.0, 1.0]])) == -torch.inf
    certain = PatternCRF(torch.tensor([[torch.inf, 0.0, 0.0]]), None, *none, Grid(1, 3))
    excluded = certain.condition(torch.zeros(1, 3), torch.tensor([[True, False, False]]))
    check(excluded, [0.0, 0.0, 0.0], [torch.nan, 0.0, 0.0])
    never = PatternCRF(torch.zeros(1, 3), None, none[0], torch.tensor([-torch.inf]), Grid(1, 3), "min")
    check(never, [0.0, 0.0, 0.0], 3 * [torch.nan])
