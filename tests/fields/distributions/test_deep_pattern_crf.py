"""Fields with two layers of hidden units, against enumeration of all labels and of both layers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import RBM, DeepPatternCRF, PatternCRF
from pyro_structured.fields.ops import field as module
from pyro_structured.fields.ops.field_sums import FieldSums
from pyro_structured.fields.ops.field_sweeps import check_sweeps, sweep
from pyro_structured.fields.ops.single_layer import single_layer
from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.inference import AnnealedImportanceSampling
from pyro_structured.structures import Grid
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical

SHAPES = [(1, 1), (1, 4), (2, 2), (3, 2), (2, 4), (3, 3)]


def normal(*shape):
    return torch.randn(*shape, dtype=torch.double)


@st.composite
def fields(draw, shapes=SHAPES, infinite=True):
    """A field of either sign of weights, with clamps and impossible entries, and its penalties."""
    shape, paired = draw(st.sampled_from(shapes)), draw(st.booleans())
    number, upper = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    scale, sign = draw(st.sampled_from([0.5, 3.0, 50.0])), draw(st.sampled_from([None, 1.0, -1.0]))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    grid = Grid(*shape)

    def some(size, share):
        return torch.rand(size) < share * infinite

    unary = scale * normal(*shape)
    unary = unary.masked_fill(some(shape, 0.1), -torch.inf).masked_fill(some(shape, 0.05), torch.inf)
    penalties = scale * normal(grid.num_edges)
    penalties = penalties.masked_fill(some(penalties.shape, 0.05), torch.inf) if paired else None
    weights, above = scale * normal(number, *shape), scale * normal(upper, number)
    if sign is not None:
        weights, above = sign * weights.abs(), sign * above.abs()
    biases = (scale * normal(number)).masked_fill(some((number,), 0.1), -torch.inf)
    logits = (scale * normal(upper)).masked_fill(some((upper,), 0.1), -torch.inf)
    return DeepPatternCRF(unary, penalties, weights, biases, above, logits, grid), penalties


def brute_force(d, penalties):
    """All labelings, shape ``(2 ** D, D)``, and log-weights of them and both layers, ``(2 ** D, 2 ** J, 2 ** K)``."""
    y = all_labelings(d.grid.num_pixels, d.weights)
    odds = d.unary_logits.flatten()
    clamped = (odds == math.inf) & (y == 0)
    score = (odds.masked_fill(odds == math.inf, 0.0).where(y == 1, 0.0)).sum(-1).masked_fill(clamped.any(-1), -math.inf)
    if penalties is not None:
        ends = y[:, d.grid.edges]
        score = score - penalties.where(ends[..., 0] != ends[..., 1], 0.0).sum(-1)
    h, g = all_labelings(len(d.pattern_logits), y), all_labelings(len(d.upper_logits), y)
    activations = y @ d.weights.flatten(1).T + d.pattern_logits
    below = activations.unsqueeze(1).where(h > 0, 0.0).sum(-1)
    above = d.upper_logits.where(g > 0, 0.0).sum(-1)
    return y, score[:, None, None] + below[:, :, None] + (h @ d.upper_weights.T) @ g.T + above


def scores_of(d, penalties):
    y, joint = brute_force(d, penalties)
    return y, joint.flatten(1).logsumexp(-1)


def close(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def plain(d, paired=True):
    return PatternCRF(d.unary_logits, d.pairwise if paired else None, d.weights, d.pattern_logits, d.grid)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(fields(), st.booleans(), st.integers(0, 2**31))
def test_queries(check_binary_field, case, over_labelings, seed):
    d, penalties = case
    y, scores = scores_of(d, penalties)
    if over_labelings:
        d._sums.hidden = None
    found = check_binary_field(d, y, scores, seed)
    if found is not None:
        _, given_value = found
        whole = single_layer(given_value.description)
        sums, (height, width) = FieldSums(whole, ""), d.event_shape
        close(sums.log_z + whole.base, given_value.log_partition_function.unsqueeze(0), 1e-9)
        on = sums.marginals[1].chunk(2, -1)[1].reshape(whole.shape)
        close(on[:height, :width], given_value.marginals, 1e-9)


@settings(max_examples=60, deadline=None)
@given(fields(), st.integers(0, 2**31))
def test_conditionals(case, seed):
    """Log-odds of single pixels are differences of log-weights; and Besag's sum of them."""
    d, penalties = case
    y, scores = scores_of(d, penalties)
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


