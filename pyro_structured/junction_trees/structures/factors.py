"""Potentials of a junction tree from factors, and factors from a Bayesian network."""

__all__ = ["conditional_factors", "multiply_factors"]

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.structures.argument_checks import (
    check_dense,
    checked_broadcast,
    checked_indices,
    checked_parents,
    checked_sequence,
)
from pyro_structured.junction_trees.ops.clique_tables import spread_table
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree, check_tree


def multiply_factors(
    factors: Iterable[tuple[Iterable[int], Tensor]], cardinalities: Iterable[int], tree: CliqueTree | None
) -> tuple[Tensor, CliqueTree]:
    """Adds the tables of factors to tables of cliques that contain their variables.

    :param factors: Pairs of different variables and a tensor with the log-weights of their joint states.
    :param cardinalities: Numbers of states of all variables.
    :param CliqueTree tree: The cliques; ``None``: those of ``CliqueTree.from_cliques``.
    :return: The packed tables, and the tree.
    :raises ValueError: if a table does not fit its variables, the batches of other tables or the tree.
    """
    sizes = tuple(checked_indices("cardinalities", cardinalities))
    pairs = [_checked_factor(factor, sizes) for factor in checked_sequence("factors", factors)]
    if tree is None:
        tree = CliqueTree.from_cliques([scope for scope, _ in pairs if scope], sizes)
    check_tree(tree)
    if tree.cardinalities != sizes:
        raise ValueError(f"tree: expected one of variables with {sizes} states, got {tree.cardinalities}")
    checked_broadcast("factors", [table.shape[: table.dim() - len(scope)] for scope, table in pairs])
    tables = [torch.zeros(shape, device=pairs[0][1].device if pairs else None) for shape in tree.table_shapes]
    for scope, table in pairs:
        owner = tree.find(scope)
        if owner is None:
            raise ValueError(f"factors: expected the variables of a factor in one clique of the tree, got {scope}")
        tables[owner] = tables[owner] + spread_table(table, scope, tree.cliques[owner])
    dtype = functools.reduce(torch.promote_types, (table.dtype for table in tables))
    return tree.pack([table.to(dtype) for table in tables]), tree


def conditional_factors(
    parents: Sequence[Sequence[int]], tables: Sequence[Tensor]
) -> list[tuple[tuple[int, ...], Tensor]]:
    """Normalised factors of a Bayesian network: pairs of variables and tables of log-probabilities.

    :param parents: For every variable its parents.
    :param tables: For every variable numbers in proportion to the probabilities of its states given its parents'
        states.
    :raises ValueError: if there is a cycle, or a row of a table is not of non-negative numbers with a positive sum.
    """
    groups = checked_parents(parents)
    tables = checked_sequence("tables", tables)
    if len(tables) != len(groups):
        raise ValueError(f"tables: expected {len(groups)}, one for each variable, got {len(tables)}")
    if not groups:
        raise ValueError("parents: expected at least one variable, got none")
    factors = []
    for d, (above, table) in enumerate(zip(groups, tables, strict=True)):
        if not isinstance(table, Tensor) or table.dim() <= len(above):
            got = f"shape {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
            raise ValueError(f"tables: expected a tensor of at least {len(above) + 1} axes for variable {d}, got {got}")
        check_dense("tables", table)
        total = table.sum(-1, keepdim=True)
        fine = (table >= 0).all(-1, keepdim=True) & (total > 0) & (total < torch.inf)
        require(
            ~fine, f"tables: expected rows of numbers of at least 0 with a positive sum for variable {d}, got others"
        )
        factors.append(((*above, d), (table / total).log()))
    for (*above, d), table in factors:
        sizes = tuple(factors[parent][1].shape[-1] for parent in above)
        if tuple(table.shape[-1 - len(above) : -1]) != sizes:
            raise ValueError(
                f"tables: expected an axis for each parent of variable {d}, of {sizes} states, got shape "
                f"{tuple(table.shape)}"
            )
    return factors


def _checked_factor(factor: tuple[Iterable[int], Tensor], sizes: tuple[int, ...]) -> tuple[list[int], Tensor]:
    if not isinstance(factor, Sequence) or len(factor) != 2:
        raise ValueError(f"factors: expected pairs of variables and a tensor, got {factor!r}")
    variables, table = factor
    scope = checked_indices("factors", variables)
    if len(set(scope)) < len(scope) or not set(scope) <= set(range(len(sizes))):
        raise ValueError(f"factors: expected different variables in range({len(sizes)}), got {scope}")
    shape = tuple(sizes[d] for d in scope)
    if not isinstance(table, Tensor) or tuple(table.shape[max(0, table.dim() - len(scope)) :]) != shape:
        got = f"shape {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
        expected = ", ".join(("...", *map(str, shape)))
        raise ValueError(f"factors: expected a tensor of shape ({expected}) for {scope}, got {got}")
    return scope, table
