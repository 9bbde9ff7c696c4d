"""Latent trees against enumeration of all latent and observed states, and against independent implementations."""

import itertools
import math

import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import JunctionTree, LatentTree
from pyro_structured.structures import HiddenTree
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit


def random_tree(generator, most=4):
    """Random forest of up to four variables with unequal numbers of states, in any order."""
    draw = lambda high: int(torch.randint(high, (), generator=generator))  # noqa: E731
    number = 1 + draw(most)
    names = torch.randperm(number, generator=generator).tolist()
    parents = [0] * number
    for place, name in enumerate(names):
        parents[name] = names[draw(place)] if place and draw(4) else name
    return HiddenTree(parents, [1 + draw(3) for _ in names], [1 + draw(3) for _ in names])


def random_distribution(seed, batch=(), scale=1.0, impossible=0.15):
    generator = torch.Generator().manual_seed(seed)
    tree = random_tree(generator)
    number, latent, observed = tree.num_variables, max(tree.num_states), max(tree.cardinalities)
    tables = []
    for shape in ((number, latent, latent), (number, latent, observed)):
        table = scale * torch.randn(*batch, *shape, dtype=torch.double, generator=generator)
        lost = torch.rand(table.shape, generator=generator) < impossible
        lost[..., 0] = False
        tables.append(table.masked_fill(lost, -math.inf))
    return LatentTree(*tables, tree), generator


def joint_table(d):
    """All latent values, all observed values, and the log-probability of each pair, by the definition."""
    tree = d.tree
    latent = torch.tensor(list(itertools.product(*map(range, tree.num_states))))
    observed = torch.tensor(list(itertools.product(*map(range, tree.cardinalities))))
    total = torch.zeros(len(latent), len(observed), dtype=torch.double)
    for v, parent in enumerate(tree.parents):
        size, values = tree.num_states[v], tree.cardinalities[v]
        transition = d.transition_logits[v, :, :size].log_softmax(-1)
        emission = d.emission_logits[v, :size, :values].log_softmax(-1)
        above = latent[:, parent] if parent != v else torch.zeros(len(latent), dtype=torch.long)
        total += transition[above, latent[:, v]].unsqueeze(1) + emission[latent[:, v]][:, observed[:, v]]
    return latent, observed, total


CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 30.0, 1e3]))
def test_enumeration(seed, scale):
    d, generator = random_distribution(seed, scale=scale)
    latent, observed, joint = joint_table(d)
    torch.testing.assert_close(d.log_prob(observed), joint.logsumexp(0), **CLOSE)
    number = d.tree.num_variables
    seen = torch.rand(number, generator=generator) < 0.5
    weights = scale * torch.randn(number, max(d.tree.cardinalities), dtype=torch.double, generator=generator)
    value = observed[int(torch.randint(len(observed), (), generator=generator))]
    given_all = joint + sum(weights[v][observed[:, v]] for v in range(number))
    given_all = given_all.masked_fill(((observed != value) & seen).any(-1), -math.inf)
    evidence = given_all.flatten().logsumexp(0)
    posterior = d.reweight(weights).condition(value, seen)
    if evidence == -math.inf:
        with pytest.raises(ValueError, match="no value is compatible"):
            posterior.log_partition_function  # noqa: B018
        return
    torch.testing.assert_close(posterior.log_partition_function, evidence, **CLOSE)
    probs = (given_all - evidence).exp()
    marginals, states = torch.zeros_like(posterior.marginals), torch.zeros_like(posterior.latent_marginals)
    for v in range(number):
        marginals[v].index_add_(0, observed[:, v], probs.sum(0))
        states[v].index_add_(0, latent[:, v], probs.sum(1))
    torch.testing.assert_close(posterior.marginals, marginals, **CLOSE)
    torch.testing.assert_close(posterior.latent_marginals, states, **CLOSE)
    best = posterior.joint_mode
    row = int((latent == best.latent).all(-1).nonzero()), int((observed == best.value).all(-1).nonzero())
    torch.testing.assert_close(given_all[row], given_all.max(), **CLOSE)


