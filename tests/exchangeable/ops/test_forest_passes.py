"""Forests of variables against sums over all their values."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from pyro_structured.exchangeable.ops.forest_passes import forest_downward, forest_sample, forest_score, forest_upward
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical


def random_forests(seed, forests, n):
    """Tables, parents, levels and their number; variables are numbered at random."""
    generator = torch.Generator().manual_seed(seed)
    parents, levels = torch.zeros(2, forests, n, dtype=torch.long)
    for f in range(forests):
        order = torch.randperm(n, generator=generator).tolist()
        for place, d in enumerate(order):
            above = order[int(torch.randint(place + 1, (), generator=generator))]
            parents[f, d], levels[f, d] = above, 0 if above == d else levels[f, above] + 1
    odds = 3 * torch.randn(forests, n, 2, generator=generator, dtype=torch.double)
    tables = torch.stack([logsigmoid(-odds), logsigmoid(odds)], -1)
    return tables, parents, levels, int(levels.max()) + 1


def slow_scores(tables, parents, values):
    """Log-probabilities of the variables given their parents, shape ``(values, forests, n)``."""
    found = torch.empty(len(values), *parents.shape, dtype=torch.double)
    for v, f, d in itertools.product(*map(range, found.shape)):
        above = int(parents[f, d])
        given_one = above != d and bool(values[v, above])
        found[v, f, d] = tables[f, d, int(given_one), int(values[v, d])]
    return found


def all_values(n):
    return torch.tensor(list(itertools.product([False, True], repeat=n)))


@given(st.integers(0, 2**16), st.integers(1, 3), st.integers(1, 6))
def test_score(seed, forests, n):
    tables, parents, *_ = random_forests(seed, forests, n)
    values = all_values(n)
    score = forest_score(tables, parents, values.unsqueeze(1))
    torch.testing.assert_close(score, slow_scores(tables, parents, values))
    torch.testing.assert_close(score.sum(-1).logsumexp(0), torch.zeros(forests, dtype=torch.double))


@given(st.integers(0, 2**16), st.integers(1, 3), st.integers(1, 6))
def test_sums_and_marginals(seed, forests, n):
    tables, parents, levels, num_levels = random_forests(seed, forests, n)
    values = all_values(n)
    evidence = torch.randint(4, (n,), generator=torch.Generator().manual_seed(seed))  # 2 and 3: nothing is known
    possible = torch.stack([evidence != 1, evidence != 0], -1)
    agrees = possible.gather(-1, values.mT.long()).mT.all(-1)
    weights = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    values = values[agrees]
    log_p = slow_scores(tables, parents, values).sum(-1)
    log_p = log_p + weights.gather(-1, values.mT.long()).sum(0).unsqueeze(-1)

    log_weights = weights.masked_fill(~possible, -math.inf)
    beliefs, messages = forest_upward(tables, parents, levels, num_levels, log_weights)
    torch.testing.assert_close(messages[..., 0].masked_fill(levels > 0, 0.0).sum(-1), log_p.logsumexp(0))
    found = forest_downward(tables, parents, levels, num_levels, beliefs, messages).exp()
    ones = log_p.softmax(0).mT @ values.double()
    torch.testing.assert_close(found, torch.stack([1 - ones, ones], -1), rtol=1e-9, atol=1e-9)


@given(st.integers(0, 2**16))
def test_beliefs_and_messages(seed):
    """Log-weights of subtrees in a chain, given a variable's value, and given its parent's."""
    tables, *_ = random_forests(seed, 1, 4)
    parents, levels = torch.tensor([[0, 0, 1, 2]]), torch.tensor([[0, 1, 2, 3]])
    log_weights = torch.tensor([[0, 0], [0, 0], [0, -math.inf], [-math.inf, 0]]).double()
    beliefs, messages = forest_upward(tables, parents, levels, 4, log_weights)
    last = tables[0, 3, :, 1]
    torch.testing.assert_close(messages[0, 3], last)
    torch.testing.assert_close(beliefs[0, 2], torch.stack([last[0], torch.tensor(-math.inf).double()]))
    torch.testing.assert_close(messages[0, 2], tables[0, 2, :, 0] + last[0])


def test_sample():
    torch.manual_seed(0)
    tables, parents, levels, num_levels = random_forests(3, 2, 4)
    log_weights = torch.zeros(4, 2, dtype=torch.double)
    log_weights[1, 0] = -math.inf
    beliefs, _ = forest_upward(tables, parents, levels, num_levels, log_weights)
    drawn = forest_sample(tables, parents, levels, num_levels, beliefs.expand(20000, -1, -1, -1))
    assert drawn.shape == (20000, 2, 4) and drawn[..., 1].all()
    values = all_values(4)
    log_p = slow_scores(tables, parents, values).sum(-1).masked_fill(~values[:, 1:2], -math.inf)
    states = (drawn * torch.tensor([8, 4, 2, 1])).sum(-1)
    for forest in range(2):
        counted = states[:, forest].bincount(minlength=16)
        assert discrete_goodness_of_fit(log_p[:, forest].softmax(0), counted) > 2e-9
