"""Bayesian networks of discrete variables."""

__all__ = ["BayesianNetwork"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pyro_structured.foundation.ops.ancestral_order import ancestral_order
from pyro_structured.foundation.structures.argument_checks import checked_parents
from pyro_structured.foundation.structures.representation import Represented
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree


@dataclass(frozen=True, eq=False)
class BayesianNetwork(Represented):
    r"""Bayesian network: discrete variables, each with a distribution given its parents.

    .. math::
        p(x) = \prod_d p(x_d \mid x_{\mathrm{pa}(d)}).

    :param names: Names of the variables, strings, all different.
    :param states: For every variable the names of its states, strings, all different.
    :param parents: For every variable its parents' numbers; no variable is its own ancestor.
    :param tables: For every variable the probabilities of its states given its parents' states, shape ``(states of the
        first parent, ..., states of the variable)``, kept in float64; they add up to 1 along the last axis up to 1e-3,
        since files have few digits.
    :raises ValueError: if one of these conditions does not hold.

    Example::

        >>> rain = np.array([0.8, 0.2])
        >>> wet = np.array([[0.9, 0.1], [0.0, 1.0]])
        >>> network = BayesianNetwork(["rain", "wet"], [["no", "yes"]] * 2, [[], [0]], [rain, wet])
        >>> network.to_junction_tree().marginals
        tensor([[0.8000, 0.2000],
                [0.7200, 0.2800]], dtype=torch.float64)
    """

    names: Sequence[str]
    states: Sequence[Sequence[str]]
    parents: Sequence[Sequence[int]]
    tables: Sequence[np.ndarray]

    def __post_init__(self) -> None:
        _check_names("names", self.names)
        size = len(self.names)
        for name, given in (("states", self.states), ("parents", self.parents), ("tables", self.tables)):
            if _length(name, given) != size:
                raise ValueError(f"{name}: expected {size}, one for each variable, got {len(given)}")
        for state_names in self.states:
            _check_names("states", state_names)
        checked_parents(self.parents)
        sizes = self.cardinalities
        object.__setattr__(self, "tables", [self._checked_table(d, sizes) for d in range(size)])

    def _checked_table(self, variable: int, sizes: tuple[int, ...]) -> np.ndarray:
        shape, name = tuple(sizes[d] for d in (*self.parents[variable], variable)), self.names[variable]
        try:
            table = np.asarray(self.tables[variable], dtype=np.float64, order="C")
        except (TypeError, ValueError) as error:
            raise ValueError(f"tables: expected numbers for {name!r}, got others: {error}") from None
        if table.shape != shape:
            raise ValueError(f"tables: expected shape {shape} for {name!r}, got {table.shape}")
        total = table.sum(-1)
        if not ((table >= 0).all() and np.allclose(total, 1, atol=1e-3)):
            raise ValueError(
                f"tables: expected probabilities that add up to 1 for {name!r}, got sums from {total.min()} to "
                f"{total.max()}"
            )
        return table

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Numbers of states of the variables."""
        return tuple(len(states) for states in self.states)

    @property
    def order(self) -> list[int]:
        """Order of the variables in which parents come first."""
        return ancestral_order(self.parents)

    def to_junction_tree(self, heuristic: str = "min_fill") -> JunctionTree:
        """Junction tree of the same distribution, for exact inference: each variable is in a clique with its parents.

        Tables are normalised exactly.

        :param str heuristic: As for :meth:`CliqueTree.from_edges`.
        """
        families = [(*self.parents[d], d) for d in range(len(self.names))]
        pairs = [(first, second) for family in families for first in family for second in family if first < second]
        tree = CliqueTree.from_edges(pairs, self.cardinalities, heuristic)
        return JunctionTree.from_bayesian_network(
            self.parents, [torch.from_numpy(table) for table in self.tables], tree
        )

    @property
    def num_parameters(self) -> int:
        """Number of free probabilities."""
        return sum(
            (self.cardinalities[d] - 1) * math.prod(self.cardinalities[parent] for parent in self.parents[d])
            for d in range(len(self.names))
        )


def _length(argument: str, given: Sequence[Any]) -> int:
    """Length of a sequence, or a ValueError with the argument's name."""
    try:
        return len(given)
    except TypeError:
        raise ValueError(f"{argument}: expected a sequence, got {given!r}") from None


def _check_names(argument: str, names: Sequence[str]) -> None:
    """Raises a ValueError unless names are different strings."""
    if not isinstance(names, Sequence | np.ndarray) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{argument}: expected strings, got {names!r}")
    if len(names) == 0 or len(set(names)) < len(names):
        raise ValueError(f"{argument}: expected different ones, at least one, got {list(names)}")