def test_batches():
    """Rows of tables, and of evidence, each alone and together."""
    for seed in range(20):
        d, generator = random_distribution(seed, (3, 1))
        values = torch.stack([torch.randint(size, (5, 3, 2), generator=generator) for size in d.tree.cardinalities], -1)
        seen = torch.rand(values.shape, generator=generator) < 0.5
        scores, evidence = d.log_prob(values), d.marginal_log_prob(values, seen)
        for k, i, j in itertools.product(range(5), range(3), range(2)):
            alone = LatentTree(d.transition_logits[i, 0], d.emission_logits[i, 0], d.tree)
            torch.testing.assert_close(scores[k, i, j], alone.log_prob(values[k, i, j]), **CLOSE)
            expected = alone.marginal_log_prob(values[k, i, j], seen[k, i, j])
            torch.testing.assert_close(evidence[k, i, j], expected, **CLOSE)


def test_hidden_markov_model():
    torch.manual_seed(0)
    initial, step, emit = torch.randn(1, 5).double(), torch.randn(5, 5).double(), torch.randn(5, 3).double()
    transitions = torch.cat([initial.expand(1, 5, 5), step.expand(11, 5, 5)])
    d = LatentTree(transitions, emit.expand(12, 5, 3), HiddenTree.chain(12, 5, 3))
    values = d.sample((100,))
    # Pyro's model makes a step before the first value.
    before = torch.full((5,), 0.2).double().log()
    first = dist.DiscreteHMM(before, transitions, dist.Categorical(logits=emit))
    torch.testing.assert_close(d.log_prob(values), first.log_prob(values), **CLOSE)


def test_large_trees_against_junction_trees():
    """Forty variables with many states: the junction tree of all latent and observed variables."""
    generator = torch.Generator().manual_seed(0)
    number, latent, observed = 40, 6, 4
    parents = [int(torch.randint(max(v, 1), (), generator=generator)) for v in range(number)]
    tables = [torch.randn(number, latent, size, generator=generator, dtype=torch.double) for size in (latent, observed)]
    d = LatentTree(*tables, HiddenTree(parents, latent, observed))
    transitions, emissions = (table.softmax(-1) for table in tables)
    above = [[] if v == 0 else [parents[v]] for v in range(number)] + [[v] for v in range(number)]
    shares = [transitions[0, 0], *transitions[1:], *emissions]
    other = JunctionTree.from_bayesian_network(above, shares)
    values = d.sample((20,))
    seen = torch.rand(20, number, generator=generator) < 0.7
    full = torch.cat([torch.zeros_like(values), values], -1)
    expected = other.marginal_log_prob(full, torch.cat([torch.zeros_like(seen), seen], -1))
    torch.testing.assert_close(d.marginal_log_prob(values, seen), expected, **CLOSE)
    given_both = d.condition(values, seen), other.condition(full, torch.cat([torch.zeros_like(seen), seen], -1))
    torch.testing.assert_close(given_both[0].marginals, given_both[1].marginals[:, number:, :observed], **CLOSE)


@pytest.mark.statistical
@pytest.mark.parametrize("batch", [(), (2,)])
def test_samples(batch):
    d, _ = random_distribution(3, batch)
    d = d.expand((2,))
    values = torch.tensor(list(itertools.product(*map(range, d.tree.cardinalities))))
    seen = torch.zeros(d.tree.num_variables, dtype=torch.bool)
    seen[0] = True
    torch.manual_seed(0)
    for each in (d, d.condition(torch.zeros(d.tree.num_variables), seen)):
        drawn = each.sample((4000,))
        log_probs = each.log_prob(values.unsqueeze(1).expand(-1, 2, -1))
        for row in range(2):
            counts = (drawn[:, row].unsqueeze(1) == values).all(-1).sum(0)
            discrete_goodness_of_fit(counts, log_probs[:, row].exp())


