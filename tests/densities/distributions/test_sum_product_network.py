"""Sum-product networks against sums over networks, states and leaves."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.distributions import ExchangeablePartition, SumProductNetwork
from pyro_structured.structures import Partition, RegionTree
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical


def random_structure(generator, networks, regions, states, n):
    def below(number, shape=()):
        return int(torch.randint(number, shape, generator=generator))

    region = torch.randint(regions, (networks, n), generator=generator)
    region_parents = torch.tensor([[below(max(g, 1)) for g in range(regions)] for _ in range(networks)])
    variable_parents = torch.arange(n).repeat(networks, states, 1)
    labels = torch.arange(n).repeat(networks, states, 1)
    for m, k, d in itertools.product(range(networks), range(states), range(n)):
        before = [e for e in range(d + 1) if region[m, e] == region[m, d]]
        variable_parents[m, k, d] = before[below(len(before))]
        labels[m, k, d] = labels[m, k, before[below(len(before))]]
    return RegionTree(region, region_parents, variable_parents, Partition(labels))


def draw_network(seed, networks=2, regions=3, states=2, n=4, batch=(), lost=0.0):
    generator = torch.Generator().manual_seed(seed)
    structure = random_structure(generator, networks, regions, states, n)

    def table(*shape, lost=0.0):
        numbers = 2 * torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)
        none = torch.rand(numbers.shape, generator=generator) < lost
        none[..., 0] = False
        return numbers.masked_fill(none, -math.inf)

    counts = table(networks, states, 2 * n, lost=lost)
    starts = structure.partition.starts.expand(*batch, networks, states, n)
    counts = counts.scatter(-1, starts, 0.5)
    transitions = table(networks, regions, states, states, lost=lost)
    leaves = table(networks, regions, states, 2).flip(-1)
    leaves[..., 0] = leaves[..., 0].masked_fill(torch.rand(leaves[..., 0].shape, generator=generator) < lost, -math.inf)
    d = SumProductNetwork(table(networks), transitions, leaves, table(networks, states, n, 2), counts, structure)
    return d, generator


def slow_log_prob(d, values):
    """Sums over all states of all regions."""
    s, found = d.structure, []
    transitions, leaves = d.transition_logits.log_softmax(-1), d.leaf_logits.log_softmax(-1)
    for m in range(s.num_networks):
        each = {}
        for g, k in itertools.product(range(s.num_regions), range(s.num_states)):
            inside = torch.nonzero(s.regions[m] == g).squeeze(-1).tolist()
            forest = torch.zeros(len(values), dtype=torch.float64)
            for v in inside:
                parent = int(s.variable_parents[m, k, v])
                above = values[:, parent].long() if parent != v else torch.zeros(len(values), dtype=torch.long)
                sign = 2 * values[:, v] - 1
                forest += torch.nn.functional.logsigmoid(sign * d.conditional_logits[m, k, v][above])
            blocks = torch.zeros(len(values), dtype=torch.float64)
            partition = s.partition[m, k]
            for block in partition.blocks():
                if block[0] in inside:
                    start, size = int(partition.starts[block[0]]), len(block)
                    log_w = d.statistic_logits[m, k, start : start + size + 1].log_softmax(-1)
                    count = values[:, block].sum(-1).long()
                    ways = torch.tensor([math.comb(size, t) for t in range(size + 1)], dtype=torch.float64)
                    blocks += log_w[count] - ways[count].log()
            each[g, k] = torch.logaddexp(leaves[m, g, k, 0] + forest, leaves[m, g, k, 1] + blocks)
        terms = []
        for z in itertools.product(range(s.num_states), repeat=s.num_regions):
            terms.append(
                sum(
                    each[g, z[g]] + transitions[m, g, z[s.region_parents[m, g]] if g else 0, z[g]]
                    for g in range(s.num_regions)
                )
            )
        found.append(torch.stack(terms).logsumexp(0))
    return (d.network_logits.log_softmax(-1).unsqueeze(-1) + torch.stack(found)).logsumexp(0)


@pytest.mark.slow
@given(
    st.integers(0, 2**16), st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5),
    st.sampled_from([0.0, 0.4]),
)  # fmt: skip
def test_enumeration(check_evidence, seed, networks, regions, states, n, lost):
    d, generator = draw_network(seed, networks, regions, states, n, lost=lost)
    values = d.enumerate_support()
    log_p = slow_log_prob(d, values)
    torch.testing.assert_close(log_p.logsumexp(0), torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(d.log_prob(values), log_p, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(d.marginals, log_p.exp() @ values, rtol=1e-9, atol=1e-12)

    *_, both = check_evidence(d, generator)
    if both is not None:
        torch.testing.assert_close(both.variance, both.marginals * (1 - both.marginals), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(torch.sigmoid(both.marginal_logits), both.marginals, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("observed", [[False] * 5, [True, False, False, True, False]], ids=str)
@pytest.mark.parametrize("lost", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(4))
def test_samples(observed, lost, seed):
    torch.manual_seed(0)
    d, _ = draw_network(seed, regions=2, n=5, lost=lost)
    evidence = d.condition(d.sample(), torch.tensor(observed))
    drawn = evidence.sample((20000,))
    states = (drawn * 2 ** torch.arange(4, -1, -1)).sum(-1).long()
    probs = evidence.log_prob(d.enumerate_support()).exp()
    assert discrete_goodness_of_fit(probs, states.bincount(minlength=32)) > 2e-9


def test_contradicting_evidence():
    d, _ = draw_network(2)
    first, observed = torch.zeros(4), torch.tensor([True, False, False, False])
    contradiction = d.condition(first, observed).condition(1 - first, observed)
    assert d.condition(first, observed).marginal_log_prob(1 - first, observed) == -math.inf
    with pytest.raises(ValueError, match="value: expected evidence of positive probability"):
        contradiction.log_partition_function  # noqa: B018


def test_one_region_without_forests_is_a_mixture_of_partitions():
    d, _ = draw_network(1, networks=1, regions=1, states=3)
    leaves = torch.zeros_like(d.leaf_logits)
    leaves[..., 0] = -math.inf
    d = SumProductNetwork(
        d.network_logits, d.transition_logits, leaves, d.conditional_logits, d.statistic_logits, d.structure
    )
    values = d.enumerate_support()
    parts = ExchangeablePartition(d.statistic_logits[0], d.structure.partition[0]).log_prob(values.unsqueeze(1))
    expected = (parts + d.transition_logits[0, 0, 0].log_softmax(-1)).logsumexp(-1)
    torch.testing.assert_close(d.log_prob(values), expected)


@pytest.mark.parametrize("constant", [1e8, 1e16, -1e16, 1e300])
def test_constants_cost_no_digits(constant):
    d, _ = draw_network(6)
    zeros = [torch.zeros_like(t) for t in (d.network_logits, d.transition_logits, d.leaf_logits)]
    plain = SumProductNetwork(*zeros, d.conditional_logits, d.statistic_logits, d.structure)
    same = SumProductNetwork(*(z + constant for z in zeros), d.conditional_logits, d.statistic_logits, d.structure)
    values = d.enumerate_support()
    torch.testing.assert_close(same.log_prob(values), plain.log_prob(values))
    torch.testing.assert_close(same.marginal_logits, plain.marginal_logits)


def test_no_closed_form_for_many_variables():
    d, _ = draw_network(4, n=13)
    for query in (lambda: d.mode, d.entropy):
        with pytest.raises(NotImplementedError, match=r"has no closed form, and enumeration is capped at 4096 vectors"):
            query()
    assert d.sample((3,)).shape == (3, 13) and d.marginals.shape == (13,)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("network_logits", torch.zeros(3), r"expected shape \(..., 2\), got \(3,\)"),
        ("transition_logits", torch.zeros(2, 3, 2, 1), r"expected shape \(..., 2, 3, 2, 2\), got \(2, 3, 2, 1\)"),
        ("leaf_logits", torch.zeros(2), r"expected shape \(..., 2, 3, 2, 2\)"),
        ("conditional_logits", torch.full((2, 2, 4, 2), -math.inf), "expected finite numbers"),
        ("statistic_logits", torch.full((2, 2, 8), math.nan), "statistic_logits"),
        ("structure", None, "expected a RegionTree, got NoneType"),
    ],
)
def test_wrong_arguments(name, value, message):
    d, _ = draw_network(0)
    given = {n: getattr(d, n) for n in (*SumProductNetwork.arg_constraints, "structure")}
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        SumProductNetwork(**(given | {name: value}))
    with pytest.raises(ValueError, match=r"transition_logits: expected a batch that broadcasts with \(3,\)"):
        SumProductNetwork(
            **(given | {"network_logits": torch.zeros(3, 2), "transition_logits": torch.zeros(4, 2, 3, 2, 2)})
        )
