"""Annealed importance sampling of fields, against exact partition functions."""

import pickle

import pytest
import torch
from scipy.special import stdtr
from scipy.stats import binom

from pyro_structured.distributions import RBM, CategoricalPatternCRF, DeepPatternCRF, GridCRF, PatternCRF
from pyro_structured.inference import AnnealedImportanceSampling
from pyro_structured.structures import Grid
from pyro_structured.testing.standard_errors import FAILURE_RATE, most_standard_errors

pytestmark = pytest.mark.statistical


def check(value, error, exact, num_chains=200):
    """Standard errors are found from the spread of the chains."""
    assert ((value - exact).abs() < most_standard_errors(num_chains) * error).all()


def check_coverage(value, error, exact, num_chains):
    """Whether as many estimates are within one and within two standard errors as Student's distribution says."""
    wrong = (value - exact).abs() / error
    for distance in (1, 2):
        number, share = int((wrong < distance).sum()), 1 - 2 * stdtr(num_chains - 1, -distance)
        assert min(binom.cdf(number, len(wrong), share), binom.sf(number - 1, len(wrong), share)) > FAILURE_RATE / 2


def field(composition="sum", temperature=1.0, rows=1, paired=True):
    grid, number = Grid(3, 3), 3
    unary = torch.randn(rows, 3, 3).double()
    unary[:, 0, 0], unary[:, 1, 2] = torch.inf, -torch.inf
    weights = torch.randn(rows, number, 3, 3).double()
    biases = -weights.flatten(2).sum(-1) / 2
    biases[:, 0] = -torch.inf
    pairwise = torch.randn(rows, grid.num_edges).double() if paired else None
    return PatternCRF(unary, pairwise, weights, biases, grid, composition, temperature)


TABLE = torch.tensor([0.5, 1.0, -torch.inf, 2.0]).double()


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("composition", ["sum", "min", TABLE])
@pytest.mark.parametrize("temperature", [0, 0.4, 1, 2, 2.6])
def test_both_directions_agree_with_sums(composition, temperature):
    torch.manual_seed(0)
    d = field(composition, temperature, rows=6, paired=temperature != 2)
    for reverse in (False, True):
        d.estimator = AnnealedImportanceSampling(100, 200, reverse)
        value, error = d.estimate_log_partition()
        assert value.shape == error.shape == (6,) and (error < 0.2).all()
        check(value, error, d.log_partition_function)


@pytest.mark.slow
def test_standard_error_covers():
    """In runs that are rows of one batch."""
    torch.manual_seed(1)
    d = field()
    found = []
    for reverse in (False, True):
        many = rows_of(d, 200)
        many.estimator = AnnealedImportanceSampling(100, 100, reverse)
        value, error = many.estimate_log_partition()
        found.append(value)
        check_coverage(value, error, d.log_partition_function, 100)
    # Low in the mean one way, and high the other way, by half of the variance.
    spread = ((found[0].var() + found[1].var()) / 200).sqrt()
    assert found[0].mean() < found[1].mean() + most_standard_errors(200) * spread


def rows_of(d, number):
    """The same field in ``number`` rows, with independent chains."""
    parts = (d.unary_logits, d.pairwise, d.weights, d.pattern_logits)
    repeated = [part.repeat(number, *(1,) * (part.dim() - 1)) for part in parts]
    return PatternCRF(*repeated, d.grid)


def test_accuracy():
    """With 1,000 temperatures and 100 chains, estimates are within 0.1 of exact sums."""
    torch.manual_seed(2)
    grid = Grid(6, 6)
    weights = torch.randn(4, 6, 6, 6).double()
    biases = -weights.flatten(2).sum(-1) / 2
    d = PatternCRF(torch.randn(4, 6, 6).double(), torch.rand(grid.num_edges).double(), weights, biases, grid)
    d.estimator = AnnealedImportanceSampling()
    value, _ = d.estimate_log_partition()
    torch.testing.assert_close(value, d.log_partition_function, atol=0.1, rtol=0)


