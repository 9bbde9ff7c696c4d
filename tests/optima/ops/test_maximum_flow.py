"""Compiled maximum flows and minimum cuts against a library, enumeration, and other flows of the same graph."""

import itertools

import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import maximum_flow as library_flow

from pyro_structured.optima.ops.maximum_flow import flow_network, maximum_flow
from pyro_structured.optima.solvers.minimum_cut import CutNetwork, solve_minimum_cut


def random_graph(rng, most_nodes=12, most_edges=30):
    """With parallel edges, isolated nodes, and sometimes no edge."""
    number = int(rng.integers(1, most_nodes + 1))
    edges = rng.integers(0, number, (rng.integers(0, most_edges + 1), 2))
    return edges[edges[:, 0] != edges[:, 1]], number


def random_terms(rng, edges, number, kind):
    preferences, weights = 3 * rng.normal(size=number), 2 * rng.random(len(edges))
    if kind == "ties":
        return preferences.round(), weights.round()
    if kind == "zeros":
        return preferences * (rng.random(number) < 0.5), weights * (rng.random(len(edges)) < 0.5)
    if kind == "orders of magnitude":
        return preferences * 10 ** rng.uniform(-12, 0, number), weights * 10 ** rng.uniform(-12, 0, len(edges))
    return preferences, weights


KINDS = ("ordinary", "ties", "zeros", "orders of magnitude")


def grid_edges(height, width):
    nodes = np.arange(height * width).reshape(height, width)
    pairs = (nodes[1:], nodes[:-1]), (nodes[:, 1:], nodes[:, :-1])
    return np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in pairs])


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_those_of_the_library(kind, hide_numba):
    """With ties, too: both find the fewest nodes of label 0. A network goes on from one flow to the next."""
    rng, cases = np.random.default_rng(0), []
    for _ in range(100):
        edges, number = random_graph(rng)
        network, scale = CutNetwork(edges, number), 10.0 ** rng.uniform(-200, 200)
        terms = [[scale * each for each in random_terms(rng, edges, number, kind)] for _ in range(6)]
        # Next to each other: only preferences differ, only weights, nothing.
        terms += [[terms[-1][0], terms[0][1]], terms[-1], [terms[0][0], terms[-1][1]]]
        found = np.stack([network.solve(*each) for each in terms])
        preferences, weights = map(np.stack, zip(*terms, strict=True))
        rows = solve_minimum_cut(preferences, edges, weights)
        assert np.array_equal(found, rows)
        cases.append((edges, number, terms, found))
    hide_numba()
    for edges, number, terms, found in cases:
        network = CutNetwork(edges, number)
        assert np.array_equal(found, np.stack([network.solve(*each) for each in terms]))


