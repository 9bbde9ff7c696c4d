"""Probabilities that random edges connect nodes."""

__all__ = ["LARGEST_CONNECTED", "log_components", "log_connected"]

import itertools
from collections import defaultdict
from functools import cache

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE, log_add

# Largest number of nodes of components with cycles.
LARGEST_CONNECTED = 12
# Largest number of nodes of graphs with a table of all their sets of nodes.
SMALL = 8


def log_connected(log_open: Tensor, log_closed: Tensor) -> Tensor:
    r"""Logarithms of the probabilities that edges connect sets of nodes, for all sets: all-terminal reliability.

    .. math::
        R(S) = \sum_{u \in T \subseteq S \setminus v} R(T) \, P(\text{an edge } v - T) \, P(\text{no edge } T - S
        \setminus v \setminus T) \, R(S \setminus T),

    where v and u are the two first nodes of S: T are the nodes connected with u without v. All terms are positive, and
    nothing cancels.

    :param Tensor log_open: Log-probabilities that nodes are joined directly, independently, shape ``(..., n, n)``;
        symmetric, finite, ``IMPOSSIBLE`` for log 0.
    :param Tensor log_closed: Log-probabilities that they are not joined, of the same shape.
    :return: Shape ``(..., 2 ** n)``, by sets as binary numbers, the first node in the lowest digit; ``IMPOSSIBLE`` or
        less for sets that cannot be connected, and for the empty set. O(3^n).

    Example::

        >>> half = torch.full((3, 3), 0.5, dtype=torch.double).log()
        >>> log_connected(half, half)[7].exp()
        tensor(0.5000, dtype=torch.float64)
    """
    number = log_open.shape[-1]
    joined, apart = _node_tables(log_open, log_closed)
    table = torch.full_like(joined[..., 0, :], IMPOSSIBLE)
    table = table.index_fill(-1, 1 << torch.arange(number, device=table.device), 0.0)
    for members, splits in _levels(number):
        parts = torch.from_numpy(splits).to(log_open.device)
        whole = torch.from_numpy((1 << members).sum(-1)).to(log_open.device)
        first = torch.from_numpy(members[:, :1]).to(log_open.device)
        rest = whole.unsqueeze(-1) ^ parts
        others = rest ^ (1 << first)
        terms = table[..., parts] + table[..., rest] + joined[..., first, parts]
        for node in range(number):
            terms = terms + apart[..., node, others].where((parts >> node) % 2 == 1, 0.0)
        table = table.index_copy(-1, whole, torch.logsumexp(terms, -1))
    return table


