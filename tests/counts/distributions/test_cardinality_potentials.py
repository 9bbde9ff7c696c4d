"""Tables of Section 4.2, entry by entry, and their effect."""

import math

import pytest
import torch

from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.distributions import cardinality_potentials as potentials

INF = math.inf


@pytest.mark.parametrize(
    "table, expected",
    [
        (potentials.exactly(3, 0), [0, -INF, -INF, -INF]),
        (potentials.exactly(3, 3), [-INF, -INF, -INF, 0]),
        (potentials.exactly(2, torch.tensor([0, 2])), [[0, -INF, -INF], [-INF, -INF, 0]]),
        (potentials.at_least(3, 2), [-INF, -INF, 0, 0]),
        (potentials.at_least(3, 0), [0, 0, 0, 0]),
        (potentials.at_most(3, 2), [0, 0, 0, -INF]),
        (potentials.at_most(2, torch.tensor([[0], [1]])), [[[0, -INF, -INF]], [[0, 0, -INF]]]),
        (potentials.between(4, 1, 3), [-INF, 0, 0, 0, -INF]),
        (potentials.between(2, torch.tensor([0, 1]), 1), [[0, 0, -INF], [-INF, 0, -INF]]),
        (potentials.parity(3), [0, -INF, 0, -INF]),
        (potentials.parity(3, odd=True), [-INF, 0, -INF, 0]),
        (potentials.smoothness(4, 2.0), [2, 0.5, 0, 0.5, 2]),
        (potentials.competition(4, 2.0), [-2, -0.5, 0, -0.5, -2]),
        (potentials.smoothness(2, -1.0), [-1, 0, -1]),
        (potentials.group_sparsity(3, 1.5), [1.5, 0, 0, 0]),
        (potentials.group_sparsity(3, -INF), [-INF, 0, 0, 0]),
        (potentials.consistency(4, 3.0), [3, 0, 0, 0, 3]),
        (potentials.consistency(4, 3.0, tolerance=3), [3, 2, 1, 2, 3]),
        (potentials.normal_fraction(2, 0.5, 0.25), [-2, 0, -2]),
        (potentials.noisy_or(2, True, 0.0, 0.5), [-INF, math.log(0.5), math.log(0.75)]),
        (potentials.noisy_or(2, False, 0.2, 0.5), [math.log(0.8), math.log(0.4), math.log(0.2)]),
        (potentials.noisy_or(1, True, 0.2, 0.5), [math.log(0.2), math.log(0.6)]),
    ],
)
def test_tables(table, expected):
    torch.testing.assert_close(table, torch.tensor(expected, dtype=table.dtype))


@pytest.mark.parametrize(
    "function, number",
    [
        (lambda p: potentials.smoothness(5, p), 0.7),
        (lambda p: potentials.competition(5, p), 0.7),
        (lambda p: potentials.group_sparsity(5, p), 0.7),
        (lambda p: potentials.consistency(5, p, tolerance=2), 0.7),
        (lambda p: potentials.normal_fraction(5, p, 0.3), 0.7),
        (lambda p: potentials.normal_fraction(5, 0.3, p), 0.7),
        (lambda p: potentials.noisy_or(5, True, p, 0.3), 0.7),
        (lambda p: potentials.noisy_or(5, True, 0.3, p), 0.7),
        (lambda p: potentials.noisy_or(5, False, 0.3, p), 0.7),
    ],
)
def test_parameters_may_be_tensors(function, number):
    """Of any shape, which the table gets in front; with gradients, and in their dtype."""
    several = torch.tensor([[number], [0.5 * number]], dtype=torch.float64, requires_grad=True)
    table = function(several)
    assert table.shape == (2, 1, 6) and table.dtype == torch.float64
    torch.testing.assert_close(table[0, 0], function(torch.tensor(number, dtype=torch.float64)))
    torch.testing.assert_close(table[0, 0].float(), function(number))
    assert torch.autograd.gradcheck(function, several)
    assert function(1 if number > 1 else 0.5).dtype == torch.get_default_dtype()


def test_noisy_or_without_a_leak_has_finite_gradients():
    strength = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    leak = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    table = potentials.noisy_or(3, True, leak, strength)
    d = RecursiveCardinality(torch.zeros(3, dtype=torch.float64), table)
    gradients = torch.autograd.grad(d.log_partition_function, (leak, strength))
    assert all(g.isfinite() for g in gradients)


def test_noisy_or_is_a_likelihood():
    """Against the definition: each active variable fails to cause the outcome, independently, and so does the leak."""
    leak, strength = 0.1, 0.3
    on, off = (potentials.noisy_or(4, outcome, leak, strength).exp() for outcome in (True, False))
    torch.testing.assert_close(on + off, torch.ones(5))
    torch.testing.assert_close(off, (1 - leak) * (1 - strength) ** torch.arange(5.0))


def test_tables_for_several_sizes():
    mean = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    sizes = [4, 1, 4, 2]

    def law(n):
        return torch.stack([potentials.normal_fraction(n, mean, 0.2), potentials.exactly(n, 1).double()])

    tables = potentials.for_sizes(law, sizes)
    assert tables.shape == (4, 2, 5) and tables.dtype == torch.float64
    for table, n in zip(tables, sizes, strict=True):
        torch.testing.assert_close(table[:, : n + 1], law(n))
        assert bool((table[:, n + 1 :] == -math.inf).all())
    (gradient,) = torch.autograd.grad(tables[:, 0].exp().sum(), mean)
    assert bool(gradient.isfinite())