def test_gradients():
    """Marginals are the gradient of log Z, and second derivatives are those of differences."""
    d, generator = random_distribution(5, impossible=0.0)
    values = d.sample((3,))
    tables = [table.requires_grad_() for table in (d.transition_logits, d.emission_logits)]
    assert torch.autograd.gradcheck(lambda *t: LatentTree(*t, d.tree).log_prob(values), tables)
    assert torch.autograd.gradgradcheck(lambda *t: LatentTree(*t, d.tree).log_prob(values), tables)
    weights = torch.randn(values.shape[-1], max(d.tree.cardinalities), generator=generator, dtype=torch.double)
    weights.requires_grad_()
    posterior = d.reweight(weights)
    (gradient,) = torch.autograd.grad(posterior.log_partition_function, weights, retain_graph=True)
    torch.testing.assert_close(gradient, posterior.marginals, **CLOSE)
    rows = torch.stack([table.detach() for table in (weights, weights + 1)])
    mapped = torch.vmap(lambda w: d.reweight(w).log_partition_function)(rows)
    torch.testing.assert_close(mapped, d.reweight(rows).log_partition_function)


@pytest.mark.parametrize("rare", [10.0, 690.0, 709.0, 712.0, 718.0, 722.0, 725.0, 744.0, 760.0])
def test_derivatives_given_evidence_that_is_nearly_impossible(rare):
    """Sums of probabilities that are so small that their inverses overflow."""
    emissions = torch.tensor([[[0.0, -rare]]], dtype=torch.double, requires_grad=True)
    d = LatentTree(torch.zeros(1, 1, 1, dtype=torch.double), emissions, HiddenTree([0], 1, 2))
    d.reweight(torch.tensor([[0.0, rare]], dtype=torch.double)).marginals[0, 1].backward()
    torch.testing.assert_close(emissions.grad, torch.tensor([[[-0.25, 0.25]]], dtype=torch.double), rtol=1e-9, atol=0)
    # A hidden state that is as rare, and which alone shows what is observed.
    leaves = [torch.tensor(number, dtype=torch.double, requires_grad=True) for number in (0.3, 0.7)]
    first, last = leaves
    zero, infinity = torch.zeros(()).double(), torch.full((), math.inf).double()
    transitions = torch.stack([zero, zero, zero, zero, zero, -rare + zero, zero, -rare + zero, zero, zero, zero, last])
    shown = torch.stack([zero, zero - infinity, zero, first])
    emissions = torch.stack([torch.zeros(4).double(), shown, 2 * torch.eye(2).double().flatten()])
    d = LatentTree(transitions.reshape(3, 2, 2), emissions.reshape(3, 2, 2), HiddenTree.chain(3, 2))
    marginal = d.condition(torch.tensor([0, 1, 0]), torch.tensor([False, True, False])).marginals[2, 1]
    # Given the hidden state 1, the last one is 1 with the odds exp(last), and shows itself with the odds exp(2).
    share, shows = last.sigmoid(), torch.tensor(2.0).double().sigmoid()
    expected = share * shows + (1 - share) * (1 - shows)
    torch.testing.assert_close(marginal, expected, rtol=1e-9, atol=0)
    found = torch.autograd.grad(marginal, leaves)
    wanted = torch.autograd.grad(expected, last)
    torch.testing.assert_close(found, (torch.zeros(()).double(), *wanted), rtol=1e-9, atol=1e-12)


def test_errors():
    tree = HiddenTree([0, 0], 2, 3)
    transitions, emissions = torch.zeros(2, 2, 2), torch.zeros(2, 2, 3)
    with pytest.raises(ValueError, match=r"^transition_logits: expected shape \(..., 2, 2, 2\), got \(2, 2, 3\)"):
        LatentTree(emissions, emissions, tree)
    with pytest.raises(ValueError, match=r"^tree: expected a HiddenTree, got list"):
        LatentTree(transitions, emissions, [0, 0])
    with pytest.raises(ValueError, match=r"^emission_logits: expected a number above -inf in every row"):
        LatentTree(transitions, emissions - math.inf, tree).log_prob(torch.zeros(2))
    # States that a variable does not have are not looked at.
    unused = HiddenTree([0, 0], [2, 1], 3)
    d = LatentTree(transitions, emissions.index_fill(1, torch.tensor([1]), -1e30), unused)
    torch.testing.assert_close(d.log_prob(torch.zeros(2)), torch.tensor(1 / 9).log())