def islands():
    """Labels almost all 0, or almost all 1, or 1 in one half; the last two weigh e^5 and e^4 times the first."""
    weights = torch.full((2, 100), 4.0).double()
    weights[1, 50:] = -1.0
    visible = torch.full((100,), -2.0).double()
    free = torch.nn.functional.softplus
    on = free(visible + weights).sum(-1) - free(visible).sum(-1)
    return RBM(weights, visible, torch.tensor([5.0, 4.0]).double() - on)


@pytest.mark.slow
def test_islands():
    """Labels of three kinds are far apart: chains from independent pixels stay at the first kind, nats below log Z;
    chains from mean-field solutions find log Z, and standard errors cover it.
    """
    torch.manual_seed(4)
    d = islands().expand((100,))
    rows = RBM(d.weights.clone(), d.visible_logits.clone(), d.hidden_logits.clone())
    for reverse in (False, True):
        rows.estimator = AnnealedImportanceSampling(100, 40, reverse)
        value, error = rows.estimate_log_partition()
        assert ((value - rows.log_partition_function).abs() < 0.1).all()
        check_coverage(value, error, rows.log_partition_function, 40)


def test_more_modes_than_are_followed():
    """Random penalties have more mean-field solutions than chains start at; then they start at pixels by themselves."""
    torch.manual_seed(5)
    grid = Grid(12, 12)
    d = GridCRF(torch.zeros(12, 12).double(), torch.randn(grid.num_edges).double(), grid)
    d.estimator = AnnealedImportanceSampling()
    value, error = d.estimate_log_partition()
    assert (value - d.log_partition_function).abs() < 0.15 and error < 0.1


def test_log_probabilities():
    torch.manual_seed(3)
    d = RBM(torch.randn(4, 6), torch.randn(6), torch.randn(4)).expand((3,))
    v = d.sample((5,))
    for reverse in (False, True):
        d.estimator = AnnealedImportanceSampling(100, 200, reverse)
        value, error = d.estimate_log_prob(v)
        assert value.shape == error.shape == (5, 3) and value.dtype == torch.float32
        check(value, error, d.log_prob(v))
    observed = torch.arange(6) < 2
    known = d.condition(torch.ones(6), observed)
    known.estimator = AnnealedImportanceSampling(100, 200)
    value, error = known.estimate_log_partition()
    check(value, error, known.log_partition_function)
    known.estimator = AnnealedImportanceSampling(5, 2)
    unlikely, _ = known.estimate_log_prob(torch.zeros(6))
    assert (unlikely == -torch.inf).all()