PARAMETERS = ("unary_logits", "pairwise", "weights", "pattern_logits", "upper_weights", "upper_logits")


@settings(max_examples=30, deadline=None)
@given(fields(shapes=[(1, 3), (2, 2)], infinite=False))
def test_derivatives(case):
    """The gradient and Hessian-vector products of log Z along all parameters are those of the enumerated sum."""
    d, penalties = case
    names = [name for name in PARAMETERS if name != "pairwise" or penalties is not None]
    leaves = {name: getattr(d, name).clone().requires_grad_() for name in names}
    one = DeepPatternCRF(*({"pairwise": None, **leaves}[name] for name in PARAMETERS), d.grid)
    results = []
    for log_z in (one.log_partition_function, brute_force(one, leaves.get("pairwise"))[1].logsumexp((0, 1, 2))):
        first = torch.autograd.grad(log_z, list(leaves.values()), create_graph=True, materialize_grads=True)
        torch.manual_seed(0)
        along = sum((g * torch.randn_like(g)).sum() for g in first)
        second = torch.autograd.grad(along, list(leaves.values()), materialize_grads=True)
        results.append([*first, *second])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("paired", [False, True])
def test_special_cases(paired):
    torch.manual_seed(2)
    grid = Grid(2, 3)
    unary, pairs, weights, biases = normal(2, 2, 3), normal(7) if paired else None, normal(3, 2, 3), normal(2, 3)
    y = all_labelings(6, unary).reshape(-1, 1, 2, 3)
    shallow = PatternCRF(unary, pairs, weights, biases, grid)
    apart = DeepPatternCRF(unary, pairs, weights, biases, normal(4, 3) * 0, normal(4), grid)
    constant = torch.nn.functional.softplus(apart.upper_logits).sum()
    close(apart.unnormalized_log_prob(y), shallow.unnormalized_log_prob(y) + constant)
    close(apart.log_partition_function, shallow.log_partition_function + constant)
    close(apart.log_prob(y), shallow.log_prob(y))
    close(apart.conditional_logits(y[:, 0:1].expand(-1, 2, 2, 3)), shallow.conditional_logits(y.expand(-1, 2, 2, 3)))
    close(apart.mean_field_logits(200), shallow.mean_field_logits(200), 1e-8)
    none = DeepPatternCRF(unary, pairs, weights, biases, weights.new_zeros(0, 3), biases.new_zeros(0), grid)
    for query in ("log_partition_function", "marginals", "mode"):
        close(getattr(none, query), getattr(shallow, query))
    close(none.log_prob(y), shallow.log_prob(y))
    close(none.entropy(), shallow.entropy())
    close(none.mean_field_logits(3), shallow.mean_field_logits(3))
    bare = DeepPatternCRF(unary, pairs, weights[:0], biases[:, :0], weights.new_zeros(4, 0), apart.upper_logits, grid)
    field = PatternCRF(unary, pairs, weights[:0], biases[:, :0], grid)
    close(bare.unnormalized_log_prob(y), field.unnormalized_log_prob(y) + constant)
    close(bare.log_partition_function, field.log_partition_function + constant)
    close(bare.entropy(), field.entropy())
    close(bare.marginals, field.marginals)
    assert bare.sample((5,)).shape == (5, 2, 2, 3)


