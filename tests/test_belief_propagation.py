"""The benchmarks' belief propagation: exact on trees, and elsewhere the fixed points that another package finds."""

import importlib
from dataclasses import replace

import numpy as np
import pyagrum
import pytest
import torch

from pyro_structured.models import BayesianNetwork

SIZES = (2, 3, 2, 4, 2, 3)
POLYTREE = [[], [0], [], [2, 1], [3], [3]]
LOOPY = [[], [0], [0], [2, 1], [3, 2], [3, 1, 0]]


@pytest.fixture(scope="module")
def peer():
    return importlib.import_module("benchmarks.junction_trees.belief_propagation")


def make_network(parents, seed):
    rng = np.random.default_rng(seed)
    tables = [rng.dirichlet(np.ones(SIZES[d]), [SIZES[e] for e in above]) for d, above in enumerate(parents)]
    return BayesianNetwork([f"x{d}" for d in range(6)], [[str(s) for s in range(r)] for r in SIZES], parents, tables)


def make_evidence(rows, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, SIZES, (rows, 6)), rng.random((rows, 6)) < 0.4


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("is_residual", [False, True])
@pytest.mark.parametrize("damping", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_exact_on_trees(peer, is_residual, damping, seed):
    network, (values, observed) = make_network(POLYTREE, seed), make_evidence(20, seed)
    found = peer.propagate_beliefs(network, values, observed, is_residual, damping)
    exact = network.to_junction_tree().condition(torch.from_numpy(values), torch.from_numpy(observed)).marginals
    assert found.converged.all()
    np.testing.assert_allclose(found.marginals, exact.numpy(), atol=1e-4)


@pytest.mark.parametrize("is_residual", [False, True])
def test_fixed_points_of_another_package(peer, is_residual):
    network, (values, observed) = make_network(LOOPY, 1), make_evidence(10, 1)
    found = peer.propagate_beliefs(network, values, observed, is_residual)
    assert found.converged.all()
    other = pyagrum.BayesNet()
    for name, states in zip(network.names, network.states, strict=True):
        other.add(pyagrum.LabelizedVariable(name, name, list(states)))
    for d, above in enumerate(network.parents):
        for parent in above:
            other.addArc(parent, d)
        # The last parent is the first of its axes.
        order = [*range(len(above))][::-1]
        other.cpt(d)[:] = np.ascontiguousarray(network.tables[d].transpose([*order, len(above)]))
    for row in range(10):
        engine = pyagrum.LoopyBeliefPropagation(other)
        engine.setEpsilon(1e-10)
        engine.setMinEpsilonRate(1e-10)
        engine.setEvidence({int(d): int(values[row, d]) for d in np.flatnonzero(observed[row])})
        engine.makeInference()
        for d in range(6):
            np.testing.assert_allclose(
                found.marginals[row, d, : SIZES[d]], engine.posterior(d).toarray(), atol=1e-4, err_msg=f"{row}, {d}"
            )


def test_approximate_with_loops(peer):
    network, (values, observed) = make_network(LOOPY, 1), make_evidence(10, 1)
    exact = network.to_junction_tree().condition(torch.from_numpy(values), torch.from_numpy(observed)).marginals
    found = peer.propagate_beliefs(network, values, observed, True).marginals
    assert 1e-3 < np.abs(found - exact.numpy()).max() < 0.2


def test_says_what_has_not_converged(peer):
    network, (values, observed) = make_network(LOOPY, 1), make_evidence(10, 1)
    for is_residual in (False, True):
        found = peer.propagate_beliefs(network, values, observed, is_residual, 0.5, max_sweeps=1)
        assert not found.converged[(~observed).sum(-1) > 3].any()
        np.testing.assert_allclose(found.marginals.sum(-1), 1)


def test_needs_positive_probabilities(peer):
    network = make_network(POLYTREE, 0)
    network = replace(network, tables=[np.array([0.0, 1.0]), *network.tables[1:]])
    with pytest.raises(ValueError, match="network: expected positive probabilities, got zeros"):
        peer.propagate_beliefs(network, *make_evidence(1, 0), False)
