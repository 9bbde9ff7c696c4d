"""One network of regions against sums over the states of all its regions."""

import itertools
import math

import numpy as np
import pytest
import torch

from pyro_structured.densities.models.region_network import RegionNetwork
from pyro_structured.models import ExchangeableSPN
from pyro_structured.structures import Partition

STATES = 2


def random_rows(number=80):
    """Different rows of three groups of variables that depend on one class; some rows are not for training."""
    generator = np.random.default_rng(0)
    classes = generator.integers(2, size=(number, 1))
    groups = (generator.random((number, 3)) < 0.2 + 0.6 * classes).repeat([3, 2, 2], axis=1)
    rows = np.unique(groups ^ (generator.random(groups.shape) < 0.15), axis=0)
    return torch.from_numpy(rows).double(), torch.from_numpy(generator.integers(4, size=len(rows))).double()


def make_network(values, weights, largest=3, smoothing=1.0, seed=0):
    return RegionNetwork(values, weights, STATES, largest, smoothing, np.random.RandomState(seed))


def leaf_log_prob(tables, g, k, values):
    """Log-probabilities of a region's variables given its state, shape ``(N,)``."""
    inside = torch.nonzero(tables["regions"] == g).squeeze(-1).tolist()
    forest, blocks = values.new_zeros(2, len(values))
    for d in inside:
        parent = int(tables["parents"][k, d])
        above = values[:, parent].long() if parent != d else torch.zeros(len(values), dtype=torch.long)
        odds = tables["conditional_logits"][k, d][above]
        forest = forest + torch.nn.functional.logsigmoid((2 * values[:, d] - 1) * odds)
    tables_of_blocks = Partition(tables["labels"][k]).split(tables["statistic_logits"][k])
    for table, members in zip(tables_of_blocks, Partition(tables["labels"][k]).blocks(), strict=True):
        if members[0] not in inside:
            continue
        log_w = table.log_softmax(-1)
        ways = torch.tensor([math.comb(len(members), t) for t in range(len(members) + 1)], dtype=torch.double).log()
        blocks = blocks + (log_w - ways)[values[:, members].sum(-1).long()]
    log_tree, log_blocks = tables["leaf_logits"][g, k].log_softmax(-1)
    return torch.logaddexp(log_tree + forest, log_blocks + blocks)


def slow_joint(tables, values):
    """All states of the regions, shape ``(Z, G)``, and their log-probabilities with the values, shape ``(N, Z)``."""
    number = len(tables["region_parents"])
    parents, transitions = tables["region_parents"].tolist(), tables["transition_logits"].log_softmax(-1)
    leaf = [[leaf_log_prob(tables, g, k, values) for k in range(STATES)] for g in range(number)]
    states = list(itertools.product(range(STATES), repeat=number))
    each = []
    for z in states:
        terms = (leaf[g][z[g]] + transitions[g, z[parents[g]] if g else 0, z[g]] for g in range(number))
        each.append(sum(terms))
    return torch.tensor(states), torch.stack(each, 1)


@pytest.mark.parametrize("steps", [0, 2])
def test_expectation(steps, monkeypatch):
    """Log-probabilities, and expected numbers of transitions and of states."""
    monkeypatch.setattr("pyro_structured.densities.models.region_network.ROWS_AT_ONCE", 7)
    values, weights = random_rows()
    network = make_network(values, weights)
    for _ in range(steps):
        network.maximize(*network.expect()[1:])
    log_prob, counts, uses = network.expect()
    states, joint = slow_joint(network.tables(), values)
    assert len(network.parents) >= 3
    torch.testing.assert_close(log_prob, joint.logsumexp(-1))
    posterior = weights.unsqueeze(-1) * joint.softmax(-1)
    for g, above in enumerate(network.parents.tolist()):
        own = torch.nn.functional.one_hot(states[:, g], STATES).double()
        upper = torch.nn.functional.one_hot(states[:, above], STATES).double() if g else torch.ones_like(own)
        torch.testing.assert_close(counts[g], torch.einsum("nz,za,zb->ab", posterior, upper, own))
        torch.testing.assert_close(uses[g], network.leaves[g].gather(posterior @ own))


@pytest.mark.filterwarnings("ignore:no convergence")
def test_distribution_has_the_network_s_log_probabilities():
    values, _ = random_rows()
    options = {"n_states": STATES, "max_region_size": 3, "smoothing": 2.0}
    model = ExchangeableSPN(n_networks=1, max_iter=3, random_state=0, **options).fit(values, X_val=values)
    seed = np.random.RandomState(0).randint(2**31)
    network = make_network(values.float(), torch.ones(len(values)), smoothing=2.0, seed=seed)
    found = [network.expect()[0]]
    for _ in range(3):
        network.maximize(*network.expect()[1:])
        found.append(network.expect()[0])
    best = max(found, key=lambda log_prob: log_prob.sum())
    torch.testing.assert_close(model.to_pyro().log_prob(values), best.double(), rtol=1e-5, atol=1e-5)


def test_likelihood_never_falls(monkeypatch):
    """Beside the priors, which a large number of rows outweighs."""
    monkeypatch.setattr("pyro_structured.densities.models.region_network.TRANSITION_ROWS", 0.0)
    values, weights = random_rows()
    network = make_network(values, 1e6 * weights, smoothing=0.0)
    found = []
    for _ in range(12):
        log_prob, *expected = network.expect()
        found.append(log_prob @ weights / weights.sum())
        network.maximize(*expected)
    assert torch.stack(found).diff().min() > -1e-6
    assert found[-1] > found[0] + 0.01


def test_rows_without_weight_are_only_scored():
    values, weights = random_rows()
    train = weights > 0
    assert not train.all()
    both, alone = make_network(values, weights), make_network(values[train], weights[train])
    for network in (both, alone):
        network.maximize(*network.expect()[1:])
    for name, expected in alone.tables().items():
        torch.testing.assert_close(both.tables()[name], expected)
    torch.testing.assert_close(both.expect()[0][train], alone.expect()[0])


@pytest.mark.parametrize("told", [0, 1])
def test_heavy_rows_tell_the_states(told):
    values = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    weights = torch.where(values[:, 1 - told] == 0, 1000.0, 1.0).double()
    (leaves,) = make_network(values, weights, largest=2).leaves
    states = leaves.scores.argmax(-1)
    assert (states == states[-1]).tolist() == (values[:, told] == 1).tolist()


def test_regions_depend_on_their_parents_only():
    """The rows of a transition add up to 1, and those of the root are the same."""
    network = make_network(*random_rows())
    torch.testing.assert_close(network.log_transitions.exp().sum(-1), torch.ones_like(network.log_transitions[..., 0]))
    root = network.log_transitions[0]
    torch.testing.assert_close(root, root[:1].expand_as(root))


def test_tables_are_linear_in_the_number_of_variables():
    values = torch.from_numpy(np.unique(np.random.default_rng(0).integers(2, size=(50, 30)), axis=0)).float()
    tables = RegionNetwork(values, torch.ones(len(values)), 3, 4, 1.0, np.random.RandomState(0)).tables()
    assert max(table.numel() for table in tables.values()) == 3 * 2 * 30
