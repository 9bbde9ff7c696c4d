"""The optimum of a problem with given costs."""

__all__ = ["Argmin"]

from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.distributions.argument_checks import check_vector, expanded_batch
from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.representation import represent
from pyro_structured.optima.structures.every_entry import EveryEntry
from pyro_structured.optima.structures.problem import Problem


class Argmin(TorchDistribution):
    r"""The optimum of a problem with given costs: a point mass.

    .. math::
        P(y) = 1 \text{ if } y = \arg\min_{y'} f_w(y'), \text{ and } 0 \text{ otherwise.}

    Observed, it constrains the costs to the inverse set of a value: a model that names its costs says
    ``w = pyro.sample("w", base)`` and ``pyro.sample("y", Argmin(w, problem), obs=y)``, and
    :class:`~pyro_structured.inference.ConstrainedSlice` samples ``w`` there. In :class:`RandOM` they have no site.

    :param Tensor costs: Costs, or rewards if the problem is to be maximised, shape ``(..., *problem.cost_shape)``.
    :param Problem problem: The optimisation problem.
    :ivar Tensor given_costs: The tensor ``costs`` itself, also after ``expand``: it tells the site of the costs.
    :raises ValueError: if shapes do not fit.

    ``sample`` and ``log_prob`` call the problem's solver once for every row. Of tied optima, all have log-probability
    0, and the solver's is drawn; for continuous costs that does not happen.

    Example::

        >>> from pyro_structured.structures import Matching
        >>> d = Argmin(torch.tensor([[0.0, 9.0], [9.0, 0.0]]), Matching(2))
        >>> d.sample(), d.log_prob(torch.tensor([[0, 1], [1, 0]]))
        (tensor([0, 1]), tensor([0., -inf]))
    """

    # Replaced in every instance, which knows the rank of its costs.
    arg_constraints: dict[str, constraints.Constraint] = {"costs": constraints.dependent}

    def __init__(self, costs: Tensor, problem: Problem, validate_args: bool | None = None) -> None:
        if not isinstance(problem, Problem):
            raise ValueError(f"problem: expected a Problem, such as Matching, got {problem!r}")
        check_vector("costs", costs)
        rank = len(problem.cost_shape)
        if costs.shape[-rank:] != problem.cost_shape:
            raise ValueError(
                f"costs: expected shape (..., {', '.join(map(str, problem.cost_shape))}), got {tuple(costs.shape)}"
            )
        try:
            batch_shape = broadcast_shapes(costs.shape[:-rank], problem.batch_shape)
        except RuntimeError:
            raise ValueError(
                f"problem: expected a batch shape that broadcasts with that of costs, {tuple(costs.shape[:-rank])}, "
                f"got {tuple(problem.batch_shape)}"
            ) from None
        self.arg_constraints = {"costs": EveryEntry(constraints.real, rank)}
        self.costs, self.problem, self.given_costs = costs, problem, costs
        super().__init__(batch_shape, problem.event_shape, validate_args=validate_args)

    def __repr__(self) -> str:
        return represent(self)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Argmin":
        """Distribution with another batch shape; costs are expanded without being copied."""
        new: Argmin = self._get_checked_instance(Argmin, _instance)  # type: ignore[no-untyped-call]
        shape = expanded_batch(self.batch_shape, batch_shape)
        new.arg_constraints, new.given_costs = self.arg_constraints, self.given_costs
        new.costs, new.problem = self.costs.expand(shape + self.problem.cost_shape), self.problem.expand(shape)
        super(Argmin, new).__init__(shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @staticmethod
    def infer_shapes(costs: torch.Size, problem: Problem) -> tuple[torch.Size, torch.Size]:  # type: ignore[override]
        """Batch and event shape from the shape of the costs."""
        batch_shape = broadcast_shapes(costs[: len(costs) - len(problem.cost_shape)], problem.batch_shape)
        return torch.Size(batch_shape), problem.event_shape

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Support of the problem, which contains values that are not optimal, too."""
        return self.problem.support

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """The optimum, shape ``sample_shape + batch_shape + event_shape``."""
        return self.mode.expand(torch.Size(sample_shape) + self.batch_shape + self.event_shape).clone()

    @property
    def mode(self) -> Tensor:
        """The optimum, shape ``batch_shape + event_shape``."""
        with torch.no_grad():
            value = self.problem.solve(self.costs)
        value = value.expand(self.batch_shape + self.event_shape)
        return value.to(self.costs.dtype) if value.is_floating_point() else value

    def log_prob(self, value: Tensor) -> Tensor:
        """0 for optimal values, -inf for all others."""
        if self._validate_args:
            self._validate_sample(value)
        is_optimal = _Contains.apply(self.costs.detach(), value, self.problem)  # type: ignore[no-untyped-call]
        # Zeros with derivatives with respect to the costs, which are zero.
        zero = (self.costs.nan_to_num() * 0.0).flatten(-len(self.problem.cost_shape)).sum(-1)
        return zero.to(torch.promote_types(zero.dtype, torch.float32)).masked_fill(~is_optimal, -torch.inf)

    def entropy(self) -> Tensor:
        """Zero, shape ``batch_shape``."""
        return self.costs.new_zeros(self.batch_shape)


class _Contains(DifferentiableFunction):
    """Booleans, whether values are optimal; opaque to function transforms, as solvers need concrete numbers."""

    @staticmethod
    def forward(costs: Tensor, value: Tensor, problem: Problem) -> Tensor:
        return problem.contains(costs, value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None, None], costs: Tensor, value: Tensor, problem: Problem
    ) -> tuple[Tensor, int]:
        events = (len(problem.cost_shape), len(problem.event_shape))
        ranks = [tensor.dim() - event for tensor, event in zip((costs, value), events, strict=True)]
        rank = max(len(problem.batch_shape), *(r - (d is not None) for r, d in zip(ranks, in_dims, strict=False)))
        rows = [
            _leading(tensor, axis, rank + event)
            for tensor, axis, event in zip((costs, value), in_dims[:2], events, strict=True)
        ]
        return _Contains.apply(*rows, problem), 0  # type: ignore[no-untyped-call]


def _leading(tensor: Tensor, axis: int | None, rank: int) -> Tensor:
    """The tensor with ``axis``, or a new axis, in front of ``rank`` other axes."""
    tensor = tensor.unsqueeze(0) if axis is None else tensor.movedim(axis, 0)
    return tensor.reshape(tensor.shape[:1] + (1,) * (rank + 1 - tensor.dim()) + tensor.shape[1:])
