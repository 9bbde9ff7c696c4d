"""A problem together with all of its feasible values."""

__all__ = ["ProblemCase", "agree", "random_costs", "reflected"]

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_structured.optima.structures.problem import Problem


@dataclass(frozen=True)
class ProblemCase:
    """A problem without a batch shape, and its feasible values, shape ``(V, *event_shape)``."""

    problem: Problem
    values: Tensor

    def losses(self, costs: Tensor) -> Tensor:
        """Costs of all values, to be minimised, shape ``(..., V)``."""
        rows = costs.unsqueeze(-1 - len(self.problem.cost_shape))
        return self.problem.objective(rows, self.values) * (-1 if self.problem.maximize else 1)


def random_costs(problem: Problem, *shape: int, tied: bool = False) -> Tensor:
    """Costs that the solver can handle; small integers, so that values are tied, or not."""
    costs = torch.randn(*shape, *problem.cost_shape, dtype=torch.double)
    return reflected(costs.mul(2).round() if tied else costs, problem.cost_low)


def reflected(costs: Tensor, low: float | Tensor) -> Tensor:
    """Costs, reflected at the least ones that the solver can handle."""
    least = torch.as_tensor(low, dtype=torch.double)
    return torch.where(costs < least, 2 * least - costs, costs)


def agree(what: str, found: Tensor, expected: Tensor) -> None:
    """Raises an AssertionError that says how many booleans or integers are wrong, and the first of them."""
    assert found.shape == expected.shape, f"{what}: expected shape {tuple(expected.shape)}, got {tuple(found.shape)}"
    wrong = (found != expected).nonzero()
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{what}: {len(wrong)} of {found.numel()} are wrong, the first at {place}: expected "
            f"{expected[place].item()}, got {found[place].item()}"
        )