def test_truncated_counts():
    d = RecursiveCardinality(torch.randn(6), potentials.at_most(6, 2))
    assert (d.sample((200,)).sum(-1) <= 2).all()
    d = RecursiveCardinality(torch.randn(6), potentials.parity(6, odd=True))
    assert (d.sample((200,)).sum(-1) % 2 == 1).all()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: potentials.exactly(3, 4), "k: expected counts between 0 and 3, the number of variables, got 4"),
        (lambda: potentials.at_least(3, -1), "k: expected counts between 0 and 3, the number of variables, got -1"),
        (lambda: potentials.between(3, 2, 1), "high: expected counts of at least low, 2, got 1"),
        (lambda: potentials.at_most(3, torch.tensor([1, 5])), "k: expected counts between 0 and 3"),
        (lambda: potentials.at_least(3, 4), "k: expected counts between 0 and 3, the number of variables, got 4"),
        (lambda: potentials.at_most(3, -1), "k: expected counts between 0 and 3, the number of variables, got -1"),
        (lambda: potentials.between(3, -1, 2), "low: expected counts between 0 and 3, .* got -1"),
        (lambda: potentials.between(3, 1, 4), "high: expected counts between 0 and 3, .* got 4"),
        (
            lambda: potentials.between(3, torch.tensor([0, 1]), torch.tensor([1, 2, 3])),
            r"high: expected a shape that broadcasts with that of low, \(2,\), got \(3,\)",
        ),
        (
            lambda: potentials.for_sizes(torch.zeros, [0, 1]),
            r"sizes: expected one or more positive integers.* \[0, 1\]",
        ),
        (lambda: potentials.for_sizes(torch.zeros, [1.0]), "sizes: expected one or more positive integers"),
        (lambda: potentials.for_sizes(torch.zeros, []), "sizes: expected one or more positive integers"),
        (lambda: potentials.for_sizes(torch.zeros, None), "sizes: expected one or more positive integers"),
        (lambda: potentials.for_sizes(None, [2]), "law: expected a function of the number of variables, got another"),
        (lambda: potentials.for_sizes(torch.zeros, [2]), r"law: expected a tensor of shape \(..., 3\) for 2 .*\(2,\)"),
        (lambda: potentials.for_sizes(lambda n: n, [2]), "law: expected a tensor of shape .*, got int"),
        (
            lambda: potentials.for_sizes(lambda n: torch.zeros(n, n + 1), [1, 2]),
            r"law: expected tables of one shape .* got \[\(1, 2\), \(2, 3\)\]",
        ),
        (lambda: potentials.exactly(3, None), "k: expected an integer or an integer tensor, got None"),
        (lambda: potentials.exactly(3, torch.tensor(True)), "k: expected an integer or .*, got torch.bool"),
        (lambda: potentials.exactly(2.5, 1), "n: expected an integer of at least 1, got 2.5"),
        (lambda: potentials.smoothness(2.5, 1.0), "n: expected an integer of at least 1, got 2.5"),
        (lambda: potentials.parity(2.5), "n: expected an integer of at least 1, got 2.5"),
        (lambda: potentials.parity(True), "n: expected an integer of at least 1, got True"),
        (lambda: potentials.parity(3, odd=2), "odd: expected a bool, got 2"),
        (lambda: potentials.smoothness(3, None), "strength: expected a number or a tensor, got None"),
        (lambda: potentials.group_sparsity(3, "a"), "spike: expected a number or a tensor, got 'a'"),
        (lambda: potentials.noisy_or(3, 2, 0.1, 0.5), "outcome: expected a bool, got 2"),
        (
            lambda: potentials.noisy_or(3, True, torch.zeros(2), torch.zeros(3)),
            r"strength: expected a shape that broadcasts with that of leak, \(2,\), got \(3,\)",
        ),
        (
            lambda: potentials.normal_fraction(3, torch.zeros(2), torch.ones(3)),
            r"scale: expected a shape that broadcasts with that of mean, \(2,\), got \(3,\)",
        ),
        (lambda: potentials.exactly(3, 1.5), "k: expected an integer or an integer tensor, got torch.float32"),
        (lambda: potentials.noisy_or(3, True, 1.0, 0.5), r"leak: expected probabilities in \[0, 1\), got 1"),
        (lambda: potentials.noisy_or(3, True, 0.1, -0.5), r"strength: expected probabilities in \[0, 1\), got -0.5"),
        (lambda: potentials.noisy_or(3, True, 0.1, math.nan), r"strength: expected probabilities in \[0, 1\), got nan"),
        (lambda: potentials.consistency(3, 1.0, tolerance=0), "tolerance: expected an integer of at least 1, got 0"),
        (lambda: potentials.normal_fraction(3, 0.5, 0.0), "scale: expected positive numbers, got 0"),
        (lambda: potentials.normal_fraction(3, 0.5, torch.tensor([1.0, -1.0])), "scale: expected positive numbers"),
        (lambda: potentials.smoothness(0, 1.0), "n: expected an integer of at least 1, got 0"),
        (
            lambda: potentials.at_most(torch.tensor([3, 5]), 1),
            r"n: expected an integer of at least 1, got tensor\(\[3, 5\]",
        ),
        (lambda: potentials.noisy_or(3, torch.tensor(True), 0.0, 0.5), r"outcome: expected a bool, got tensor\(True"),
        (lambda: potentials.parity(-1), "n: expected an integer of at least 1, got -1"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
