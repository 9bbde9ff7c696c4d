"""Loopy and residual belief propagation on the factor graph of a Bayesian network, compiled, for rows of evidence.

Loopy: all messages at once. Residual (Elidan, McGraw, Koller 2006): always the message that would change most. Both are
damped, and stop when no message would change by more than a tolerance, or after so many updates of each message.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

TOLERANCE = 1e-6


@dataclass
class Beliefs:
    """Results of belief propagation.

    :ivar marginals: Probabilities of states, shape ``(rows, n, largest cardinality)``.
    :ivar converged: Whether each row has converged, shape ``(rows,)``.
    :ivar num_updates: Number of updates of messages in each row, shape ``(rows,)``.
    """

    marginals: np.ndarray
    converged: np.ndarray
    num_updates: np.ndarray


class FactorGraph(NamedTuple):
    """Factors are the variables' tables, flat, one after the other; an edge joins a factor and one of its variables."""

    sizes: np.ndarray
    tables: np.ndarray
    table_starts: np.ndarray
    # The edges of factor f are number edge_starts[f] to edge_starts[f + 1].
    edge_starts: np.ndarray
    edge_factors: np.ndarray
    edge_variables: np.ndarray
    edge_strides: np.ndarray
    # The edges of variable d are edges_of[first_of[d]] to edges_of[first_of[d + 1]].
    edges_of: np.ndarray
    first_of: np.ndarray


