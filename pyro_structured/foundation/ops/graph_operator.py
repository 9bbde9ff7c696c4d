"""Functions of rows that are single nodes in the graphs of ``torch.compile``, so that they may look at values."""

__all__ = ["GraphOperator"]

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.ops.private_members import autograd_in_operators
from pyro_structured.foundation.ops.row_function import pull_back
from pyro_structured.foundation.ops.vmap_rows import merge_mapped

SCHEMA = "(Tensor[] tensors, str text, str splits) -> Tensor[]"
# Operators look at values, which a CUDA graph cannot record; older releases of torch have no name for that.
OPTIONS: dict[str, Any] = {"tags": [torch.Tag.cudagraph_unsafe]} if hasattr(torch.Tag, "cudagraph_unsafe") else {}


class GraphOperator:
    """A function of rows as an operator of graphs, with derivatives of any order in reverse mode.

    Graphs hold tensors and texts: what else the function depends on, a text says. Outside of graphs, the function
    itself is faster.

    :param str name: Name of the operator, unique in the package.
    :param function: Function of a text and of tensors of shape ``(rows, ...)`` that returns tensors of shape ``(rows,
        ...)``. It may branch on values.
    :param empty: Function of the same arguments that returns contiguous tensors of the results' shapes and types,
        without looking at values.
    :param pull: Function of the text, the arguments, the results and their cotangents, ``None`` where these are zero,
        that returns those of the arguments; it is traced, and may call operators. Without, cotangents come from
        automatic differentiation of the function, in another operator.

    Example::

        >>> def shift(text, x):
        ...     return (x - float(x.max()),)
        >>> operator = GraphOperator("shift", shift, lambda text, x: (x.new_empty(x.shape),))
        >>> operator("", torch.tensor([1.0, 4.0]))  # a graph holds it, not a look at the largest number
        (tensor([-3.,  0.]),)
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., tuple[Tensor, ...]],
        empty: Callable[..., tuple[Tensor, ...]],
        pull: Callable[..., tuple[Tensor | None, ...]] | None = None,
    ) -> None:
        self._function, self._empty, self._pull = function, empty, pull
        operator = torch.library.custom_op(
            f"pyro_structured::{name}", self._run, mutates_args=(), schema=SCHEMA, **OPTIONS
        )
        operator.register_fake(self._fake)
        operator.register_autograd(self._backward, setup_context=self._setup)
        operator.register_vmap(self._vmap)
        self._operator = operator

    def __call__(self, text: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Results of the function."""
        return tuple(self._operator(list(tensors), text, ""))

    # A derivative is a function of the same kind, of arguments and cotangents. For the first one, splits are "a": the
    # cotangents are the tensors from a on; for its derivative, they are "a b", and its cotangents those from b on.
    def _run(self, tensors: list[Tensor], text: str, splits: str) -> list[Tensor]:
        function = partial(self._function, text)
        for split in splits.split():
            function = partial(_pulled, function, int(split))
        with torch.no_grad(), autograd_in_operators():
            results = function(*tensors)
            # Results may be arguments, as they are, which operators must not return.
            return [tensor.clone(memory_format=torch.contiguous_format) for tensor in results]

    def _fake(self, tensors: list[Tensor], text: str, splits: str) -> list[Tensor]:
        if not splits:
            return list(self._empty(text, *tensors))
        return [tensor.new_empty(tensor.shape) for tensor in tensors[: int(splits.split()[-1])]]

    def _setup(self, ctx: Any, inputs: tuple[list[Tensor], str, str], output: list[Tensor]) -> None:
        tensors, ctx.text, ctx.splits = inputs
        ctx.number, ctx.pull = len(tensors), None if ctx.splits else self._pull
        ctx.save_for_backward(*tensors, *(output if ctx.pull else ()))
        ctx.set_materialize_grads(ctx.pull is None)

    def _backward(self, ctx: Any, grads: list[Tensor | None]) -> tuple[list[Tensor | None], None, None]:
        inputs, results = ctx.saved_tensors[: ctx.number], ctx.saved_tensors[ctx.number :]
        if ctx.pull:
            return list(ctx.pull(ctx.text, inputs, results, tuple(grads))), None, None
        return self._operator([*inputs, *grads], ctx.text, f"{ctx.splits} {ctx.number}"), None, None

    def _vmap(
        self, info: Any, in_dims: tuple[Any, ...], tensors: list[Tensor], text: str, splits: str
    ) -> tuple[list[Tensor], list[int]]:
        results = self._operator(merge_mapped(info.batch_size, in_dims[0], *tensors), text, splits)
        return [tensor.unflatten(0, (info.batch_size, -1)) for tensor in results], [0] * len(results)


def _pulled(function: Callable[..., tuple[Tensor, ...]], split: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    return pull_back(function, tensors[:split], tensors[split:])
