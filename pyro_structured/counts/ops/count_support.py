"""Support of counts: whether they have positive probability, however small."""

__all__ = ["reaches"]

import math
from typing import Any

import torch
from torch import Tensor

from pyro_structured.counts.ops import count_tree
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.vmap_rows import map_rows, merge_mapped


def reaches(logits: Tensor, count_logits: Tensor, cells: Tensor, forest: CountForest) -> Tensor:
    """Whether some vector of positive probability has a count among the given ones.

    :param Tensor logits: Log-odds, shape ``batch + (num_variables,)``.
    :param Tensor count_logits: Log-potentials of all tables, shape ``batch + (forest.table_size,)``.
    :param Tensor cells: Booleans that mark entries of the tables, of the same shape.
    :param CountForest forest: The counts that the tables weigh.
    :return: Booleans of shape ``batch``. Nothing underflows, as only the finiteness of numbers matters. Cost
        :math:`O(D)` for one potential, :math:`O(D^2)` for nested ones if any cell is marked.
    """
    return map_rows(_reaches, logits, count_logits, cells, forest)[0]


def _reaches(*arguments: Any) -> tuple[Tensor]:
    return (_Reaches.apply(*arguments),)  # type: ignore[no-untyped-call]


class _Reaches(DifferentiableFunction):
    """Reachability from concrete numbers, opaque to function transforms."""

    @staticmethod
    def forward(logits: Tensor, count_logits: Tensor, cells: Tensor, forest: CountForest) -> Tensor:
        if not bool(cells.any()):
            return cells.any(-1)
        return (cells & _possible(logits.double(), count_logits.double(), forest)).any(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        *tensors, forest = inputs
        (merged,) = _reaches(*merge_mapped(info.batch_size, in_dims, *tensors), forest)
        return merged.unflatten(0, (info.batch_size, -1)), 0


def _possible(logits: Tensor, count_logits: Tensor, forest: CountForest) -> Tensor:
    if forest.is_single:
        least = (logits == math.inf).sum(-1, keepdim=True)
        most = (logits != -math.inf).sum(-1, keepdim=True)
        counts = torch.arange(forest.num_variables + 1, device=logits.device)
        return (count_logits != -math.inf) & (counts >= least) & (counts <= most)
    # With weights that are all one or zero, no sum of a few terms is out of the range of logarithms.
    clamps, tables = (t.masked_fill(t.isfinite(), 0.0) for t in (logits, count_logits))
    tree = forest.tree(tables)
    messages, potentials, log_scale = count_tree.upward(tree, clamps, tables)
    outside = count_tree.downward(tree, messages, potentials)
    _, log_posterior = count_tree.posterior(tree, messages, outside)
    any_vector = count_tree.root_log_partition(tree, messages, log_scale) > -math.inf
    return (log_posterior[:, tree.table_cells] > -math.inf) & any_vector.unsqueeze(-1)
