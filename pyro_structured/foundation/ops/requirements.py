"""Requirements on numbers, also under function transforms, with messages that name the rows which do not meet them."""

__all__ = ["any_true", "named_rows", "require", "require_support"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.graph_operator import GraphOperator
from pyro_structured.foundation.ops.private_members import is_in_graph, is_transformed

MOST_NAMES = 10


def any_true(condition: Tensor) -> bool:
    """Whether a condition holds anywhere, for any row of ``torch.vmap`` too.

    :param Tensor condition: Booleans.

    Example::

        >>> any_true(torch.tensor([False, True]))
        True
    """
    try:
        return bool(condition.any())
    except RuntimeError:
        # A row of a function transform has no value of its own: that of all rows is looked at.
        pass
    seen: list[bool] = []
    _Look.apply(condition, seen.append)  # type: ignore[no-untyped-call]
    return seen[0]


def named_rows(condition: Tensor) -> str:
    """Text for the end of a message that names the elements of a batch for which a condition holds: the first ten, and
    the number of the others.

    It is empty without a batch, and under function transforms, where elements have no numbers.

    :param Tensor condition: Booleans that hold somewhere.

    Example::

        >>> named_rows(torch.arange(20) > 8)
        ', in rows 9, 10, 11, 12, 13, 14, 15, 16, 17, 18 and 1 more'
        >>> named_rows(torch.tensor([[False, True], [False, False]]))
        ', in row (0, 1)'
    """
    if not condition.dim() or is_transformed():
        return ""
    rows = condition.nonzero()
    names = [str(tuple(row)) if len(row) > 1 else str(row[0]) for row in rows[:MOST_NAMES].tolist()]
    more = f" and {len(rows) - MOST_NAMES} more" if len(rows) > MOST_NAMES else ""
    return f", in row{'s' if len(rows) > 1 else ''} {', '.join(names)}{more}"


def require(bad: Tensor, message: str) -> None:
    """Raises a ValueError where a condition holds anywhere; works under ``torch.vmap``, too."""
    if any_true(bad):
        raise ValueError(message)


def require_support(log_partition: Tensor, message: str) -> Tensor:
    """Returns a log partition function, or raises a ValueError that names the rows where it is -inf.

    Graphs of ``torch.compile`` leave the check out unless the result is used.
    """
    if torch.compiler.is_compiling() and is_in_graph():
        (supported,) = _supported_in_graph(message, log_partition.unsqueeze(0))
        return supported.squeeze(0)
    impossible = log_partition == -torch.inf
    if any_true(impossible):
        raise ValueError(message + named_rows(impossible))
    return log_partition


def _support_in_graph(message: str, log_partitions: Tensor) -> tuple[Tensor]:
    # Rows are those of torch.vmap, if there are several.
    require_support(log_partitions if len(log_partitions) > 1 else log_partitions[0], message)
    return (log_partitions,)


_supported_in_graph = GraphOperator(
    "supported",
    _support_in_graph,
    lambda message, log_partitions: (log_partitions.new_empty(log_partitions.shape),),
    lambda message, inputs, results, cotangents: cotangents,
)


class _Look(DifferentiableFunction):
    """Looks at values, whatever function transforms are active outside."""

    @staticmethod
    def forward(condition: Tensor, report: Callable[[bool], None]) -> Tensor:
        report(bool(condition.any()))
        return condition.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None], condition: Tensor, report: Callable[[bool], None]
    ) -> tuple[Tensor, int]:
        report(any_true(condition))
        return condition, in_dims[0]