def some_field(shape=(2, 3), number=3, upper=2, paired=True, batch=(), attractive=False, scale=1.0):
    grid = Grid(*shape)
    unary, pairs = normal(*batch, *shape), scale * normal(grid.num_edges)
    weights, above = 2 * scale * normal(number, *shape), 2 * scale * normal(upper, number)
    if attractive:
        pairs, weights, above = pairs.abs() / 2, weights.abs() / 2, above.abs() / 2
    biases, logits = -weights.sum((1, 2)) / 2, -above.sum(-1) / 2 + normal(*batch, upper) / 2
    return DeepPatternCRF(unary, pairs if paired else None, weights, biases, above, logits, grid)


def check_samples(d, drawn):
    """Goodness of fit of samples of shape ``(number,) + batch + event``."""
    size = d.event_shape.numel()
    values = all_labelings(size, torch.zeros(()))
    probs = d.log_prob(values.reshape((-1,) + (1,) * len(d.batch_shape) + d.event_shape)).double().exp().flatten(1)
    places = (drawn.double().flatten(-2) * 2 ** torch.arange(size - 1, -1, -1)).sum(-1).long().flatten(1)
    for row in range(places.shape[1]):
        counts = places[:, row].bincount(minlength=2**size)
        assert discrete_goodness_of_fit(probs[:, row], counts) > 2e-9


@pytest.mark.parametrize("over_labelings", [False, True])
@pytest.mark.parametrize(("paired", "upper"), [(True, 2), (False, 5)])
def test_samples(paired, upper, over_labelings):
    torch.manual_seed(3)
    d = some_field(batch=(2,), paired=paired, upper=upper)
    if over_labelings:
        d._sums.hidden = None
    check_samples(d, d.sample((40_000,)))
    repeated = some_field(paired=paired, upper=upper).expand((2,))
    check_samples(repeated, repeated.sample((20_000,)))


@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
@pytest.mark.parametrize("upper", [2, 5])
def test_perfect_samples(shape, upper):
    torch.manual_seed(4)
    d = some_field(shape, upper=upper, attractive=True, batch=(2,))
    value, observed = torch.ones(shape), torch.zeros(shape, dtype=torch.bool)
    observed[0, 0] = True
    check_samples(d, d.perfect_sample((20_000,)))
    drawn = d.condition(value, observed).perfect_sample((20_000,))
    check_samples(d.condition(value, observed), drawn)
    large = some_field((20, 24), 30, 17, attractive=True, scale=0.05)
    assert large.sample((2,)).shape == (2, 20, 24)
    with pytest.raises(NotImplementedError, match="an even number is negative in every cycle"):
        some_field().perfect_sample()


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize(("number", "upper"), [(3, 2), (2, 4), (3, 0), (0, 3)])
@pytest.mark.parametrize("paired", [False, True])
def test_sweeps_leave_the_field_as_it_is(number, upper, paired):
    """Exact samples stay exact samples, and labels that are all alike become some."""
    torch.manual_seed(5)
    d = some_field(number=number, upper=upper, paired=paired, batch=(2,))
    d = d.condition(torch.zeros(2, 3), torch.arange(6).reshape(2, 3) == 4)
    field = d.description
    start = d.sample((20_000,)).transpose(0, 1).flatten(-2).double()
    check_samples(d, sweep(field, start, 1).unflatten(-1, (2, 3)).transpose(0, 1))
    zeros = start.new_zeros(2, 20_000, 6)
    check_samples(d, sweep(field, zeros, 60).unflatten(-1, (2, 3)).transpose(0, 1))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(fields(shapes=[(1, 4), (2, 2), (3, 2), (2, 3)]), st.integers(0, 2**31))