def test_estimator_is_picklable_and_says_what_it_is():
    estimator = AnnealedImportanceSampling(10, 5, reverse=True)
    copy = pickle.loads(pickle.dumps(estimator))
    assert repr(copy) == "AnnealedImportanceSampling(num_temperatures=10, num_chains=5, reverse=True)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_temperatures": 0}, "num_temperatures: expected an integer of at least 1, got 0"),
        ({"num_chains": 1}, "num_chains: expected an integer of at least 2, got 1"),
        ({"reverse": 1}, "reverse: expected True or False, got 1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        AnnealedImportanceSampling(**arguments)


def test_refusals():
    grid = Grid(1, 2)
    tied = GridCRF(torch.zeros(1, 2), torch.tensor([torch.inf]), grid)
    with pytest.raises(NotImplementedError, match="pairwise: expected finite penalties"):
        tied.estimator = AnnealedImportanceSampling()
        tied.estimate_log_partition()
    with pytest.raises(
        ValueError, match=r"estimator: expected one, such as GridCRF\(..., estimator=Annealed.* got None"
    ):
        tied.estimator = None
        tied.estimate_log_prob(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="Expected value argument .* within the support"):
        tied.estimator = AnnealedImportanceSampling()
        tied.estimate_log_prob(torch.full((1, 2), 2.0))
    large = PatternCRF(torch.zeros(32, 32), None, torch.zeros(64, 32, 32), torch.zeros(64), Grid(32, 32))
    large.estimator = AnnealedImportanceSampling(2, 2)
    value, error = large.estimate_log_partition()
    assert value == pytest.approx(1088 * torch.tensor(2.0).log()) and error == 0
    large.estimator = None
    with pytest.raises(NotImplementedError, match=r"log_prob with estimator=AnnealedImportanceSampling\(\)"):
        large.log_prob(torch.zeros(32, 32))
    both = torch.zeros(64, 32, 32).index_fill(2, torch.tensor(0), 1.0).index_fill(2, torch.tensor(1), -1.0)
    unbalanced = PatternCRF(torch.zeros(32, 32), torch.ones(1984), both, torch.zeros(64), Grid(32, 32))
    with pytest.raises(NotImplementedError, match="log Z: exact sums are limited"):
        unbalanced.estimator = AnnealedImportanceSampling(2, 2, reverse=True)
        unbalanced.estimate_log_partition()


def labels_field(composition="sum", temperature=1.0, rows=(), paired=True, estimator=None):
    """A field of three labels, some of them impossible."""
    grid = Grid(2, 3)
    unary = torch.randn(*rows, 2, 3, 3).double()
    unary[..., 0, 0, 1], unary[..., 1, 2, 0] = -torch.inf, -torch.inf
    weights, biases = torch.randn(*rows, 3, 2, 3, 3).double(), torch.randn(*rows, 3).double()
    biases[..., 0] = -torch.inf
    pairwise = torch.randn(*rows, grid.num_edges).double() if paired else None
    return CategoricalPatternCRF(unary, pairwise, weights, biases, grid, composition, temperature, estimator)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("composition", ["sum", "min", TABLE])
@pytest.mark.parametrize("temperature", [1, 2])
@pytest.mark.parametrize("paired", [False, True])
def test_several_labels(composition, temperature, paired):
    torch.manual_seed(0)
    d = labels_field(composition, temperature, (6,), paired)
    for reverse in (False, True):
        d.estimator = AnnealedImportanceSampling(100, 200, reverse)
        value, error = d.estimate_log_partition()
        assert value.shape == error.shape == (6,) and (error < 0.2).all()
        check(value, error, d.log_partition_function)
    y = d.sample((4,))
    d.estimator = AnnealedImportanceSampling(100, 200)
    found, error = d.estimate_log_prob(y)
    assert found.shape == error.shape == (4, 6)
    check(found, error, d.log_prob(y))


@pytest.mark.slow
def test_standard_errors_of_several_labels():
    torch.manual_seed(1)
    d = labels_field()
    parts = (d.unary_logits, d.pairwise, d.weights, d.pattern_logits)
    rows = CategoricalPatternCRF(*(part.repeat(100, *(1,) * part.dim()) for part in parts), d.grid)
    for reverse in (False, True):
        rows.estimator = AnnealedImportanceSampling(100, 100, reverse)
        value, error = rows.estimate_log_partition()
        check_coverage(value, error, d.log_partition_function, 100)


def test_large_fields_of_several_labels():
    """Without couplings the estimate is exact at any size; evidence is taken into account."""
    grid, unary = Grid(20, 30), torch.randn(20, 30, 4)
    d = CategoricalPatternCRF(unary, torch.zeros(grid.num_edges), torch.zeros(2, 20, 30, 4), torch.zeros(2), grid)
    estimator = AnnealedImportanceSampling(3, 2)
    exact = unary.logsumexp(-1)
    d.estimator = estimator
    value, error = d.estimate_log_partition()
    torch.testing.assert_close(value, exact.sum() + 2 * torch.tensor(2.0).log())
    assert error < 1e-6
    seen = torch.zeros(20, 30, dtype=torch.bool)
    seen[0] = True
    given = d.condition(torch.zeros(20, 30), seen).estimate_log_partition()[0]
    torch.testing.assert_close(given, unary[0, :, 0].sum() + exact[1:].sum() + 2 * torch.tensor(2.0).log())
    assert d.expand((0,)).estimate_log_partition()[0].shape == (0,)
    with pytest.raises(NotImplementedError, match="temperature: expected an integer of at least 1"):
        labels_field(temperature=0.5, estimator=estimator).estimate_log_partition()
    with pytest.raises(ValueError, match="estimator: expected one, such as"):
        d.estimator = None
        d.estimate_log_partition()


def fields_of_parameters(estimator):
    """Fields of all kinds, small enough for exact sums, and their parameters."""
    grid = Grid(2, 3)
    unary, pairwise = torch.randn(2, 3).double(), torch.rand(grid.num_edges).double()
    weights, biases = torch.randn(2, 2, 3).double(), torch.randn(2).double()
    by_label = torch.randn(2, 2, 3, 3).double()
    above, logits = torch.randn(2, 2).double(), torch.randn(2).double()
    for kind, parts in (
        (lambda u, p: GridCRF(u, p, grid, estimator), (unary, pairwise)),
        (lambda u, p, w, c: PatternCRF(u, p, w, c, grid, "sum", 1.0, estimator), (unary, pairwise, weights, biases)),
        (lambda u, p, w, c: PatternCRF(u, p, w, c, grid, "min", 2.0, estimator), (unary, pairwise, weights, biases)),
        (lambda w, b, c: RBM(w, b, c, estimator), (torch.randn(2, 4).double(), torch.randn(4).double(), biases)),
        (
            lambda u, p, w, c, v, d: DeepPatternCRF(u, p, w, c, v, d, grid, estimator),
            (unary, pairwise, weights, biases, above, logits),
        ),
        (
            lambda u, p, w, c: CategoricalPatternCRF(u, p, w, c, grid, "sum", 1.0, estimator),
            (torch.randn(2, 3, 3).double(), pairwise, by_label, biases),
        ),
    ):
        yield kind, [part.clone().requires_grad_() for part in parts]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradient(reverse):
    """Gradients are those of log Z and of log-probabilities, up to the error of a mean over chains."""
    torch.manual_seed(0)
    for kind, parts in fields_of_parameters(AnnealedImportanceSampling(30, 4000, reverse)):
        d = kind(*parts)
        exact = torch.autograd.grad(d.log_partition_function, parts, retain_graph=True)
        found = torch.autograd.grad(kind(*parts).estimate_log_partition()[0], parts)
        for right, estimate in zip(exact, found, strict=True):
            # Derivatives are means of numbers between 0 and 1, over 4,000 chains, fewer than half of them in effect.
            assert (estimate - right).abs().max() < 6 * 0.5 / 2000**0.5
        value = d.sample()
        right = torch.autograd.grad(d.log_prob(value), parts)
        found = torch.autograd.grad(kind(*parts).estimate_log_prob(value)[0], parts)
        for wanted, estimate in zip(right, found, strict=True):
            assert (estimate - wanted).abs().max() < 6 * 0.5 / 2000**0.5


def test_log_prob_takes_the_estimator_where_sums_are_too_large():
    """The estimator is used only where sums are too large; without one, such queries are refused."""
    estimator = AnnealedImportanceSampling(50, 20)
    for kind, parts in fields_of_parameters(estimator):
        value = kind(*parts).sample()
        exact = kind(*parts).log_prob(value)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pyro_structured.fields.ops.field_sums.MOST_NUMBERS", 1)
            d = kind(*parts)
            torch.manual_seed(0)
            found = d.log_prob(value)
            torch.manual_seed(0)
            assert torch.equal(found, d.estimate_log_prob(value)[0]) and not torch.equal(found, exact)
            (gradient,) = torch.autograd.grad(found, parts[:1])
            assert gradient.isfinite().all() and (gradient != 0).any()
            with pytest.raises(
                NotImplementedError, match="gradient of an estimated log-probability has no derivatives"
            ):
                (first,) = torch.autograd.grad(kind(*parts).log_prob(value), parts[:1], create_graph=True)
                torch.autograd.grad(first.sum(), parts[:1])
            alone = d.expand(d.batch_shape)
            alone.estimator = None
            with pytest.raises(NotImplementedError, match="estimator=AnnealedImportanceSampling"):
                alone.log_prob(value)


def test_old_spelling():
    d = GridCRF(torch.zeros(2, 2), torch.zeros(4), Grid(2, 2))
    with pytest.warns(FutureWarning, match=r"estimator: expected in the constructor, GridCRF\(..., estimator=...\)"):
        value, _ = d.estimate_log_partition(AnnealedImportanceSampling(2, 2))
    torch.testing.assert_close(value, 4 * torch.tensor(2.0).log())
    with pytest.raises(ValueError, match="estimator: expected one, such as AnnealedImportanceSampling"):
        GridCRF(torch.zeros(2, 2), torch.zeros(4), Grid(2, 2), estimator=3)
