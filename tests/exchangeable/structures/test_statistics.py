"""All statistics against enumeration of every value."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.structures import (
    AutomatonStatistic,
    BlockCounts,
    CategoryCounts,
    Count,
    NestedThreshold,
    Product,
    Statistic,
    Transitions,
)
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical


def enumerate_values(statistic):
    return torch.tensor(list(itertools.product(range(statistic.num_categories), repeat=statistic.num_variables)))


@st.composite
def partitions(draw, num_variables):
    labels = [draw(st.integers(0, 2)) for _ in range(num_variables)]
    groups = [[d for d in range(num_variables) if labels[d] == label] for label in range(3)]
    return draw(st.permutations([draw(st.permutations(group)) for group in groups if group]))


@st.composite
def counts(draw, max_variables=8):
    return Count(draw(st.integers(1, max_variables)))


@st.composite
def block_counts(draw):
    return BlockCounts(draw(partitions(draw(st.integers(1, 7)))))


@st.composite
def transitions(draw, max_variables=8):
    return Transitions(draw(st.integers(1, max_variables)))


@st.composite
def nested_thresholds(draw):
    return NestedThreshold(draw(partitions(draw(st.integers(1, 8)))), draw(st.integers(0, 3)))


@st.composite
def category_counts(draw):
    return CategoryCounts(draw(st.integers(1, 5)), draw(st.integers(1, 4)))


@st.composite
def automata(draw):
    length, states, letters = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    steps = draw(st.sampled_from([1, length]))
    state = st.integers(0, states - 1)
    table = [[[draw(state) for _ in range(letters)] for _ in range(states)] for _ in range(steps)]
    transitions = torch.tensor(table)
    transitions = transitions[0] if draw(st.booleans()) and steps == 1 else transitions
    levels = torch.tensor([draw(st.integers(0, 3)) for _ in range(states)])
    order = draw(st.one_of(st.none(), st.permutations(range(length))))
    return AutomatonStatistic(length, transitions, levels, order)


@st.composite
def products(draw):
    first, second = draw(transitions(4)), draw(counts(3))
    order = draw(st.permutations(range(first.num_variables + second.num_variables)))
    return Product([first, second], [order[: first.num_variables], order[first.num_variables :]])


class OddCount(Statistic):
    """Defines no more than it has to."""

    def __init__(self):
        self.num_variables, self.num_levels = 5, 2

    def value(self, x):
        return (x == 1).sum(-1) % 2

    def log_completions(self, value, observed):
        free = (~observed).sum(-1, keepdim=True)
        odd = (observed & (value == 1)).sum(-1, keepdim=True) % 2
        certain = torch.where(torch.arange(2) == odd, 0.0, -math.inf).double()
        return torch.where(free > 0, (free - 1) * math.log(2.0), certain)

    def sample(self, level, value, observed):
        raise NotImplementedError

    complete = sample


ALL = {
    "Count": counts(),
    "BlockCounts": block_counts(),
    "Transitions": transitions(),
    "NestedThreshold": nested_thresholds(),
    "CategoryCounts": category_counts(),
    "AutomatonStatistic": automata(),
    "Product": products(),
}


def evidence(data, statistic, batch=(3,)):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**16)))
    value = torch.randint(statistic.num_categories, (*batch, statistic.num_variables), generator=generator)
    observed = torch.rand(value.shape, generator=generator) < data.draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    return value, observed


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=300)
@given(st.data())
@pytest.mark.slow(keep=1)
def test_enumeration(name, data):
    statistic = data.draw(ALL[name])
    values = enumerate_values(statistic)
    level = statistic.value(values)
    assert level.dtype == torch.long and level.min() >= 0 and level.max() < statistic.num_levels
    assert torch.equal(statistic.value(values.double()), level)
    value, observed = evidence(data, statistic)
    agrees = (~observed.unsqueeze(-2) | (values == value.unsqueeze(-2))).all(-1)
    member = level == torch.arange(statistic.num_levels).unsqueeze(-1)
    number = (agrees.unsqueeze(-2) & member).sum(-1)
    torch.testing.assert_close(statistic.log_completions(value, observed).exp(), number.double(), rtol=1e-12, atol=0)
    torch.testing.assert_close(statistic.log_sizes.exp(), member.sum(-1).double(), rtol=1e-12, atol=0)

    levels = torch.arange(statistic.num_levels).unsqueeze(-1).expand(-1, len(value))
    possible = (number > 0).T
    for found in (statistic.complete(levels, value, observed), statistic.sample(levels, value, observed)):
        assert found.shape == (*levels.shape, statistic.num_variables) and found.dtype == torch.long
        assert ((found == value) | ~observed)[possible].all()
        assert torch.equal(statistic.value(found)[possible], levels[possible])
    once, again = (statistic.complete(levels, value, observed)[possible] for _ in range(2))
    assert torch.equal(once, again)

    log_weights = torch.randn(statistic.num_levels, dtype=torch.float64)
    weights = agrees.double() * log_weights[level].exp()
    on = (values.unsqueeze(-1) == torch.arange(statistic.num_categories)).double()
    expected = torch.einsum("bx,xnc->bnc", weights / weights.sum(-1, keepdim=True), on)
    torch.testing.assert_close(
        statistic.log_marginals(log_weights, value, observed).exp(), expected, rtol=1e-9, atol=1e-12
    )
    generic = Statistic.log_marginals(statistic, log_weights, value, observed).exp()
    torch.testing.assert_close(generic, expected, rtol=1e-9, atol=1e-12)


SMALL = [
    Count(5),
    BlockCounts([[0, 3], [1, 2, 4]]),
    Transitions(6),
    NestedThreshold([[0, 3, 1], [2, 4]], 1),
    CategoryCounts(4, 3),
    Product([Transitions(4), Count(2)], [[5, 0, 1, 2], [3, 4]]),
]
OTHERS = [Count(1), Count(8), CategoryCounts(1, 3), CategoryCounts(3, 1), CategoryCounts(5, 2), OddCount()]


def weights_and_scores(statistic, number):
    """Random log-weights of variables, -inf among them, and the scores of all values."""
    values = enumerate_values(statistic)
    shape = (number, statistic.num_variables, statistic.num_categories)
    log_weights = 2 * torch.randn(shape, dtype=torch.float64)
    log_weights = log_weights.masked_fill(torch.rand(shape) < 0.15, -math.inf)
    on = torch.nn.functional.one_hot(values, statistic.num_categories).bool()
    return values, log_weights, torch.where(on, log_weights.unsqueeze(1), 0.0).sum((-2, -1))


@pytest.mark.parametrize("statistic", SMALL + OTHERS, ids=repr)
def test_weights_of_variables(statistic):
    values, log_weights, scores = weights_and_scores(statistic, 300)
    level = statistic.value(values)
    by_level = scores.unsqueeze(-2).masked_fill(level != torch.arange(statistic.num_levels).unsqueeze(-1), -math.inf)
    peaks = by_level.amax(-1)
    torch.testing.assert_close(statistic.log_mass(log_weights), by_level.logsumexp(-1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(statistic.log_peaks(log_weights), peaks, rtol=1e-10, atol=1e-10)

    levels, possible = torch.arange(statistic.num_levels), peaks > -math.inf
    places = statistic.num_categories ** torch.arange(statistic.num_variables - 1, -1, -1)
    best, drawn = (
        query(levels, log_weights.unsqueeze(1)) for query in (statistic.weighted_mode, statistic.weighted_sample)
    )
    for found in (best, drawn):
        assert found.dtype == torch.long
        assert torch.equal(statistic.value(found)[possible], levels.expand(possible.shape)[possible])
    torch.testing.assert_close(scores.gather(1, (best * places).sum(-1))[possible], peaks[possible], rtol=1e-10, atol=0)
    assert (scores.gather(1, (drawn * places).sum(-1))[possible] > -math.inf).all()

    level_weights = torch.randn(300, statistic.num_levels)
    level_weights = level_weights.masked_fill(torch.rand_like(level_weights) < 0.2, -math.inf)
    joint = scores + level_weights.double()[:, level]
    on = torch.nn.functional.one_hot(values, statistic.num_categories).double()
    expected = torch.einsum("bv,vnc->bnc", joint.softmax(-1), on)
    rows = joint.amax(-1) > -math.inf
    assert rows.any()
    marginals = statistic.weighted_log_marginals(level_weights, log_weights).exp()
    torch.testing.assert_close(marginals[rows], expected[rows], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("statistic", [*SMALL, OddCount()], ids=repr)
def test_weighted_samples(statistic):
    values, log_weights, scores = weights_and_scores(statistic, 1)
    level = int(statistic.log_mass(log_weights)[0].argmax())
    expected = scores[0].masked_fill(statistic.value(values) != level, -math.inf).softmax(-1)
    drawn = statistic.weighted_sample(torch.full((4000,), level), log_weights[0])
    places = statistic.num_categories ** torch.arange(statistic.num_variables - 1, -1, -1)
    found = (drawn * places).sum(-1).bincount(minlength=len(values))
    assert discrete_goodness_of_fit(expected, found) > 2e-9


def test_derivatives_of_weighted_sums():
    for statistic in (Count(4), CategoryCounts(3, 3), Product([Transitions(2), Count(2)], [[3, 0], [1, 2]])):
        _, log_weights, _ = weights_and_scores(statistic, 1)
        leaf = log_weights[0].nan_to_num(neginf=0.5).requires_grad_()
        assert torch.autograd.gradgradcheck(statistic.log_mass, leaf) and torch.autograd.gradcheck(
            lambda weights, statistic=statistic: statistic.weighted_log_marginals(
                torch.arange(statistic.num_levels) * 0.1, weights
            ),
            leaf,
        )
        impossible = log_weights[0].masked_fill(torch.rand(leaf.shape) < 0.3, -math.inf).requires_grad_()
        statistic.log_mass(impossible).exp().sum().backward()
        assert impossible.grad.isfinite().all()


def test_many_weighted_values_of_an_own_statistic_are_refused():
    statistic = OddCount()
    statistic.num_variables = 13
    with pytest.raises(NotImplementedError, match=r"at most 4096 values of a OddCount .* 2\*\*13; define log_mass, .*"):
        statistic.log_mass(torch.zeros(13, 2))


@pytest.mark.parametrize("statistic", SMALL, ids=lambda s: type(s).__name__)
def test_samples_are_uniform(statistic):
    value = torch.ones(statistic.num_variables, dtype=torch.long)
    observed = torch.zeros(statistic.num_variables, dtype=torch.bool)
    observed[1] = True
    values = enumerate_values(statistic)
    sizes = statistic.log_completions(value, observed)
    level = int(sizes.argmax())
    member = (statistic.value(values) == level) & (values[:, 1] == 1)
    drawn = statistic.sample(torch.full((4000,), level), value, observed)
    places = statistic.num_categories ** torch.arange(statistic.num_variables - 1, -1, -1)
    found = (drawn * places).sum(-1).bincount(minlength=len(values))
    assert discrete_goodness_of_fit(member.double() / member.sum(), found) > 2e-9


def test_closed_forms():
    size = Transitions(40).log_sizes.exp()
    expected = torch.tensor([math.comb(41, 2 * t + 1) for t in range(21)], dtype=torch.float64)
    torch.testing.assert_close(size, expected, rtol=1e-11, atol=0)
    exact = math.log(math.comb(1000, 500))
    assert math.isclose(float(Count(1000).log_sizes[500]), exact, rel_tol=1e-13)
    torch.testing.assert_close(Count(5000).log_sizes.logsumexp(0), torch.tensor(5000 * math.log(2.0)).double())


def test_own_statistic():
    statistic = OddCount()
    torch.testing.assert_close(statistic.log_sizes.exp(), torch.tensor([16.0, 16.0]).double())
    observed = torch.tensor([True, False, False, False, False])
    found = statistic.log_marginals(torch.tensor([0.0, -math.inf]), torch.tensor([1, 0, 0, 0, 0]), observed)
    torch.testing.assert_close(found[:, 1].exp(), torch.tensor([1.0, 0.5, 0.5, 0.5, 0.5]).double())


@pytest.mark.parametrize("statistic", [Count(3), Transitions(5), CategoryCounts(3, 3), BlockCounts([[1, 0], [2]])])
def test_pickle(statistic):
    other = pickle.loads(pickle.dumps(statistic))
    torch.testing.assert_close(other.log_sizes, statistic.log_sizes)


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: Count(0), "num_variables: expected an integer of at least 1, got 0"),
        (lambda: Transitions(1.5), "num_variables: expected an integer of at least 1, got 1.5"),
        (lambda: BlockCounts([[0, 1], [1]]), r"blocks: expected a partition of range\(3\) into non-empty sets, got"),
        (lambda: BlockCounts([[0], []]), r"blocks: expected a partition of range\(1\) into non-empty sets"),
        (lambda: BlockCounts(None), "blocks: expected sequences of integers, got None"),
        (lambda: BlockCounts([0, 1]), r"blocks: expected sequences of integers, got \[0, 1\]"),
        (lambda: BlockCounts([[0, 1.7]]), r"blocks: expected sequences of integers, got \[\[0, 1.7\]\]"),
        (lambda: BlockCounts([[d] for d in range(40)]), r"blocks: expected at most \d+ levels, .* use Exchangeable"),
        (lambda: Product([Count(2)], []), r"groups: expected a partition of range\(0\) into non-empty sets, got \[\]"),
        (lambda: Product([Count(1)], [[0], [1]]), "statistics: expected one for each of 2 groups, got"),
        (lambda: Product(None, [[0]]), "statistics: expected one for each of 1 groups, got None"),
        (lambda: Product([Count(1)], None), "groups: expected sequences of integers, got None"),
        (lambda: Product([Count(2)], [[0.0, 1.0]]), "groups: expected sequences of integers, got"),
        (
            lambda: Product([Count(1)] * 40, [[d] for d in range(40)]),
            rf"groups: expected at most {2**22} levels, got {2**40}; use ExchangeablePartition",
        ),
        (lambda: Product([Count(2)], [[0]]), r"groups: expected 2 variables in groups\[0\]"),
        (lambda: Product(["count"], [[0]]), r"statistics: expected a Statistic in statistics\[0\]"),
        (
            lambda: Product([Count(1), CategoryCounts(1, 3)], [[0], [1]]),
            r"statistics: expected 2 categories in statistics\[1\]",
        ),
        (lambda: NestedThreshold([[0, 1]], -1), "threshold: expected an integer of at least 0, got -1"),
        (lambda: NestedThreshold([[0, 2]], 1), r"groups: expected a partition of range\(2\)"),
        (lambda: NestedThreshold([], 1), r"groups: expected a partition"),
        (lambda: NestedThreshold([[0, 1.0]], 1), r"groups: expected sequences of integers, got \[\[0, 1.0\]\]"),
        (lambda: CategoryCounts(1000, 10), r"num_categories: expected at most \d+ levels, got \d+"),
        (
            lambda: AutomatonStatistic(2, torch.zeros(3, 1, 2, dtype=torch.long), torch.zeros(1, dtype=torch.long)),
            r"transitions: expected a tensor of integers of shape .*, got torch.int64 of shape \(3, 1, 2\)",
        ),
        (
            lambda: AutomatonStatistic(2, [[0, 0]], torch.zeros(1, dtype=torch.long)),
            r"transitions: expected a tensor of integers of shape .*, got \[\[0, 0\]\]",
        ),
        (
            lambda: AutomatonStatistic(2, torch.ones(1, 2, dtype=torch.long), torch.zeros(1, dtype=torch.long)),
            r"transitions: expected states in range\(1\)",
        ),
        (
            lambda: AutomatonStatistic(2, torch.zeros(1, 2, dtype=torch.long), torch.zeros(2, dtype=torch.long)),
            r"levels: expected a tensor of 1 integers",
        ),
        (
            lambda: AutomatonStatistic(2, torch.zeros(1, 2).long(), [0]),
            r"levels: .* 1 integers of at least 0, got \[0\]",
        ),
        (
            lambda: AutomatonStatistic(2, torch.zeros(1, 2).long(), torch.tensor([10**12])),
            rf"levels: expected at most {2**22} levels, got {10**12 + 1}; number them without gaps",
        ),
        (
            lambda: AutomatonStatistic(2, torch.zeros(1, 2).long(), torch.zeros(1).long(), [0.5, 1]),
            r"order: expected a sequence of integers, got \[0.5, 1\]",
        ),
        (
            lambda: AutomatonStatistic(2, torch.zeros(1, 2, dtype=torch.long), torch.zeros(1).long(), [0, 0]),
            r"order: expected all of range\(2\) once, got \[0, 0\]",
        ),
    ],
)
def test_bad_arguments(construct, message):
    with pytest.raises(ValueError, match=message):
        construct()


def test_integers_of_other_kinds():
    expected = BlockCounts([[0, 2], [1]])
    for blocks in ([np.array([0, 2]), [np.int32(1)]], [torch.tensor([0, 2]), torch.tensor([1])]):
        assert BlockCounts(blocks).groups == expected.groups
    order = torch.tensor([1, 0])
    assert AutomatonStatistic(2, torch.zeros(1, 2).long(), torch.zeros(1).long(), order).num_levels == 1
