"""Cuts of a graph without a few nodes, which make both sides of the others almost independent."""

__all__ = ["EdgeCuts", "SeparatorProgram", "check_weights", "minimum_edge_cut", "round_cuts", "worths"]

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pyro_structured.junction_trees.solvers.separator_flow import SeparatorFlow, SeparatorSolution


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
    :param np.ndarray bonus: Bonus b of each pair that is left out together, at least 0, of the shape of the weights;
        ``None``: 0.
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
            for tail, head in ((u, v), (v, u)):
                # The head is entered no later than the tail is left, and the edge crossed.
                row = solver.Constraint(-solver.infinity(), 0)
                for variable, factor in (
                    (self._entry[head], 1),
                    (self._entry[tail], -1),
                    (self._length[tail], -1),
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
        """Solution for one sink, which is not the source."""
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
        # Exact in spite of the solver's tolerance.
        entry[sink] = 1.0
        return SeparatorSolution(self._solver.Objective().Value(), entry, length)


class EdgeCuts(NamedTuple):
    """Cuts, one in each row.

    :ivar np.ndarray separators: Whether a node is left out, shape ``(..., n)``.
    :ivar np.ndarray sides: Whether a node is on the source's side, shape ``(..., n)``.
    :ivar np.ndarray weights: Total weights of the edges between both sides, shape ``(...)``.
    """

    separators: np.ndarray
    sides: np.ndarray
    weights: np.ndarray


def check_weights(weights: np.ndarray, name: str = "weights") -> np.ndarray:
    """Symmetric matrix of finite numbers of at least 0, with zeros put on the diagonal, or a ValueError."""
    try:
        matrix = np.asarray(weights, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected a square matrix of numbers, got {weights!r}") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name}: expected a square matrix, got shape {matrix.shape}")
    if not np.isfinite(matrix).all() or (matrix < 0).any() or not np.array_equal(matrix, matrix.T):
        raise ValueError(f"{name}: expected a symmetric matrix of finite numbers of at least 0, got others")
    return matrix - np.diag(matrix.diagonal())


def round_cuts(
    weights: np.ndarray,
    solutions: Sequence[SeparatorSolution],
    ends: Sequence[tuple[int, int]],
    size: int,
    bonus: np.ndarray | None = None,
) -> EdgeCuts:
    r"""Cuts with at most k nodes left out, for all different radii: the frontier of size and weight.

    For a radius r, nodes with :math:`d_v + s_v \le r` are on the source's side, and those with :math:`d_v \le r < d_v +
    s_v` are left out. For r uniform in (0, 1), the expected weight is at most the solution's value, and the expected
    number of these nodes at most k. In further cuts, these nodes are put on either side, and the nodes that save most
    of the remaining weight are left out, one after the other, so that there are cuts for every number of nodes up to k.

    :param np.ndarray weights: Weights of the edges, at least 0, symmetric, shape ``(n, n)``.
    :param solutions: Distances d and lengths s, of one pair of nodes after the other.
    :param ends: The source and the sink of each solution, which are never left out.
    :param int size: The largest number of nodes k that are left out.
    :param np.ndarray bonus: Bonus of each pair of nodes that is left out together, of the shape of the weights, for
        which further cuts are found.
    :return: Cuts, some of them more than once. Cost :math:`O(n^2 (n + k))` for each solution.
    """
    inside, touched, owners = [], [], []
    for place, (_, entry, length) in enumerate(solutions):
        leave = entry + length
        limits = np.unique(np.concatenate([entry, leave, [0.0, 1.0]]).clip(0, 1).round(9))
        radii = (limits[:-1, None] + limits[1:, None]) / 2
        inside.append(leave <= radii)
        touched.append(entry <= radii)
        owners += [place] * len(radii)
    near, ball = np.concatenate(inside), np.concatenate(touched)
    fits = (ball & ~near).sum(1) <= size
    cuts = [(ball[fits] & ~near[fits], near[fits])]
    sides, kept = np.concatenate([near, ball]), np.array(ends)[owners * 2]
    for worth in (None, bonus) if bonus is not None and bonus.any() else (None,):
        cuts += _leave_out(weights, sides, kept, size, worth)
    separators, sides = (np.concatenate(array) for array in zip(*cuts, strict=True))
    return EdgeCuts(separators, sides, ((sides @ weights) * ~(separators | sides)).sum(1))


def worths(bonus: np.ndarray, separators: np.ndarray) -> np.ndarray:
    """Total bonus of each separator's pairs, shape ``(cuts,)``."""
    bonuses: np.ndarray = ((separators @ np.triu(bonus, 1)) * separators).sum(1)
    return bonuses


def minimum_edge_cut(
    weights: np.ndarray,
    size: int,
    source: int,
    sink: int,
    bonus: np.ndarray | None = None,
    integer: bool = False,
) -> tuple[EdgeCuts, float]:
    """The best rounded cut between two nodes, and a lower bound of the weights of all cuts.

    :param np.ndarray weights: Weights of the edges, at least 0, symmetric, shape ``(n, n)``.
    :param int size: The largest number of nodes k that are left out.
    :param int source: A node.
    :param int sink: Another node.
    :param np.ndarray bonus: Bonus of each pair of nodes that is left out together, at least 0, symmetric; ``None``: 0,
        which is much faster.
    :param bool integer: Whether the best cut is found by branch and bound, which may take long, in place of rounding.
    :return: One cut, whose weight does not include its bonus, and the bound, which does.
    :raises ValueError: if an argument is of another kind or out of range.

    Example::

        >>> weights = np.array([[0, 1, 5, 0], [1, 0, 5, 0], [5, 5, 0, 5], [0, 0, 5, 0]])
        >>> cut, bound = minimum_edge_cut(weights, 1, source=0, sink=1)
        >>> cut.separators.nonzero()[0].tolist(), float(cut.weights), bound
        ([2], 1.0, 1.0)
    """
    weights = check_weights(weights)
    bonus = None if bonus is None else check_weights(bonus, "bonus")
    if size < 0:
        raise ValueError(f"size: expected at least 0, got {size}")
    for name, node in (("source", source), ("sink", sink)):
        if not 0 <= node < len(weights) or source == sink:
            raise ValueError(f"{name}: expected two different nodes in range({len(weights)}), got {source} and {sink}")
    if bonus is None and not integer:
        solution = SeparatorFlow(weights, size).solve(source, sink)
    else:
        solution = SeparatorProgram(weights, size, source, bonus, integer).solve(sink)
    cuts = round_cuts(weights, [solution], [(source, sink)], size, bonus)
    values = cuts.weights if bonus is None else cuts.weights - worths(bonus, cuts.separators)
    best = int(values.argmin())
    return EdgeCuts(*(array[best] for array in cuts)), solution.value


def _leave_out(
    weights: np.ndarray, sides: np.ndarray, ends: np.ndarray, size: int, bonus: np.ndarray | None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Separators of 0 to k nodes for partitions of all nodes, chosen greedily, and the nodes that stay on one side."""
    left_out, rows = np.zeros_like(sides), np.arange(len(sides))
    # Half of the largest bonus of each node with another one.
    reward = None if bonus is None else np.tile(bonus.max(1) / 2, (len(sides), 1))
    cuts = []
    for _ in range(size + 1):
        near, far = sides & ~left_out, ~sides & ~left_out
        cuts.append((left_out.copy(), near))
        saved = np.where(sides, far @ weights, near @ weights)
        if bonus is not None:
            saved += reward
        saved[left_out] = -1.0
        saved[rows[:, None], ends] = -1.0
        best = saved.argmax(1)
        left_out[rows, best] |= saved[rows, best] > 0
        reward = None if bonus is None else left_out @ bonus
    return cuts