def _node_tables(log_open: Tensor, log_closed: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities that an edge joins a node and a set, and that none does; both ``(..., n, 2 ** n)``."""
    joined, apart = torch.full_like(log_open[..., :1], IMPOSSIBLE), torch.zeros_like(log_open[..., :1])
    for node in range(log_open.shape[-1]):
        is_open, is_closed = log_open[..., node, None], log_closed[..., node, None]
        joined = torch.cat([joined, log_add(joined, apart + is_open)], -1)
        apart = torch.cat([apart, apart + is_closed], -1)
    return joined, apart


@cache
def _levels(number: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sets of two, three and more nodes, and their subsets with the second node and without the first."""
    levels = []
    for size in range(2, number + 1):
        members = np.array(list(itertools.combinations(range(number), size)))
        choice = np.arange(2 ** (size - 2))[:, None] >> np.arange(size - 2) & 1
        splits = (1 << members[:, 1])[:, None] + (choice[None] << members[:, None, 2:]).sum(-1)
        levels.append((members, splits))
    return levels


def log_components(edges: Tensor, log_open: Tensor, log_closed: Tensor, labels: Tensor) -> Tensor:
    """Logarithms of the probabilities that the open ones of independent edges leave certain components.

    :param Tensor edges: Both ends of the edges, integers of shape ``(num_edges, 2)``, on the CPU.
    :param Tensor log_open: Log-probabilities that edges are open, finite, shape ``(..., num_edges)``.
    :param Tensor log_closed: Log-probabilities that edges are closed, of the same shape.
    :param Tensor labels: The smallest node of the component of every node, shape ``(..., num_nodes)``; the leading
        axes broadcast.
    :return: Shape ``(...)``; less than ``IMPOSSIBLE / 2`` for impossible labels. O(3^n) for the largest component with
        a cycle, of n nodes, or for all nodes if they are few; a component whose edges form a tree takes O(n).
    :raises NotImplementedError: if a component with a cycle has more than 12 nodes.
    """
    tails, heads = edges.to(labels.device).unbind(-1)
    labels = labels.long()
    nodes = torch.arange(labels.shape[-1], device=labels.device)
    inside = (labels >= 0) & (labels <= nodes)
    safe = labels.where(inside, nodes)
    right = (inside & (safe.gather(-1, safe) == safe)).all(-1)
    between = log_closed.where(safe[..., tails] != safe[..., heads], 0.0).sum(-1)
    opened, closed = _pairs(edges, log_open, log_closed, len(nodes))
    if len(nodes) <= SMALL:
        connected = _from_table(opened, closed, safe)
    else:
        connected = _by_component({frozenset(pair) for pair in edges.tolist()}, opened, closed, safe)
    return (between + connected).where(right, IMPOSSIBLE)


def _pairs(edges: Tensor, log_open: Tensor, log_closed: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Matrices ``(..., n, n)`` of both log-probabilities, where parallel edges are one that is closed if all are."""
    places: dict[int, list[int]] = defaultdict(list)
    for edge, (tail, head) in enumerate(edges.tolist()):
        places[tail * number + head].append(edge)
        places[head * number + tail].append(edge)
    never = torch.full_like(log_open[..., 0], IMPOSSIBLE)
    entries = [(never, torch.zeros_like(never))] * number**2
    for place, parallel in places.items():
        is_open, is_closed = never, torch.zeros_like(never)
        for edge in parallel:
            is_open = log_add(is_open, is_closed + log_open[..., edge])
            is_closed = is_closed + log_closed[..., edge]
        entries[place] = is_open, is_closed
    opened, closed = (torch.stack(side, -1) for side in zip(*entries, strict=True))
    return opened.unflatten(-1, (number, number)), closed.unflatten(-1, (number, number))


def _from_table(log_open: Tensor, log_closed: Tensor, labels: Tensor) -> Tensor:
    number = labels.shape[-1]
    nodes = torch.arange(number, device=labels.device)
    sets = ((labels.unsqueeze(-2) == nodes.unsqueeze(-1)).long() << nodes).sum(-1)
    table = log_connected(log_open, log_closed)
    batch = broadcast_shapes(table.shape[:-1], labels.shape[:-1])
    log_probs = table.expand(batch + (-1,)).gather(-1, sets.expand(batch + (-1,)))
    return log_probs.where(sets > 0, 0.0).sum(-1)


def _by_component(pairs: set[frozenset[int]], log_open: Tensor, log_closed: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities that all components are connected; rows that share a component are computed together."""
    batch = broadcast_shapes(log_open.shape[:-2], labels.shape[:-1])
    flat = labels.expand(batch + labels.shape[-1:]).reshape(-1, labels.shape[-1])
    rows_of: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, assigned in enumerate(flat.tolist()):
        members = defaultdict(list)
        for node, label in enumerate(assigned):
            members[label].append(node)
        for component in members.values():
            rows_of[tuple(component)].append(row)
    sides = [side.expand(batch + side.shape[-2:]).reshape(-1, *side.shape[-2:]) for side in (log_open, log_closed)]
    total = sides[0].new_zeros(len(flat))
    for nodes, rows in rows_of.items():
        index = torch.tensor(rows, device=total.device)
        opened, closed = (side[index][:, nodes][:, :, nodes] for side in sides)
        total = total.index_add(0, index, _log_component(_inside(pairs, nodes), opened, closed))
    return total.reshape(batch)


def _inside(pairs: set[frozenset[int]], nodes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pairs of neighbours among some nodes, by their places in ``nodes``."""
    return [(i, j) for i, j in itertools.combinations(range(len(nodes)), 2) if {nodes[i], nodes[j]} in pairs]


def _log_component(pairs: list[tuple[int, int]], log_open: Tensor, log_closed: Tensor) -> Tensor:
    """Log-probabilities that all nodes of a component are connected, shape ``(rows,)``."""
    size = log_open.shape[-1]
    tails, heads = ([pair[side] for pair in pairs] for side in (0, 1))
    matrix = csr_array((np.ones(len(pairs)), (tails, heads)), shape=(size, size))
    if connected_components(matrix, directed=False, return_labels=False) > 1:
        return torch.full_like(log_open[:, 0, 0], IMPOSSIBLE)
    if len(pairs) == size - 1:
        return log_open[:, tails, heads].sum(-1)
    if size > LARGEST_CONNECTED:
        raise NotImplementedError(
            f"log_prob: expected components that are trees or have at most {LARGEST_CONNECTED} nodes, got one of "
            f"{size} nodes and {len(pairs)} pairs of neighbours; infer the costs instead: MCMC(ConstrainedSlice(model))"
        )
    return log_connected(log_open, log_closed)[:, -1]