def test_bounds(case, seed):
    """Bounds contain log Z and log-probabilities, with clamped labels and upper units, and given evidence."""
    d, penalties = case
    y, scores = scores_of(d, penalties)
    if scores.logsumexp(0) == -torch.inf:
        return
    torch.manual_seed(seed)
    value = y[torch.multinomial((scores - scores.logsumexp(0)).exp(), 1)[0]].reshape(d.event_shape)
    for one in (d, d.condition(value, torch.rand(d.event_shape) < 0.3)):
        low, high = one.log_partition_bounds()
        slack = 1e-9 * (1 + one.log_partition_function.abs())
        assert low <= one.log_partition_function + slack and one.log_partition_function <= high + slack
        least, most = one.log_prob_bounds(value)
        assert least <= one.log_prob(value) + slack and one.log_prob(value) <= most + slack


@pytest.mark.parametrize("paired", [False, True])
def test_bethe_approximation(paired):
    torch.manual_seed(6)
    d = some_field((3, 3), attractive=True, paired=paired, batch=(2,), scale=0.3)
    d.unary_logits[0, 0, 0] = torch.inf
    found, balanced = d.bethe_log_partition()
    assert balanced.all() and (found < d.log_partition_function).all()
    assert (found > d.log_partition_function - 0.2).all()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("reverse", [False, True])
def test_estimates(reverse, monkeypatch):
    torch.manual_seed(7)
    d = some_field(batch=(2,), scale=0.7)
    d.unary_logits[0, 1, 1] = -torch.inf
    d = d.condition(torch.ones(2, 3), torch.arange(6).reshape(2, 3) == 0)
    estimator = AnnealedImportanceSampling(300, 200, reverse)
    d.estimator = estimator
    found, error = d.estimate_log_partition()
    assert ((found - d.log_partition_function).abs() < 6 * error + 1e-3).all() and (error < 0.1).all()
    value = d.sample()
    exact, bounds = d.log_prob(value), d.log_prob_bounds(value)
    d.estimator = estimator
    found, error = d.estimate_log_prob(value)
    assert ((found - exact).abs() < 6 * error + 1e-3).all()
    monkeypatch.setattr(module, "MOST_STATES", 2)
    d.estimator = estimator
    found, error = d.estimate_log_prob(value)
    assert ((found - exact).abs() < 6 * error + 1e-3).all() and (error < 0.1).all()
    least, most = d.log_prob_bounds(value)
    assert (least <= exact + 1e-9).all() and (exact <= most + 1e-9).all()
    assert (least <= bounds[0] + 1e-9).all() and (bounds[1] <= most + 1e-9).all()


@pytest.mark.parametrize("paired", [False, True])
def test_mean_field(paired):
    """Log-odds are a fixed point of the updates of both layers; weak couplings leave it near the marginals."""
    torch.manual_seed(8)
    d = some_field((3, 2), 3, 4, paired, batch=(2,), scale=0.1)
    d.unary_logits[0, 0, 0], d.unary_logits[1, 2, 1] = torch.inf, -torch.inf
    logits = d.mean_field_logits(500)
    assert logits.shape == (2, 3, 2) and logits[0, 0, 0] == torch.inf and logits[1, 2, 1] == -torch.inf
    probs, upper = logits.sigmoid().flatten(1), d.upper_logits.sigmoid()
    for _ in range(500):
        on = (probs @ d.weights.flatten(1).T + d.pattern_logits + upper @ d.upper_weights).sigmoid()
        upper = (on @ d.upper_weights.T + d.upper_logits).sigmoid()
    expected = d.unary_logits.flatten(1) + on @ d.weights.flatten(1)
    if paired:
        ends = d.grid.edges
        for one, other in (ends.T, ends.flip(1).T):
            expected = expected.index_add(1, one, d.pairwise * (2 * probs[:, other] - 1))
    close(logits.flatten(1), expected, 1e-7)
    torch.testing.assert_close(logits.sigmoid(), d.marginals, atol=0.1, rtol=0)


