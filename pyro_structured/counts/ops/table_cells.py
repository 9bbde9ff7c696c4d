"""Cells of tables that vectors of zeros and ones meet."""

__all__ = ["table_cells"]

from functools import partial

import torch
from torch import Tensor

from pyro_structured.counts.ops.coupled_forest import AnyForest
from pyro_structured.counts.ops.forest_text import forest_of, forest_text
from pyro_structured.foundation.ops.graph_operator import GraphOperator
from pyro_structured.foundation.ops.private_members import is_in_graph
from pyro_structured.foundation.ops.vmap_rows import map_rows


def table_cells(value: Tensor, forest: AnyForest) -> Tensor:
    """Place of the entry of each table that a value meets, in all tables one after the other.

    :param Tensor value: Zeros and ones, or booleans, shape ``(..., num_variables)``.
    :param CountForest forest: The counts that the tables weigh.
    :return: Integers (long), without derivatives, shape ``(..., number of tables)``.

    Example::

        >>> from pyro_structured.counts.ops.count_forest import CountForest
        >>> table_cells(torch.tensor([True, False, True]), CountForest(3))
        tensor([2])
    """
    if is_in_graph():
        return map_rows(partial(_cells_in_graph, forest_text(forest)), value)[0]
    entries = forest.entries(value)
    sizes = torch.tensor([size for _, size in forest.tables], dtype=torch.long, device=entries.device)
    return entries + (sizes + 1).cumsum(-1) - (sizes + 1)


_cells_in_graph = GraphOperator(
    "table_cells",
    lambda plan, value: (table_cells(value, forest_of(plan)),),
    lambda plan, value: (value.new_empty(value.shape[0], len(forest_of(plan).tables), dtype=torch.long),),
)
