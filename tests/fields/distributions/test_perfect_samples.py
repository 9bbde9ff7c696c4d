"""Exact samples by coupling from the past, and which fields have none."""

import math
import re

import pytest
import torch

from pyro_structured.distributions import RBM, GridCRF, PatternCRF
from pyro_structured.fields.ops import field_sums as module
from pyro_structured.structures import Grid
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical

GRID = Grid(2, 3)
# p-value of samples that do not follow their distribution.
LEAST = 1e-6


def field(signs=(1.0, -1.0, 1.0), pairwise=True, composition="sum", temperature=1.0, batch=(2,), seed=0):
    """Patterns with weights of one sign each."""
    torch.manual_seed(seed)
    weights = 2 * torch.rand(len(signs), 2, 3) * torch.tensor(signs).reshape(-1, 1, 1)
    unary, penalties = torch.randn(*batch, 2, 3), torch.rand(GRID.num_edges) if pairwise else None
    return PatternCRF(unary, penalties, weights, -weights.sum((1, 2)) / 2, GRID, composition, temperature)


def p_values(d, samples):
    log_probs = d.log_prob(d.enumerate_support())
    probs = log_probs.exp().reshape(len(log_probs), -1).T
    size = d.event_shape.numel()
    codes = samples.reshape(len(samples), -1, size).long() @ 2 ** torch.arange(size - 1, -1, -1)
    counts = [torch.bincount(each, minlength=2**size) for each in codes.T]
    return [discrete_goodness_of_fit(*pair) for pair in zip(probs, counts, strict=True)]


torch.manual_seed(1)
CASES = {
    "positive": field((1.0, 1.0)),
    "negative": field((-1.0, -1.0)),
    "mixed": field(),
    "mixed, no pairs": field(pairwise=False),
    "replicas": field(temperature=2.0),
    "evidence": field().condition(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([[True, False, False]] * 2)),
    "own weights": PatternCRF(
        torch.randn(2, 2, 3), None, torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1) * torch.ones(2, 1, 2, 3),
        torch.zeros(2, 1), GRID,
    ),
    "a chessboard": GridCRF(torch.randn(2, 3), -torch.rand(GRID.num_edges), GRID),
    "frustrated only at a known label": GridCRF(
        torch.tensor([[0.0, 0.0, 1.0], [-1.0, math.inf, 0.0]]), torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0]), GRID
    ),
    "vectors": RBM(torch.tensor([[1.0, -1.0, 2.0], [-1.0, 1.0, -1.0]]), torch.randn(4, 3), torch.zeros(2)),
    "no patterns": RBM(torch.zeros(0, 3), torch.randn(3), torch.zeros(0)),
    "a unit that is never on": RBM(
        torch.tensor([[1.0, 1.0], [1.0, -1.0]]), torch.zeros(2), torch.tensor([-1.0, -math.inf])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_goodness_of_fit(name):
    torch.manual_seed(2)
    d = CASES[name]
    samples = d.perfect_sample((10_000,))
    assert samples.shape == (10_000, *d.batch_shape, *d.event_shape) and samples.dtype == d.sample().dtype
    values = p_values(d, samples)
    assert min(values) > LEAST / len(values)


def test_sample_shapes():
    d = field(batch=(2, 1)).expand((3, 2, 4))
    assert d.perfect_sample().shape == (3, 2, 4, 2, 3)
    assert d.perfect_sample((0,)).shape == (0, 3, 2, 4, 2, 3)
    # Copies of a field have samples of their own.
    assert len(GridCRF(torch.zeros(2, 3), torch.zeros(7), GRID).expand((50,)).perfect_sample().unique(dim=0)) > 10


def test_samples_where_sums_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_NUMBERS", 10)
    d = field()
    samples = d.sample((10_000,))
    with pytest.raises(NotImplementedError, match="log Z: exact sums are limited"):
        _ = d.log_partition_function
    with pytest.raises(NotImplementedError, match="log Z: exact sums are limited .*; composition: expected 'sum'"):
        field(composition=torch.zeros(4)).sample()
    monkeypatch.undo()
    assert min(p_values(field(), samples)) > LEAST / 2


def test_a_large_field():
    """Sums over 64 x 64 labels are out of reach; without couplings, each label is its own."""
    grid = Grid(64, 64)
    unary = torch.randn(64, 64)
    samples = GridCRF(unary, torch.zeros(grid.num_edges), grid).sample((400,))
    error = (samples.mean(0) - unary.sigmoid()) / (unary.sigmoid() * (-unary).sigmoid() / 400).sqrt()
    assert error.square().mean().item() == pytest.approx(1.0, abs=0.1)


def test_violated_cycle():
    """The cycle that the error names has an odd number of negative edges."""
    d = field((1.0, 1.0))
    d.weights[1, 1, 2] *= -1
    with pytest.raises(NotImplementedError, match=r"on this cycle it is odd: .*; inference.FieldGibbs draws") as caught:
        d.perfect_sample()
    nodes = re.findall(r"label \((\d), (\d)\)|hidden unit (\d)", str(caught.value).split("odd: ")[1])
    signs = []
    for one, other in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        if one[2] or other[2]:
            unit, pixel = (one[2], other) if one[2] else (other[2], one)
            signs.append(float(d.weights[int(unit), int(pixel[0]), int(pixel[1])]))
        else:
            assert abs(int(one[0]) - int(other[0])) + abs(int(one[1]) - int(other[1])) == 1
            signs.append(1.0)
    assert len(nodes) >= 3 and sum(sign < 0 for sign in signs) % 2 == 1
    frustrated = RBM(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), torch.zeros(2), torch.zeros(2))
    with pytest.raises(NotImplementedError, match="odd: .*label 1, hidden unit|odd: .*hidden unit 1, label"):
        frustrated.perfect_sample()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: field(composition="min").perfect_sample(), NotImplementedError, "composition: .* 'sum' .* got 'min'"),
        (lambda: field(composition=torch.zeros(4)).perfect_sample(), NotImplementedError, "got 'a table'"),
        (lambda: field(temperature=0.0).perfect_sample(), NotImplementedError, "temperature: .* at least 1 .* got 0.0"),
        (lambda: field(temperature=1.5).perfect_sample(), NotImplementedError, "temperature: .* integer .* got 1.5"),
        (
            lambda: field().perfect_sample(max_sweeps=0),
            ValueError,
            "max_sweeps: expected an integer of at least 1, got 0",
        ),
        (
            lambda: GridCRF(torch.zeros(2, 3), torch.full((7,), math.inf), GRID).perfect_sample(),
            NotImplementedError,
            r"pairwise: expected finite penalties, .* got \+inf",
        ),
        (
            lambda: GridCRF(torch.zeros(9, 9), torch.full((144,), 5.0), Grid(9, 9)).perfect_sample((3,), max_sweeps=20),
            RuntimeError,
            "max_sweeps: expected chains to meet within 20 sweeps, but those of 3 of 3 samples did not",
        ),
        (
            lambda: (
                RBM(torch.ones(1, 2), torch.zeros(2), torch.zeros(1))
                .condition(torch.tensor([0.0, 1.0]), torch.tensor([True, False]))
                .condition(torch.tensor([1.0, 1.0]), torch.tensor([True, False]))
                .perfect_sample()
            ),
            ValueError,
            "value: expected evidence of positive probability",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
