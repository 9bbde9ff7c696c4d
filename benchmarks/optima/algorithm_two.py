"""The peer: the slice sampler that Tarlow, Adams and Zemel (2012, Algorithm 2) give for costs of observed matchings.

For every row, it steps out along a random direction until the density or the inverse set of the matching ends, and in
again. Whether a point is in the inverse set, a solver says: from scratch, or a dynamic Hungarian algorithm that keeps
the last matching and its potentials, and repairs the row that has changed.
"""

import math

import numpy as np
from numba import njit
from scipy.optimize import linear_sum_assignment


def make_chain(is_member, compile_function, is_dynamic=False):
    """Algorithm 2 with a test of membership, interpreted or compiled."""

    @compile_function
    def update_row(costs, columns, row, loc, scale, alpha, solver, rng, corrected):
        """One update in place; returns the number of tests of membership."""
        start = costs[row].copy()
        direction = rng.standard_normal(len(start))
        # log p along the line, less its value at the start.
        linear = np.sum(direction * (loc[row] - start)) / scale**2
        quadratic = np.sum(direction**2) / (2 * scale**2)
        level = math.log(1 - rng.random())
        ends, inside, queries = [-alpha, alpha], [False, False], 0
        for side in range(2):
            while True:
                t = ends[side]
                if t * linear - t * t * quadratic <= level:
                    # As printed, the flag still says that the point before was inside, and points of the slice between
                    # both are then taken without a test: the chain leaves the inverse set.
                    if corrected:
                        inside[side] = False
                    break
                costs[row] = start + t * direction
                inside[side] = is_member(costs, columns, row, solver)
                queries += 1
                if not inside[side]:
                    break
                ends[side] = t + (2 * side - 1) * alpha
        while True:
            t = ends[0] + (ends[1] - ends[0]) * rng.random()
            side = 1 if t > 0 else 0
            costs[row] = start + t * direction
            known = inside[side]
            member = known
            if not known:
                member = is_member(costs, columns, row, solver)
                queries += 1
            if member and t * linear - t * t * quadratic > level:
                if known and is_dynamic:
                    # The solver has not seen this point yet, and the next test is about another row.
                    is_member(costs, columns, row, solver)
                return queries
            ends[side], inside[side] = t, member

    @compile_function
    def run(costs, columns, loc, scale, alpha, kept, solver, rng):
        """A chain, whose states are written into an array; returns the number of tests of membership."""
        queries = 0
        for sweep in range(len(kept)):
            for row in range(len(costs)):
                queries += update_row(costs, columns, row, loc, scale, alpha, solver, rng, True)
            kept[sweep] = costs
        return queries

    return update_row, run


def make_solver(num_rows):
    """State of the compiled solvers: potentials, the row of each column, the column of each row, and work space."""
    potentials, indices = np.zeros((2, num_rows)), np.full((3, num_rows), -1)
    return potentials[0], potentials[1], indices[0], indices[1], indices[2], np.empty((2, num_rows))


@njit(cache=True)
def augment(costs, row, solver):
    """Gives a free row a column, by the shortest augmenting path of reduced costs."""
    of_rows, of_columns, row_of, column_of, previous, work = solver
    labels, settled = work
    # As in the package's own search: settled columns are -inf, the largest of the unsigned integers.
    keys = labels.view(np.uint64)
    labels[:] = math.inf
    settled[:] = -1.0
    least = math.inf
    for column in range(len(labels)):
        least = min(least, costs[row, column] - of_columns[column])
    of_rows[row] = least
    reach, leaver = 0.0, row
    while True:
        entries, potential = costs[leaver], of_rows[leaver]
        for column in range(len(labels)):
            known = labels[column]
            label = reach + max(entries[column] - potential - of_columns[column], 0.0)
            better = label < known
            labels[column] = label if better else known
            previous[column] = leaver if better else previous[column]
        lowest = keys[0]
        for column in range(1, len(labels)):
            lowest = min(lowest, keys[column])
        target = 0
        while keys[target] != lowest:
            target += 1
        reach = labels[target]
        if row_of[target] < 0:
            break
        settled[target], labels[target], leaver = reach, -math.inf, row_of[target]
    of_rows[row] += reach
    for column in range(len(labels)):
        if settled[column] >= 0:
            change = reach - settled[column]
            of_columns[column] -= change
            of_rows[row_of[column]] += change
    while True:
        leaver = previous[target]
        row_of[target] = leaver
        column_of[leaver], target = target, column_of[leaver]
        if leaver == row:
            break


@njit(cache=True)
def is_same(columns, column_of):
    for row in range(len(columns)):
        if columns[row] != column_of[row]:
            return False
    return True


@njit(cache=True)
def is_member_dynamic(costs, columns, row, solver):
    """By repairing the row that has changed."""
    row_of, column_of = solver[2], solver[3]
    if column_of[row] < 0:
        return is_member_compiled(costs, columns, row, solver)
    row_of[column_of[row]] = -1
    column_of[row] = -1
    augment(costs, row, solver)
    return is_same(columns, column_of)


@njit(cache=True)
def is_member_compiled(costs, columns, row, solver):
    """From scratch."""
    solver[1][:] = 0.0
    solver[2][:] = -1
    solver[3][:] = -1
    for each in range(len(costs)):
        augment(costs, each, solver)
    return is_same(columns, solver[3])


def is_member_scipy(costs, columns, row, solver):
    """From scratch, by scipy's solver."""
    return np.array_equal(linear_sum_assignment(costs)[1], columns)


update_row_dynamic, run_dynamic = make_chain(is_member_dynamic, njit, is_dynamic=True)
update_row_compiled, run_compiled = make_chain(is_member_compiled, njit)
update_row_scipy, run_scipy = make_chain(is_member_scipy, lambda function: function)