@settings(max_examples=40, deadline=None)
@given(fields(shapes=[(2, 3), (3, 3)]))
def test_good_labels(case):
    """Steps never make labels worse, ends are fixed points of them, and bounds contain the best."""
    d, penalties = case
    d = DeepPatternCRF(
        d.unary_logits,
        None if penalties is None else d.pairwise.abs(),
        d.weights,
        d.pattern_logits,
        d.upper_weights,
        d.upper_logits,
        d.grid,
    )
    y = d.enumerate_support().flatten(1).double()
    scores = d.unnormalized_log_prob(y.reshape(-1, *d.event_shape))
    if scores.amax() == -torch.inf:
        return
    start = y[torch.multinomial((scores > -torch.inf).double(), 4, replacement=True)].reshape(4, *d.event_shape)
    before, values = d.unnormalized_log_prob(start), []
    field = d.description.rows(torch.zeros(4, dtype=torch.long))
    network = FieldCut(field.edges.numpy(), y.shape[1])
    moved = network.maximize(field.tangent(start.flatten(1).double()).odds.numpy(), field.penalties.numpy())
    after = d.unnormalized_log_prob(torch.from_numpy(moved).double().reshape(start.shape))
    assert (after >= before - 1e-9 * (1 + before.abs())).all()
    for cuts in (1, 2, 3, 100):
        best, found = d.map("em", start, cuts)
        close(found.value, d.unnormalized_log_prob(best))
        values.append(found.value)
    steps = torch.stack([before.amax(), *values])
    assert (steps.diff() >= -1e-9).all()
    assert (d.map("em", best)[1].value >= found.value - 1e-9).all()
    for method in ("dual", "branch_and_bound"):
        best, found = d.map(method, start[0], max_cuts=200)
        close(found.value, d.unnormalized_log_prob(best))
        slack = 1e-9 * (1 + scores.amax().abs())
        assert found.value <= scores.amax() + slack and scores.amax() <= found.upper_bound + slack
        assert not found.optimal or found.value >= scores.amax() - 2 * slack


@settings(max_examples=40, deadline=None)
@given(fields(shapes=[(1, 3), (2, 2)]))
def test_tangents(case):
    """Expectation steps take the probabilities of patterns given the labels, upper units summed out."""
    d, penalties = case
    y, joint = brute_force(d, penalties)
    possible = joint.flatten(1).amax(1) > -torch.inf
    if not possible.any():
        return
    probs = joint[possible].flatten(1).softmax(-1).unflatten(-1, joint.shape[1:]).sum(-1)
    shares = probs @ all_labelings(len(d.pattern_logits), y)
    field = d.description.rows(torch.zeros(len(shares), dtype=torch.long))
    free = field.odds.isfinite()
    found = field.tangent(y[possible]).odds[free] - field.odds[free]
    close(found, (shares @ d.weights.flatten(1))[free], 1e-8)


def test_steps_take_how_far_patterns_are_on():
    """Steps use the probabilities of patterns: labels follow a pattern that is on because of another pattern."""
    patterns = torch.zeros(2, 1, 4)
    patterns[0, 0, :2], patterns[1, 0, 2:] = 4.0, 4.0
    unary, grid = torch.tensor([[3.0, 3.0, -1.5, -1.5]]), Grid(1, 4)
    together, biases = torch.tensor([[6.0, 6.0]]), torch.tensor([-4.0, -5.0])
    d = DeepPatternCRF(unary, None, patterns, biases, together, torch.tensor([-6.0]), grid)
    start = (unary > 0).float()
    assert torch.equal(d.map("em", start)[0], torch.ones(1, 4))
    assert torch.equal(plain(d, paired=False).map("em", start)[0], start)
    assert torch.equal(d.mode, torch.ones(1, 4))


