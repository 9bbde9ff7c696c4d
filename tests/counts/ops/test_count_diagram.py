"""Sums, derivatives, draws and best vectors of decision diagrams equal enumeration."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.counts.ops import count_diagram
from pyro_structured.counts.ops.count_diagram import Counter, DiagramChoices, DiagramPlan, order_variables
from pyro_structured.foundation.ops.marginal_inference import infer_marginals
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit


def random_counters(rng, num_variables, number):
    """Counters with weights of their own for both values, whose tables stand one after the other."""
    counters, start = [], 0
    for _ in range(number):
        members = rng.permutation(num_variables)[: rng.integers(0, num_variables + 1)]
        off, on = rng.integers(0, 2, (2, len(members)))
        on = on * rng.integers(1, 3, len(members))
        size = 1 + int(np.maximum(off, on).sum())
        counters.append(Counter(members, off, on, start, size))
        start += size
    return counters, start


def random_problem(seed, rows=2):
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 8))
    counters, size = random_counters(rng, number, int(rng.integers(0, 4)))
    scale = rng.choice([0.1, 1.0, 30.0])
    weights, tables = scale * rng.normal(size=(rows, number, 2)), scale * rng.normal(size=(rows, size))
    weights[rng.random(weights.shape) < 0.1] = -math.inf
    tables[rng.random(tables.shape) < 0.25] = -math.inf
    orders = [rng.permutation(number).tolist(), order_variables(counters, number)]
    return counters, DiagramPlan(counters, orders, "remedy"), torch.from_numpy(weights), torch.from_numpy(tables)


def enumerated(counters, weights, tables):
    """All vectors, and their log-weights, shape ``(2 ** n, rows)``."""
    values = torch.tensor(list(itertools.product((0, 1), repeat=weights.shape[1]))).reshape(-1, weights.shape[1])
    total = torch.zeros(len(values), len(weights), dtype=torch.double)
    for d, column in enumerate(values.T):
        total += weights[:, d, column].T
    for counter in counters:
        cells = torch.full((len(values),), counter.start)
        for d, off, on in zip(counter.members, counter.off, counter.on, strict=True):
            cells += torch.where(values[:, d] == 1, int(on), int(off))
        total += tables[:, cells].T
    return values, total


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6))
def test_sums_and_derivatives(seed):
    counters, plan, weights, tables = random_problem(seed)
    parameters = [weights.flatten(1).requires_grad_(), tables.requires_grad_()]
    values, log_weights = enumerated(counters, weights, tables)
    expected = torch.logsumexp(log_weights.detach(), 0)
    log_z, of_values, of_tables = infer_marginals(plan, *parameters)
    torch.testing.assert_close(log_z, expected, rtol=1e-12, atol=1e-12)
    possible = expected > -math.inf
    probs = (log_weights - expected.masked_fill(~possible, 0.0)).exp()
    ones = torch.einsum("vr,vd->rd", probs, values.double())
    torch.testing.assert_close(of_values.unflatten(-1, (-1, 2))[..., 1], ones, rtol=1e-10, atol=1e-12)
    found = torch.autograd.grad(log_z[possible].sum(), parameters, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found[0][possible], of_values[possible])
    torch.testing.assert_close(found[1][possible], of_tables[possible])
    for result in (of_values, of_tables):
        assert bool(result.isfinite().all())


@pytest.mark.parametrize("seed", range(6))
def test_second_derivatives(seed):
    _, plan, weights, tables = random_problem(seed, rows=1)
    # Infinite entries stay.
    masks = [tensor.isinf() for tensor in (weights.flatten(1), tables)]
    free = [tensor.masked_fill(mask, 0.0) for tensor, mask in zip((weights.flatten(1), tables), masks, strict=True)]

    def log_z(*tensors):
        filled = [tensor.masked_fill(mask, -math.inf) for tensor, mask in zip(tensors, masks, strict=True)]
        return infer_marginals(plan, *filled, marginals=False)[0].masked_fill(impossible, 0.0)

    impossible = torch.zeros(1, dtype=torch.bool)
    impossible = log_z(*free) == -math.inf
    free = [(tensor / tensor.abs().amax().clamp(min=1.0)).requires_grad_() for tensor in free if tensor.numel()]
    if len(free) == 2:
        torch.autograd.gradgradcheck(log_z, free)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_best_vectors(seed):
    counters, plan, weights, tables = random_problem(seed)
    values, log_weights = enumerated(counters, weights, tables)
    best = DiagramChoices(plan, weights, tables, largest=True)
    expected = log_weights.amax(0)
    assert best.possible == bool((expected > -math.inf).all())
    if best.possible:
        found = best(1)[0]
        for row, value in enumerate(found):
            place = (values == value).all(-1).nonzero()[0]
            torch.testing.assert_close(log_weights[place, row].squeeze(), expected[row])


@pytest.mark.statistical
@pytest.mark.parametrize("seed", [1, 3, 8])
def test_draws(seed):
    torch.manual_seed(seed)
    counters, plan, weights, tables = random_problem(seed, rows=1)
    values, log_weights = enumerated(counters, weights, tables)
    drawn = DiagramChoices(plan, weights, tables)(20_000)[:, 0]
    digits = 2 ** torch.arange(values.shape[1] - 1, -1, -1, dtype=torch.double)
    counts = torch.bincount((drawn @ digits).long(), minlength=len(values))
    assert discrete_goodness_of_fit(log_weights[:, 0].softmax(0), counts) > 1e-6


def matching(height, width):
    rows = [np.arange(i * width, (i + 1) * width) for i in range(height)]
    columns = [np.arange(j, height * width, width) for j in range(width)]
    counters, start = [], 0
    for members in rows + columns:
        one = np.ones(len(members), dtype=np.int64)
        counters.append(Counter(members, 0 * one, one, start, len(members) + 1))
        start += len(members) + 1
    return counters, start


def one_to_one(counters, size):
    tables = torch.full((1, size), -math.inf, dtype=torch.double)
    return tables.index_fill(1, torch.tensor([counter.start + 1 for counter in counters]), 0.0)


@pytest.mark.parametrize("number", [1, 5, 9])
def test_permanents(number):
    """All weights one: the number of permutations; few states by sums of counts."""
    counters, size = matching(number, number)
    plan = DiagramPlan(counters, [order_variables(counters, number**2)], "")
    weights = torch.zeros(1, number**2, 2, dtype=torch.double)
    tables = one_to_one(counters, size)
    (log_z,) = plan.solve((weights.flatten(1), tables), False)
    assert log_z.item() == pytest.approx(math.lgamma(number + 1), abs=1e-12)
    assert plan.diagram(weights, tables).num_states < 4 * number * 2**number


def test_the_cheapest_order_is_taken():
    counters, size = matching(3, 8)
    by_row, by_column = list(range(24)), [j + 8 * i for j in range(8) for i in range(3)]
    weights, tables = torch.zeros(1, 24, 2), torch.zeros(1, size)
    sizes = {
        str(orders): DiagramPlan(counters, orders, "").diagram(weights, tables).num_states
        for orders in ([by_row], [by_column], [by_row, by_column])
    }
    first, second, both = sizes.values()
    assert both == min(first, second) < max(first, second)


def test_too_many_states(monkeypatch):
    counters, size = matching(4, 5)
    weights, tables = torch.zeros(1, 20, 2), torch.zeros(1, size)
    for saving in (0.0, 100.0):
        # Refused by the estimate, and while states are counted.
        monkeypatch.setattr(count_diagram, "MOST_STATES", 100)
        monkeypatch.setattr(count_diagram, "LARGEST_SAVING", saving)
        plan = DiagramPlan(counters, [list(range(20))], "take another way")
        with pytest.raises(NotImplementedError, match="at most 100 states .* got more; take another way"):
            plan.diagram(weights, tables)


def test_codes_that_are_too_large_for_integers():
    counters, size = matching(80, 80)
    with pytest.raises(NotImplementedError, match="exact sums"):
        DiagramPlan(counters, [list(range(6400))], "").diagram(torch.zeros(1, 6400, 2), torch.zeros(1, size))


def test_rows_in_parts_and_pickles(monkeypatch):
    counters, plan, weights, tables = random_problem(5, rows=7)
    expected = plan.solve((weights.flatten(1), tables), True)
    monkeypatch.setattr(count_diagram, "STATES_AT_ONCE", 1)
    for found in (plan, pickle.loads(pickle.dumps(plan))):
        for result, whole in zip(found.solve((weights.flatten(1), tables), True), expected, strict=True):
            torch.testing.assert_close(result, whole)
