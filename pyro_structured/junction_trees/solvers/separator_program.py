"""The linear relaxation of the cheapest cut of a graph that a few nodes may be left out of."""

__all__ = ["SeparatorProgram"]

from typing import Any

import numpy as np

from pyro_structured.junction_trees.solvers.separator_flow import SeparatorSolution


class SeparatorProgram:
    r"""Finds lengths of edges and nodes that keep a source and a sink apart, for one source and many sinks.

    .. math::
        \min \sum_{uv} w_{uv} c_{uv} - \sum_{uv} b_{uv} m_{uv} \quad \text{subject to} \quad
        \sum_v s_v \le k, \quad d_v \le d_u + s_u + c_{uv}, \; d_u \le d_v + s_v + c_{uv}, \quad m_{uv} \le s_u, s_v,

    where the source has :math:`d = s = 0`, the sink :math:`d = 1, s = 0`, and all variables are in [0, 1]. With integer
    variables, that is the cheapest cut of the graph without at most k nodes: the nodes with :math:`s_v = 1`. Another
    sink changes two bounds; the solver goes on from where it was.

    :param np.ndarray weights: Weights of the edges, at least 0, symmetric, shape ``(n, n)``.
    :param int size: The largest number of nodes k that are left out.
    :param int source: A node.
    :param np.ndarray bonus: What pairs that are left out together are worth, at least 0, like the weights; ``None``:
        nothing.
    :param bool integer: Whether variables are integers, which may take long.
    """

    def __init__(
        self, weights: np.ndarray, size: int, source: int, bonus: np.ndarray | None = None, integer: bool = False
    ) -> None:
        from ortools.linear_solver import pywraplp

        number = len(weights)
        self._solver: Any = pywraplp.Solver.CreateSolver("SCIP" if integer else "GLOP")
        solver, objective = self._solver, self._solver.Objective()
        make = solver.IntVar if integer else solver.NumVar
        self._entry = [solver.NumVar(0, 0 if v == source else 1, "") for v in range(number)]
        self._length = [make(0, 0 if v == source else 1, "") for v in range(number)]
        room = solver.Constraint(-solver.infinity(), size)
        for length in self._length:
            room.SetCoefficient(length, 1)
        for u, v in zip(*np.triu(weights, 1).nonzero(), strict=True):
            cut = make(0, 1, "")
            objective.SetCoefficient(cut, float(weights[u, v]))
            for one, other in ((u, v), (v, u)):
                # The other end is entered no later than one end is left, and the edge crossed.
                row = solver.Constraint(-solver.infinity(), 0)
                for variable, factor in (
                    (self._entry[other], 1),
                    (self._entry[one], -1),
                    (self._length[one], -1),
                    (cut, -1),
                ):
                    row.SetCoefficient(variable, factor)
        for u, v in zip(*np.triu(np.zeros_like(weights) if bonus is None else bonus, 1).nonzero(), strict=True):
            both = solver.NumVar(0, 1, "")
            objective.SetCoefficient(both, -float(bonus[u, v]))  # type: ignore[index]
            for node in (u, v):
                row = solver.Constraint(-solver.infinity(), 0)
                row.SetCoefficient(both, 1)
                row.SetCoefficient(self._length[node], -1)
        objective.SetMinimization()
        self.source = source
        self._sink: int | None = None

    def solve(self, sink: int) -> SeparatorSolution:
        """For one sink, which is not the source."""
        if self._sink is not None:
            self._entry[self._sink].SetLb(0)
            self._length[self._sink].SetUb(1)
        self._sink = sink
        self._entry[sink].SetLb(1)
        self._length[sink].SetUb(0)
        status = self._solver.Solve()
        if status != self._solver.OPTIMAL:
            raise RuntimeError(f"separator program: expected an optimal solution, got the solver's status {status}")
        entry, length = (np.array([v.solution_value() for v in group]) for group in (self._entry, self._length))
        # As wanted, whatever the solver's tolerance.
        entry[sink] = 1.0
        return SeparatorSolution(self._solver.Objective().Value(), entry, length)
