"""The references are checked against closed forms, and against each other."""

import math

import pytest
import torch
from torch.distributions import Bernoulli

from pyro_structured.testing import brute_force

NESTED = [[0, 2], [1], [], [0, 1, 2, 3], [2, 0]]
SIZES = [len(s) for s in NESTED]
TABLE_SIZE = sum(SIZES) + len(SIZES)


def parameters(*batch):
    return torch.randn(*batch, 4, dtype=torch.float64), torch.randn(*batch, TABLE_SIZE, dtype=torch.float64)


def test_vectors_are_in_lexicographic_order():
    assert brute_force.binary_vectors(3).tolist() == [[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)]


def test_weights_of_one_vector():
    """Spelled out by hand for y = (1, 0, 1, 1)."""
    x, f = parameters()
    table = dict(zip("abcde", f.split([size + 1 for size in SIZES]), strict=True))
    by_hand = x[0] + x[2] + x[3] + table["a"][2] + table["b"][0] + table["c"][0] + table["d"][3] + table["e"][2]
    torch.testing.assert_close(brute_force.log_weights(x, f, NESTED)[0b1011], by_hand)


def test_independent_variables():
    x = torch.randn(3, 5, dtype=torch.float64)
    prior, zeros = Bernoulli(logits=x), torch.zeros(6, dtype=torch.float64)
    torch.testing.assert_close(brute_force.log_partition(x, zeros), torch.nn.functional.softplus(x).sum(-1))
    torch.testing.assert_close(brute_force.log_partition(x, zeros[:0], []), brute_force.log_partition(x, zeros))
    torch.testing.assert_close(brute_force.marginals(x, zeros), prior.probs)
    torch.testing.assert_close(brute_force.marginal_logits(x, zeros), x)
    torch.testing.assert_close(brute_force.entropy(x, zeros), prior.entropy().sum(-1))
    torch.testing.assert_close(brute_force.mode(x, zeros), (x > 0).double())
    value = prior.sample()
    observed = torch.tensor([True, False, True, True, False])
    expected = (prior.log_prob(value) * observed).sum(-1)
    torch.testing.assert_close(brute_force.marginal_log_prob(value, observed, x, zeros), expected)


def test_gradient_is_the_posterior():
    x, f = (p.requires_grad_() for p in parameters(2))
    gradients = torch.autograd.grad(brute_force.log_partition(x, f, NESTED).sum(), (x, f))
    torch.testing.assert_close(gradients[0], brute_force.marginals(x, f, NESTED))
    torch.testing.assert_close(gradients[1], brute_force.count_marginals(x, f, NESTED))
    torch.testing.assert_close(brute_force.marginal_logits(x, f, NESTED).sigmoid(), gradients[0])


def test_clamps_weigh_nothing():
    """A clamped variable is gone, and so is its logit."""
    x, f = parameters()
    x[2], x[3] = math.inf, -math.inf
    free = torch.stack([x[0], x[1]])
    tables = f.split([size + 1 for size in SIZES])
    reduced = torch.cat([tables[0][1:], tables[1], tables[2], tables[3][1:4], tables[4][1:]])
    remaining = [[0], [1], [], [0, 1], [0]]
    torch.testing.assert_close(
        brute_force.log_partition(x, f, NESTED), brute_force.log_partition(free, reduced, remaining)
    )
    assert brute_force.marginal_logits(x, f, NESTED)[2:].tolist() == [math.inf, -math.inf]


def test_impossible_counts():
    table = torch.tensor([-math.inf, 0.0, -math.inf, -math.inf], dtype=torch.float64)
    x = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(brute_force.marginals(x, table), torch.softmax(x, -1))
    torch.testing.assert_close(brute_force.log_partition(x, table), torch.logsumexp(x, -1))
    assert brute_force.log_partition(x, torch.full((4,), -math.inf)) == -math.inf
    torch.testing.assert_close(brute_force.entropy(x, table), torch.distributions.Categorical(logits=x).entropy())


def test_conditioning():
    x, f = parameters(2)
    value = torch.tensor([1.0, 0.0, 0.0, 1.0])
    observed = torch.tensor([[True, False, False, True], [False, True, False, False]])
    given = brute_force.condition(value, observed, x, f, NESTED)
    torch.testing.assert_close(given.exp().sum(-1), torch.ones(2, dtype=torch.float64))
    joint = brute_force.log_probs(x, f, NESTED)
    evidence = brute_force.marginal_log_prob(value, observed, x, f, NESTED)
    assert (given > -math.inf).sum(-1).tolist() == [4, 8]
    possible = given > -math.inf
    torch.testing.assert_close((given + evidence.unsqueeze(-1))[possible], joint[possible])
    impossible = brute_force.marginal_log_prob(value, observed, x, f.masked_fill(torch.tensor(True), -math.inf), NESTED)
    assert impossible.isnan().all() or (impossible == -math.inf).all()


@pytest.mark.parametrize("batch", [(), (3,), (2, 1)])
def test_batches(batch):
    x, f = parameters(*batch)
    f = f[(0,) * len(batch)]
    for function, size in [
        (brute_force.log_partition, ()),
        (brute_force.entropy, ()),
        (brute_force.marginals, (4,)),
        (brute_force.marginal_logits, (4,)),
        (brute_force.mode, (4,)),
        (brute_force.count_marginals, (TABLE_SIZE,)),
        (brute_force.log_probs, (16,)),
    ]:
        whole = function(x, f, NESTED)
        assert whole.shape == (*batch, *size)
        index = tuple(n - 1 for n in batch)
        torch.testing.assert_close(whole[index], function(x[index], f, NESTED))


@pytest.mark.parametrize(
    ("logits", "count_logits", "message"),
    [
        (None, torch.zeros(4), "logits: expected a tensor with an axis, got None"),
        (torch.tensor(1.0), torch.zeros(4), "logits: expected a tensor with an axis, got tensor"),
        (torch.zeros(3), [0.0] * 4, "count_logits: expected a tensor with an axis, got"),
        (torch.zeros(3).to_sparse(), torch.zeros(4), "logits: expected a dense tensor"),
        (torch.zeros(3), torch.zeros(5), "count_logits: expected"),
        (torch.zeros(2, 3), torch.zeros(3, 4), "count_logits: expected"),
    ],
)
def test_bad_input(logits, count_logits, message):
    for query in (brute_force.log_weights, brute_force.log_partition, brute_force.mode):
        with pytest.raises(ValueError, match=f"^{message}"):
            query(logits, count_logits)


def test_bad_number():
    with pytest.raises(ValueError, match="num_variables: expected an integer of at least 0, got 1.5"):
        brute_force.binary_vectors(1.5)