def test_long_detours(hide_numba):
    """Chains with few chords, few supplies and small whole numbers: trees are deep, and have to be mended often."""
    rng, cases = np.random.default_rng(2), []
    for _ in range(3_000):
        number = int(rng.integers(10, 100))
        chain = np.stack([np.arange(number - 1), np.arange(1, number)], 1)
        edges = np.concatenate([chain, rng.integers(0, number, (number // 4, 2))])
        edges = edges[edges[:, 0] != edges[:, 1]]
        preferences = rng.integers(-20, 21, number) * (rng.random(number) < rng.choice([0.1, 0.3, 1.0]))
        weights, terms = rng.integers(0, rng.choice([2, 10, 30]), len(edges)), []
        for _ in range(5):
            terms.append((preferences.astype(float), weights.astype(float)))
            preferences = np.where(rng.random(number) < 0.2, rng.integers(-20, 21, number), preferences)
            weights = np.where(rng.random(len(edges)) < 0.1, rng.integers(0, 30, len(edges)), weights)
        network = CutNetwork(edges, number)
        cases.append((edges, number, terms, [network.solve(*each) for each in terms]))
    hide_numba()
    for edges, number, terms, found in cases:
        network = CutNetwork(edges, number)
        for each, labels in zip(terms, found, strict=True):
            assert np.array_equal(labels, network.solve(*each))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_cuts_are_the_smallest_of_all(kind, is_compiled, hide_numba):
    if not is_compiled:
        hide_numba()
    rng = np.random.default_rng(1)
    for _ in range(60):
        edges, number = random_graph(rng, 7, 14)
        network = CutNetwork(edges, number)
        every = np.array(list(itertools.product([False, True], repeat=number)))
        differ = every[:, edges[:, 0]] != every[:, edges[:, 1]]
        for _ in range(3):
            preferences, weights = random_terms(rng, edges, number, kind)
            values = every @ preferences + differ @ weights
            labels = network.solve(preferences, weights)
            rounding = 1e-12 * (np.abs(preferences).sum() + weights.sum())
            value = labels @ preferences + (labels[edges[:, 0]] != labels[edges[:, 1]]) @ weights
            assert value <= values.min() + rounding
            if kind == "ties":
                # Best labels are closed under unions, and these are the largest.
                assert np.array_equal(labels, every[values == values.min()].any(0))
            alone, together = network.residuals()
            assert (alone >= 0).all() and (together >= 0).all()
            left = np.where(every, alone[0], alone[1]).sum(1)
            tails, heads = every[:, edges[:, 0]], every[:, edges[:, 1]]
            left += (~tails & heads) @ together[0] + (tails & ~heads) @ together[1]
            # Label 1 costs more by the preference; label 0 costs what label 1 gains.
            assert np.allclose(values - values.min(), left, rtol=0, atol=rounding)


@pytest.mark.parametrize("seed", range(5))
def test_flows_are_as_large_as_those_of_the_library(seed):
    rng = np.random.default_rng(seed)
    edges, number = grid_edges(30, 40), 1200
    # Unary terms that decide less and less.
    supplies = rng.integers(-100, 101, number) * (rng.random(number) < 0.5**seed)
    capacities = rng.integers(0, 60, len(edges))
    room, excess = np.repeat(capacities, 2), supplies.copy()
    labels = maximum_flow(flow_network(edges, number), room, excess)
    source, sink, nodes = number, number + 1, np.arange(number)
    tails = np.concatenate([np.full(number, source), nodes, edges[:, 0], edges[:, 1]])
    heads = np.concatenate([nodes, np.full(number, sink), edges[:, 1], edges[:, 0]])
    sizes = np.concatenate([supplies.clip(min=0), -supplies.clip(max=0), capacities, capacities])
    graph = coo_matrix((sizes.astype(np.int32), (tails, heads)), (number + 2, number + 2)).tocsr()
    expected = library_flow(graph, source, sink).flow_value
    assert supplies.clip(min=0).sum() - excess.clip(min=0).sum() == expected
    differ = labels[edges[:, 0]] != labels[edges[:, 1]]
    assert np.where(labels, supplies.clip(min=0), -supplies.clip(max=0)).sum() + differ @ capacities == expected
    # Flow is conserved, and nothing is left to send.
    flow = capacities - room[::2]
    sent = np.bincount(edges[:, 0], flow, number) - np.bincount(edges[:, 1], flow, number)
    assert np.array_equal(supplies - sent, excess) and (room >= 0).all()
    assert np.array_equal(room[::2] + room[1::2], 2 * capacities)
    assert (excess[labels] <= 0).all() and (excess[~labels] >= 0).all()


def test_long_ways():
    """Supply and demand at the ends of a chain, and of a grid that is a long corridor with many ways."""
    for edges, number in ((np.stack([np.arange(4999), np.arange(1, 5000)], 1), 5000), (grid_edges(300, 5), 1500)):
        supplies = np.zeros(number, np.int64)
        supplies[:5], supplies[-5:] = 10**6, -(10**6)
        capacities = np.random.default_rng(0).integers(10**3, 10**4, len(edges))
        room, excess = np.repeat(capacities, 2), supplies.copy()
        labels = maximum_flow(flow_network(edges, number), room, excess)
        cut = capacities[labels[edges[:, 0]] != labels[edges[:, 1]]].sum()
        assert not labels[0] and labels[-1]
        assert 5 * 10**6 - excess.clip(min=0).sum() == cut


def test_large_numbers():
    """Capacities that add up to 2^60, and one unit that decides."""
    network, capacities = flow_network(np.array([[0, 1], [1, 2]]), 3), np.array([2**58, 2**58])
    for unit, labels, left in ((1, [False, True, True], [1, 0, 0]), (-1, [True, True, True], [0, 0, -1])):
        excess = np.array([2**58 + unit, 0, -(2**58)])
        assert maximum_flow(network, np.repeat(capacities, 2), excess).tolist() == labels
        assert excess.tolist() == left
