"""Log-weights of labels and of pairs of labels that are linear in features, as tables of a junction tree."""

__all__ = ["ConditionalField", "FieldWeights", "coding"]

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree


class FieldWeights(NamedTuple):
    """Weights of the features, the first row that of the constant feature.

    :ivar Tensor nodes: Weights for the labels, shape ``(1 + p, columns)``.
    :ivar Tensor edges: Weights for the edges, shape ``(1, columns)`` or ``(1 + p, columns)``.
    """

    nodes: Tensor
    edges: Tensor


def coding(num_states: int) -> np.ndarray:
    """Log-weights of the states of a variable for each of its weights, with sum zero over the states.

    A weight of a binary variable is the log-odds of its second state; other variables have a weight for each state.
    Sums of squares, and of absolute values, do not depend on the order of the states.

    :return: Shape ``(weights, num_states)``.

    Example::

        >>> coding(2)
        array([[-0.5,  0.5]])
    """
    if num_states == 2:
        return np.array([[-0.5, 0.5]])
    return np.eye(num_states)[: num_states if num_states > 1 else 0] - 1 / num_states


class ConditionalField:
    r"""Distributions of labels given features.

    .. math::
        p(y \mid x) \propto \exp\Bigl(\sum_i \theta_i(y_i, x) + \sum_{ij \in E} \theta_{ij}(y_i, y_j, x)\Bigr).

    A column of weights belongs to a label and a row of :func:`coding`, or to an edge and a product of two rows.

    :param CliqueTree tree: Junction tree whose cliques contain the edges.
    :param edges: Pairs of labels, in increasing order.
    """

    def __init__(self, tree: CliqueTree, edges: Sequence[tuple[int, int]]) -> None:
        self.tree, self.edges = tree, tuple(edges)
        self.codings = [coding(size) for size in tree.cardinalities]
        self.node_columns = [len(rows) for rows in self.codings]
        self.edge_columns = [self.node_columns[first] * self.node_columns[second] for first, second in self.edges]

    def __getstate__(self) -> dict[str, Any]:
        # Where a device is set, torch unpickles sparse tensors there.
        return {name: value for name, value in vars(self).items() if name != "_design"}

    @cached_property
    def _design(self) -> tuple[Tensor, Tensor]:
        """Sparse matrices that map weights of nodes, and of edges, to log-weights of the packed tables' entries."""
        nodes = [(d,) for d in range(self.tree.num_variables)]
        return self._matrix(nodes, sum(self.node_columns)), self._matrix(self.edges, sum(self.edge_columns))

    def _matrix(self, scopes: Sequence[tuple[int, ...]], num_columns: int) -> Tensor:
        starts = np.cumsum([0, *self.tree.table_sizes])
        entries, columns, values = [], [], []
        first = 0
        for scope in scopes:
            owner = self.tree.find(scope)
            assert owner is not None
            shape = self.tree.table_shapes[owner]
            states = dict(zip(self.tree.cliques[owner], np.indices(shape).reshape(len(shape), -1), strict=True))
            products = np.ones((1, self.tree.table_sizes[owner]))
            for d in scope:
                products = (products[:, None] * self.codings[d][:, states[d]]).reshape(-1, products.shape[1])
            column, entry = np.indices(products.shape).reshape(2, -1)
            entries.append(starts[owner] + entry)
            columns.append(first + column)
            values.append(products.ravel())
            first += len(products)
        places = np.stack([np.concatenate([*indices, np.zeros(0, dtype=int)]) for indices in (entries, columns)])
        numbers = np.concatenate([*values, np.zeros(0)])
        # Each column belongs to one table, so that no place occurs twice.
        order = np.lexsort(places[::-1])
        return torch.sparse_coo_tensor(
            torch.from_numpy(places[:, order]),
            torch.from_numpy(numbers[order]),
            (self.tree.table_size, num_columns),
            is_coalesced=True,
            check_invariants=True,
        )

    def clique_logits(self, features: Tensor, weights: FieldWeights) -> Tensor:
        """Packed tables of all rows, shape ``(N, table_size)``, given features of shape ``(N, p)``."""
        inputs = torch.nn.functional.pad(features, (1, 0), value=1.0)
        logits = sum(
            torch.sparse.mm(design, weight.T @ inputs[:, : len(weight)].T)
            for design, weight in zip(self._design, weights, strict=True)
        )
        assert isinstance(logits, Tensor)
        return logits.T

    def distribution(self, features: Tensor, weights: FieldWeights) -> JunctionTree:
        """Distributions of the labels of all rows; arguments as for :meth:`clique_logits`."""
        return JunctionTree(self.clique_logits(features, weights), self.tree, validate_args=False)

    def node_tables(self, weights: Tensor) -> list[np.ndarray]:
        """Log-weights of the states of each label for all features, each of shape ``(1 + p, states)``."""
        parts = weights.split(self.node_columns, 1)
        return [node_weights.numpy() @ rows for node_weights, rows in zip(parts, self.codings, strict=True)]

    def edge_tables(self, weights: Tensor) -> list[np.ndarray]:
        """Log-weights of the joint states of each edge for all features, each of shape ``(1 + p, states, states)``."""
        tables = []
        for (first, second), edge_weights in zip(self.edges, weights.split(self.edge_columns, 1), strict=True):
            left, right = self.codings[first], self.codings[second]
            table = edge_weights.numpy().reshape(len(edge_weights), len(left), len(right))
            tables.append(np.einsum("fab,as,bt->fst", table, left, right))
        return tables

    def zeros(self, num_features: int, edge_features: bool) -> FieldWeights:
        """Zeros as weights to begin with."""
        rows = 1 + num_features, 1 + num_features * edge_features
        columns = sum(self.node_columns), sum(self.edge_columns)
        return FieldWeights(*(torch.zeros(size, dtype=torch.double) for size in zip(rows, columns, strict=True)))