def test_bound_of_many_states_of_the_upper_units():
    """One labelling is best together with upper units; another one has more states of them, and is more probable."""
    patterns = torch.tensor([[[8.0, 8.0, 8.0, -8.0, -8.0, -8.0]], [[-8.0, -8.0, -8.0, 8.0, 8.0, 8.0]]])
    unary, grid = torch.tensor([[-2.0, -2.0, -2.0, -2.3, -2.3, -2.3]]), Grid(1, 6)
    biases, above = torch.tensor([-14.0, -14.0]), torch.zeros(4, 2)
    above[:, 1] = 6.0
    d = DeepPatternCRF(unary, None, patterns, biases, above, torch.full((4,), -6.0), grid)
    for method in ("cut", "branch_and_bound"):
        best, found = d.map(method, torch.zeros(1, 6))
        assert torch.equal(best, (unary > -2.1).float())
        assert found.value < d.unnormalized_log_prob(d.mode) <= found.upper_bound and not found.optimal
        assert found.upper_bound < d.unnormalized_log_prob(d.mode) + 4 * math.log(2)


def test_optimum_of_no_worth():
    """Best labels of a value near zero are proved optimal in spite of rounding."""
    torch.manual_seed(12)
    unary, grid = -1 - normal(2, 3).abs(), Grid(2, 3)
    never, rarely = torch.full((2,), -torch.inf), torch.full((3,), -40.0)
    d = DeepPatternCRF(unary, None, normal(3, 2, 3), rarely, normal(2, 3), never, grid)
    best, found = d.map("branch_and_bound", torch.zeros(2, 3))
    assert not best.any() and found.value.abs() < 1e-15 and found.optimal


def test_batches():
    """Each row is what it is alone, whichever parameters differ."""
    torch.manual_seed(11)
    shapes = {"unary_logits": (2, 3), "pairwise": (7,), "weights": (3, 2, 3), "pattern_logits": (3,)}
    shapes |= {"upper_weights": (2, 3), "upper_logits": (2,)}
    value = (torch.rand(5, 2, 2, 3) < 0.5).double()
    for batched in ([name] for name in shapes):
        parts = {name: normal(*((2,) if name in batched else ()), *shape) for name, shape in shapes.items()}
        parts["pairwise"] = parts["pairwise"].abs()
        d = DeepPatternCRF(**parts, grid=GOOD["grid"])
        rows = [
            DeepPatternCRF(**{n: part[row] if n in batched else part for n, part in parts.items()}, grid=GOOD["grid"])
            for row in range(2)
        ]
        for query in (
            lambda one, value: one.log_prob(value),
            lambda one, value: one.conditional_logits(value),
            lambda one, value: one.marginals,
            lambda one, value: one.mean_field_logits(3),
            lambda one, value: one.log_partition_bounds()[0],
            lambda one, value: one.map("em")[1].value,
            lambda one, value: one.map("branch_and_bound")[1].value,
        ):
            alone = [query(one, value[:, row]) for row, one in enumerate(rows)]
            found = query(d, value)
            close(found, torch.stack(alone, found.shape.index(2)), 1e-8)
        assert sweep(d.description, value[:1].transpose(0, 1).flatten(-2).double(), 2).shape == (2, 1, 6)


