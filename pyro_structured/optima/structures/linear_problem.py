"""Optimisation problems with a linear objective and a user-defined solver."""

__all__ = ["LinearProblem"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.structures.argument_checks import check_flag, checked_indices, checked_tensor
from pyro_structured.optima.structures.every_entry import EveryEntry
from pyro_structured.optima.structures.problem import Problem


class LinearProblem(Problem):
    r"""An optimisation problem with a linear objective and a user-defined solver.

    .. math::
        F(w) = \arg\min_{y \in \mathcal{Y}} \langle w, \rho(y) \rangle

    :param solve_fn: Function from costs of shape ``(N, *cost_shape)``, in double precision on the CPU, to optimal
        values of shape ``(N, *event_shape)``. It must be exact: chords and :meth:`contains` are as exact as it is.
    :param cost_shape: Shape of the costs.
    :param event_shape: Shape of a value; ``None``: that of the costs.
    :param incidence_fn: Function from values of shape ``(..., *event_shape)`` to the coefficients :math:`\rho` of the
        costs, shape ``(..., *cost_shape)``. ``None``: the values themselves.
    :param constraints.Constraint support: Support of the values, with as many event axes as they have; ``None``: zeros
        and ones.
    :param bool maximize: Whether the costs are rewards, and ``solve_fn`` maximises.
    :param is_feasible_fn: Function from values of shape ``(..., *event_shape)``, inside the support or not, to booleans
        of shape ``(...)``, whether they are feasible. ``None``: all of the support is.
    :param cost_low: Least cost that ``solve_fn`` can handle, a number or a tensor that broadcasts with the costs.
    :raises ValueError: if arguments are no functions or shapes, shapes do not agree, or the least cost is larger than
        0.

    Without ``is_feasible_fn``, the feasible set is known to ``solve_fn`` only: :meth:`is_feasible` says whether values
    belong to the support, and :meth:`contains` relies on being asked about members of the feasible set. There are
    chords, but no :meth:`boxes`. A problem can be pickled if its functions can.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Equation 4.

    Example::

        >>> problem = LinearProblem(lambda costs: (costs < 0).double(), [2])  # any subset
        >>> costs, value = torch.tensor([1.0, -2.0]), torch.tensor([0.0, 1.0])
        >>> problem.contains(costs, value)
        tensor(True)
        >>> problem.chord(costs, value, torch.tensor([1.0, 1.0]))
        (tensor(-1., dtype=torch.float64), tensor(2., dtype=torch.float64))
    """

    def __init__(
        self,
        solve_fn: Callable[[Tensor], Tensor],
        cost_shape: Any,
        event_shape: Any = None,
        incidence_fn: Callable[[Tensor], Tensor] | None = None,
        support: constraints.Constraint | None = None,
        maximize: bool = False,
        cost_low: float | Tensor = -torch.inf,
        is_feasible_fn: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        for name, function in (
            ("solve_fn", solve_fn),
            ("incidence_fn", incidence_fn),
            ("is_feasible_fn", is_feasible_fn),
        ):
            if not callable(function) and (function is not None or name == "solve_fn"):
                raise ValueError(f"{name}: expected a function, got {function!r}")
        self.cost_shape = torch.Size(checked_indices("cost_shape", cost_shape))
        if not len(self.cost_shape) or min(self.cost_shape) < 1:
            raise ValueError(
                f"cost_shape: expected one or more axes of at least one cost, got {tuple(self.cost_shape)}"
            )
        self.event_shape = (
            self.cost_shape if event_shape is None else torch.Size(checked_indices("event_shape", event_shape))
        )
        if incidence_fn is None and self.event_shape != self.cost_shape:
            raise ValueError(
                f"event_shape: expected that of the costs, {tuple(self.cost_shape)}, unless there is an incidence_fn, "
                f"got {tuple(self.event_shape)}"
            )
        if support is not None and not isinstance(support, constraints.Constraint):
            raise ValueError(f"support: expected a constraint, such as constraints.real_vector, got {support!r}")
        if support is not None and support.event_dim != len(self.event_shape):
            raise ValueError(
                f"support: expected a constraint with {len(self.event_shape)} event axes, got {support.event_dim}"
            )
        expected = "numbers of at most 0, as problems are solved for multiples"
        if not bool((checked_tensor("cost_low", expected, cost_low) <= 0).all()):
            raise ValueError(f"cost_low: expected {expected}, got {cost_low}")
        check_flag("maximize", maximize)
        self.maximize, self.cost_low = maximize, cost_low
        self.is_binary = incidence_fn is None and support is None
        self._solve_fn, self._incidence_fn, self._support = solve_fn, incidence_fn, support
        self._is_feasible_fn = is_feasible_fn

    @property
    def support(self) -> constraints.Constraint:
        """Support of the values."""
        if self._support is None:
            return EveryEntry(constraints.boolean, len(self.event_shape))
        return self._support

    def solve(self, costs: Tensor) -> Tensor:
        """Values that ``solve_fn`` finds, shape ``(..., *event_shape)``."""
        batch = self._checked_batch(costs)
        rows = costs.detach().double().cpu().expand(batch + self.cost_shape).reshape(batch.numel(), *self.cost_shape)
        values = self._solve_fn(rows)
        expected = (batch.numel(), *self.event_shape)
        if not isinstance(values, Tensor) or values.shape != expected:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"solve_fn: expected values of shape {expected}, got {got}")
        return values.reshape(batch + self.event_shape).to(costs.device)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether values belong to the support, and to the feasible set if ``is_feasible_fn`` is given."""
        batch = self._batch(value=value)
        # Constraints of torch cannot be checked where there are no rows.
        feasible = self.support.check(value) if value.numel() else value.new_ones(batch).bool()
        if self._is_feasible_fn is not None:
            found = self._is_feasible_fn(value)
            if not isinstance(found, Tensor) or found.shape != feasible.shape or found.dtype != torch.bool:
                got = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
                raise ValueError(f"is_feasible_fn: expected booleans of shape {tuple(feasible.shape)}, got {got}")
            feasible = feasible & found
        return feasible.expand(batch)

    def second_best(self, costs: Tensor, value: Tensor) -> Tensor:
        """Refused: a solver for the best values says nothing about all others.

        :raises NotImplementedError: always.
        """
        raise NotImplementedError("second_best: LinearProblem has only a solver for the best values")

    def incidence(self, value: Tensor) -> Tensor:
        """The coefficients that ``incidence_fn`` finds, shape ``(..., *cost_shape)``."""
        if self._incidence_fn is None:
            return value.double()
        found = self._incidence_fn(value)
        expected = value.shape[: value.dim() - len(self.event_shape)] + self.cost_shape
        if found.shape != expected:
            raise ValueError(
                f"incidence_fn: expected coefficients of shape {tuple(expected)}, got {tuple(found.shape)}"
            )
        return found.double()

    def feasible_point(self, value: Tensor, low: Tensor | float = 0.0, high: Tensor | float = 1.0) -> Tensor:
        """Costs between two bounds for which values are as far from any other as possible, for coefficients of 0 and 1.

        :raises NotImplementedError: if some are not.
        """
        coefficients = self.incidence(value)
        if not bool(((coefficients == 0) | (coefficients == 1)).all()):
            raise NotImplementedError("feasible_point: only known where coefficients are 0 or 1; start from a solution")
        return super().feasible_point(value, low, high)