def factor_graph(network):
    """Factor graph of a Bayesian network all of whose probabilities are positive."""
    scopes = [(*above, d) for d, above in enumerate(network.parents)]
    tables = [np.asarray(table, dtype=float) for table in network.tables]
    if not all((table > 0).all() for table in tables):
        raise ValueError("network: expected positive probabilities, got zeros")
    variables = np.array([d for scope in scopes for d in scope])
    strides = [stride // table.itemsize for table in map(np.ascontiguousarray, tables) for stride in table.strides]
    lengths = [len(scope) for scope in scopes]
    return FactorGraph(
        np.array(network.cardinalities),
        np.concatenate([table.ravel() for table in tables]),
        np.cumsum([0, *(table.size for table in tables)]),
        np.cumsum([0, *lengths]),
        np.repeat(np.arange(len(scopes)), lengths),
        variables,
        np.array(strides),
        np.argsort(variables, kind="stable"),
        np.cumsum([0, *np.bincount(variables, minlength=len(scopes))]),
    )


def propagate_beliefs(network, values, observed, is_residual, damping=0.0, max_sweeps=100):
    """Marginals given evidence.

    :param BayesianNetwork network: The model.
    :param np.ndarray values: States, shape ``(rows, n)``.
    :param np.ndarray observed: Whether states are evidence, the same shape.
    :param bool is_residual: Residual belief propagation; otherwise loopy.
    :param float damping: The old message's share of the new one, in [0, 1).
    :param int max_sweeps: Updates of each message, on average, after which the search for a fixed point ends.
    """
    graph, shape = factor_graph(network), (*values.shape, max(network.cardinalities))
    found = Beliefs(np.zeros(shape), np.zeros(len(values), dtype=bool), np.zeros(len(values), dtype=int))
    run = run_residual if is_residual else run_loopy
    for row, (value, is_seen) in enumerate(zip(values, observed, strict=True)):
        states = np.arange(shape[-1])
        possible = (states < graph.sizes[:, None]) & (~is_seen[:, None] | (states == value[:, None]))
        found.converged[row], found.num_updates[row] = run(
            graph, possible.astype(float), is_seen, damping, max_sweeps, found.marginals[row]
        )
    return found


@njit(cache=True)
def collect(graph, evidence, messages, variable, left_out, out):
    """The product of evidence and messages to a variable, without one of them, in place."""
    out[:] = evidence[variable]
    for place in range(graph.first_of[variable], graph.first_of[variable + 1]):
        edge = graph.edges_of[place]
        if edge != left_out:
            out *= messages[edge]
    out /= out.sum()


@njit(cache=True)
def send(graph, evidence, messages, edge, incoming, out):
    """The message of a factor to a variable, in place."""
    factor, variable = graph.edge_factors[edge], graph.edge_variables[edge]
    first, end = graph.edge_starts[factor], graph.edge_starts[factor + 1]
    for other in range(first, end):
        if other != edge:
            collect(graph, evidence, messages, graph.edge_variables[other], other, incoming[other - first])
    out[:] = 0.0
    start = graph.table_starts[factor]
    for entry in range(graph.table_starts[factor + 1] - start):
        weight = graph.tables[start + entry]
        for other in range(first, end):
            if other != edge:
                state = entry // graph.edge_strides[other] % graph.sizes[graph.edge_variables[other]]
                weight *= incoming[other - first, state]
        out[entry // graph.edge_strides[edge] % graph.sizes[variable]] += weight
    out /= out.sum()


@njit(cache=True)
def prepare(graph, evidence):
    """Messages that say nothing, as many for what comes, and room for a factor's."""
    messages = np.zeros((len(graph.edge_variables), evidence.shape[1]))
    for edge, variable in enumerate(graph.edge_variables):
        messages[edge, : graph.sizes[variable]] = 1 / graph.sizes[variable]
    widest = np.max(graph.edge_starts[1:] - graph.edge_starts[:-1])
    return messages, messages.copy(), np.empty((widest, evidence.shape[1]))


@njit(cache=True)
def finish(graph, evidence, messages, marginals):
    for variable in range(len(evidence)):
        collect(graph, evidence, messages, variable, -1, marginals[variable])


@njit(cache=True)
def run_loopy(graph, evidence, is_seen, damping, max_sweeps, marginals):
    """All messages at once; whether they converge, and the number of updates."""
    messages, proposals, room = prepare(graph, evidence)
    num_updates, change = 0, np.inf
    for _ in range(max_sweeps):
        change = 0.0
        for edge, variable in enumerate(graph.edge_variables):
            # Observed variables need no messages.
            if not is_seen[variable]:
                send(graph, evidence, messages, edge, room, proposals[edge])
                change = max(change, np.max(np.abs(proposals[edge] - messages[edge])))
                num_updates += 1
        if change < TOLERANCE:
            break
        messages[:] = damping * messages + (1 - damping) * proposals
    finish(graph, evidence, messages, marginals)
    return change < TOLERANCE, num_updates


@njit(cache=True)
def run_residual(graph, evidence, is_seen, damping, max_sweeps, marginals):
    """The message that would change most, one after the other; updates are counted when messages are computed."""
    messages, proposals, room = prepare(graph, evidence)
    residuals = np.zeros(len(messages))
    num_updates = 0
    for edge, variable in enumerate(graph.edge_variables):
        if not is_seen[variable]:
            send(graph, evidence, messages, edge, room, proposals[edge])
            residuals[edge] = np.max(np.abs(proposals[edge] - messages[edge]))
            num_updates += 1
    for _ in range(max_sweeps * num_updates):
        edge = np.argmax(residuals)
        if residuals[edge] < TOLERANCE:
            break
        messages[edge] = damping * messages[edge] + (1 - damping) * proposals[edge]
        residuals[edge] = np.max(np.abs(proposals[edge] - messages[edge]))
        variable = graph.edge_variables[edge]
        for place in range(graph.first_of[variable], graph.first_of[variable + 1]):
            factor = graph.edge_factors[graph.edges_of[place]]
            if factor == graph.edge_factors[edge]:
                continue
            for other in range(graph.edge_starts[factor], graph.edge_starts[factor + 1]):
                target = graph.edge_variables[other]
                if target != variable and not is_seen[target]:
                    send(graph, evidence, messages, other, room, proposals[other])
                    residuals[other] = np.max(np.abs(proposals[other] - messages[other]))
                    num_updates += 1
    finish(graph, evidence, messages, marginals)
    return np.max(residuals) < TOLERANCE, num_updates