@pytest.mark.slow
def test_large_fields(monkeypatch):
    """Queries without a limit have results for large fields, and errors of the others name them."""
    torch.manual_seed(9)
    d = some_field((10, 12), 40, 30, scale=0.05)
    value = (torch.rand(10, 12) < 0.5).double()
    least, most = d.log_prob_bounds(value)
    low, high = d.log_partition_bounds()
    # The potential of the hidden units is estimated, too.
    activations = (d.weights * value).sum((1, 2)) + d.pattern_logits
    ends = RBM(d.upper_weights, activations, d.upper_logits).log_partition_bounds()
    assert -math.inf < least < most < math.inf and ends[1] > ends[0] + 0.01
    close(most - least, high - low + ends[1] - ends[0], 1e-8)
    d.estimator = AnnealedImportanceSampling(50, 10)
    found, error = d.estimate_log_prob(value)
    assert least < found < most and error.isfinite()
    assert d.mean_field_logits(3).shape == (10, 12)
    for query in (
        lambda: d.unnormalized_log_prob(value),
        lambda: d.conditional_logits(value),
        lambda: d.map("em"),
        lambda: check_sweeps(d.description),
    ):
        with pytest.raises(NotImplementedError, match="limited to 65536 states of the smaller layer, got 40 patterns"):
            query()
    with pytest.raises(NotImplementedError, match=r"got .* over hidden states; log_prob_bounds, log_partition_bounds"):
        _ = d.log_partition_function
    with pytest.raises(NotImplementedError, match="an even number is negative"):
        d.sample()
    with pytest.raises(NotImplementedError, match="mode: expected at most 18 variables, got 120; map returns"):
        _ = d.mode
    narrow = some_field((20, 24), 4, 30, paired=False)
    with pytest.raises(NotImplementedError, match="all labelings of at most 18 variables"):
        narrow.entropy()
    assert narrow.marginals.isfinite().all()
    monkeypatch.setattr("pyro_structured.fields.ops.field_sums.MOST_NUMBERS", 5)
    with pytest.raises(NotImplementedError, match="over hidden states, .* over labelings; log_prob_bounds"):
        _ = some_field().marginals


def test_deep_boltzmann_machine():
    """The upper layer alone is a machine over the patterns, and what it adds is its log Z."""
    torch.manual_seed(10)
    d = some_field((1, 5), 4, 3, paired=False)
    y = all_labelings(5, d.weights).unsqueeze(1)
    activations = y.flatten(1) @ d.weights.flatten(1).T + d.pattern_logits
    machine = RBM(d.upper_weights, activations, d.upper_logits)
    close(d.unnormalized_log_prob(y), (y * d.unary_logits).sum((1, 2)) + machine.log_partition_function)


GOOD = {
    "unary_logits": torch.zeros(2, 3),
    "pairwise": torch.zeros(7),
    "weights": torch.zeros(4, 2, 3),
    "pattern_logits": torch.zeros(4),
    "upper_weights": torch.zeros(2, 4),
    "upper_logits": torch.zeros(2),
    "grid": Grid(2, 3),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (2, 3)}, "grid: expected a Grid, got tuple"),
        ({"unary_logits": torch.zeros(3, 2)}, r"unary_logits: expected shape \(..., 2, 3\), got \(3, 2\)"),
        ({"pairwise": torch.zeros(6)}, r"pairwise: expected shape \(..., 7\), got \(6,\)"),
        ({"weights": torch.zeros(3, 2, 3)}, r"weights: expected shape \(..., 4, 2, 3\), got \(3, 2, 3\)"),
        ({"weights": torch.full((4, 2, 3), math.inf)}, "^weights: expected finite numbers"),
        ({"pattern_logits": torch.full((4,), math.inf)}, "pattern_logits"),
        ({"upper_weights": torch.zeros(4, 2)}, r"upper_weights: expected shape \(..., 2, 4\), got \(4, 2\)"),
        ({"upper_weights": torch.full((2, 4), -math.inf)}, "upper_weights: expected finite numbers"),
        ({"upper_logits": torch.full((2,), math.inf)}, "upper_logits"),
        ({"upper_logits": torch.tensor(0.0)}, "upper_logits: expected at least one axis"),
        ({"upper_logits": torch.zeros(5, 2), "unary_logits": torch.zeros(3, 2, 3)}, "upper_logits: expected a batch"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        DeepPatternCRF(**{**GOOD, **changes})


def test_bad_queries():
    d = DeepPatternCRF(**GOOD)
    with pytest.raises(ValueError, match="method: expected one of"):
        d.map("best")
    with pytest.raises(ValueError, match="num_rounds: expected an integer of at least 1, got 0"):
        d.mean_field_logits(0)
    with pytest.raises(ValueError, match="estimator: expected one"):
        DeepPatternCRF(**GOOD, estimator=5)
