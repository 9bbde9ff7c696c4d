"""Suite of checks of the contract of an optimisation problem whose costs can be random."""

__all__ = ["check_problem"]

import copy
import pickle
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_structured.optima.structures.problem import Problem
from pyro_structured.testing.check_inverse_sets import check_boxes, check_chords, check_feasible_points
from pyro_structured.testing.problem_case import ProblemCase, agree, random_costs


def check_problem(problem: Problem, values: Tensor | Sequence[Tensor]) -> None:
    """Checks that a problem keeps the contract that distributions and kernels rely on.

    Everything is compared with the list of all feasible values. The checks are

    - optima: ``solve`` and ``contains``, with costs that are tied and not, and of other dtypes;
    - values: ``is_feasible``, ``support``, ``incidence``, with values of all dtypes, and infeasible ones;
    - ``second_best``, where there is one, given optimal values and others;
    - inverse sets: ``feasible_point`` within bounds of all kinds; ``boxes``, by at least 10,000 costs inside and
      outside while all costs move; both ends of ``chord``;
    - shapes: costs and values that broadcast, ``expand``, ``flatten``, indexing; copies, pickles and equality;
    - errors: a ``ValueError`` that names the argument for costs or values of other shapes, or NaN;
    - no warnings.

    The random generator is seeded, and restored at the end. A problem with some 20 values and a fast solver takes about
    a second: some ten thousand rows are solved. Whether costs are rewards is up to the problem: check two.

    :param Problem problem: Small, with any batch shape. Costs between -1 and 1, or from ``cost_low`` to 1, must be able
        to make each of its values the only optimum.
    :param values: All feasible values, shape ``(V, *event_shape)``; if they differ over the batch, one such tensor for
        every row.
    :raises AssertionError: at the first check that fails, with what was expected and what came.

    Example::

        >>> from pyro_structured.structures import TopK
        >>> check_problem(TopK(3, k=1), torch.eye(3))
    """
    rows = problem.flatten(problem.batch_shape)
    singles = [rows[row] for row in range(rows.batch_shape.numel())]
    listed = [values] * len(singles) if isinstance(values, Tensor) else list(values)
    with torch.random.fork_rng([]), warnings.catch_warnings():
        torch.manual_seed(0)
        warnings.simplefilter("error")
        for single, feasible in zip(singles, listed, strict=True):
            case = ProblemCase(single, feasible)
            _check_optima(case)
            _check_values(case)
            check_feasible_points(case)
            _check_second_best(case)
            check_chords(case)
        check_boxes(problem)
        _check_batches(problem, singles)
        _check_copies(problem)
        _check_refusals(problem)


def _check_optima(case: ProblemCase) -> None:
    problem, values = case.problem, case.values
    for tied in (False, True):
        costs = random_costs(problem, 200, tied=tied)
        solved = problem.solve(costs)
        assert solved.shape == (200, *problem.event_shape), f"solve: unexpected shape {tuple(solved.shape)}"
        losses = case.losses(costs)
        optimal = losses <= losses.amin(-1, keepdim=True) + 1e-7
        chosen = _same(solved, values)
        agree("solve: values are optimal", (chosen & optimal).any(-1), torch.ones(200, dtype=torch.bool))
        agree("contains", problem.contains(costs.unsqueeze(1), values), optimal)
        if problem.is_linear:
            expected = (costs.unsqueeze(1) * problem.incidence(values)).flatten(2).sum(-1)
            torch.testing.assert_close(problem.objective(costs.unsqueeze(1), values), expected)
    for dtype in (torch.float32, torch.long):
        rounded = costs.to(dtype)
        agree(f"solve: costs of {dtype}", problem.solve(rounded), problem.solve(rounded.double()))


def _check_second_best(case: ProblemCase) -> None:
    problem, values = case.problem, case.values
    costs = random_costs(problem, 200)
    optimal = problem.solve(costs)
    chosen = values[torch.randint(len(values), (200,))].to(optimal.dtype)
    half = (torch.arange(200) < 100).reshape(-1, *(1,) * len(problem.event_shape))
    given = torch.where(half, optimal, chosen)
    try:
        second = problem.second_best(costs, given)
    except NotImplementedError:
        return
    except ValueError:
        assert len(values) == 1, (
            f"second_best: expected one of {len(values)} values, got a ValueError; where a feasible value is part of "
            "another, a problem needs a second_best of its own, or a NotImplementedError"
        )
        return
    losses, same = case.losses(costs), _same(given, values)
    best = losses.masked_fill(same, torch.inf).amin(-1)
    reached = losses.masked_fill(~_same(second, values), torch.inf).amin(-1)
    assert not bool((_same(second, values) & same).any()), "second_best: expected other values, got the same"
    torch.testing.assert_close(reached, best)


def _check_values(case: ProblemCase) -> None:
    problem, values = case.problem, case.values
    everything = torch.ones(len(values), dtype=torch.bool)
    binary = bool(((values == 0) | (values == 1)).all())
    expected = problem.incidence(values)
    assert expected.dtype == torch.double and expected.shape == (len(values), *problem.cost_shape), "incidence: shape"
    for dtype in (torch.long, torch.float32, torch.double, *([torch.bool] if binary else [])):
        agree(f"is_feasible: feasible values of {dtype}", problem.is_feasible(values.to(dtype)), everything)
        agree(f"incidence: values of {dtype}", problem.incidence(values.to(dtype)), expected)
    agree("support: feasible values", problem.support.check(values), everything)
    others = _other_values(values)
    feasible = _same(others, values).any(-1)
    agree("is_feasible: values of all kinds", problem.is_feasible(others), feasible)
    costs = random_costs(problem)
    agree("contains: infeasible values", problem.contains(costs, others) & ~feasible, feasible & False)
    broken = values.double().flatten(1).clone()
    for number in (torch.nan, 0.5):
        broken[:, -1] = number
        agree(f"is_feasible: {number}", problem.is_feasible(broken.reshape(values.shape)), ~everything)


def _other_values(values: Tensor) -> Tensor:
    """Values that may be infeasible: random integers, and values with one entry changed, or two exchanged."""
    shape, flat = values.shape[1:], values.long().flatten(1)
    low, high, size = int(flat.min()) - 1, int(flat.max()) + 2, flat.shape[1]
    noise = torch.randint(low, high, (500, size))
    some = flat[torch.randint(len(flat), (500,))]
    changed = some.scatter(1, torch.randint(size, (500, 1)), noise[:, :1])
    places = torch.randint(size, (500, 2))
    exchanged = some.scatter(1, places, some.gather(1, places).flip(1))
    return torch.cat([noise, changed, exchanged]).reshape(-1, *shape)


def _same(found: Tensor, values: Tensor) -> Tensor:
    """Whether N found values equal V listed ones, booleans of shape ``(N, V)``."""
    return (found.unsqueeze(1) == values).flatten(2).all(-1)


def _check_batches(problem: Problem, singles: list[Problem]) -> None:
    """Rows of a batch are independent of each other, however the batch is put together."""
    batch, count = problem.batch_shape, len(singles)
    costs, directions = (random_costs(problem, 2, *batch) for _ in range(2))
    value = problem.solve(costs)
    wide = problem.expand((2, *batch))
    assert wide.batch_shape == (2, *batch), f"expand: got batch shape {tuple(wide.batch_shape)}"
    flat = wide.flatten((2, *batch))
    assert flat.batch_shape == (2 * count,), f"flatten: got batch shape {tuple(flat.batch_shape)}"
    rows, row_values = costs.reshape(-1, *problem.cost_shape), value.reshape(-1, *problem.event_shape)
    picked = torch.arange(2 * count) % 2 == 0
    agree("expand: solve", wide.solve(costs), value)
    agree("flatten: solve", flat.solve(rows), row_values)
    agree("indexing by booleans: solve", flat[picked].solve(rows[picked]), row_values[picked])
    agree("slicing: solve", flat[1:].solve(rows[1:]), row_values[1:])
    flipped_costs = rows.flip(0)
    contained = problem.contains(flipped_costs.reshape(costs.shape), value)
    feasible = problem.is_feasible(value.flip(0)).expand(contained.shape)
    ends = problem.chord(costs, value, directions) if problem.is_linear else ()
    for row in range(2 * count):
        single, own = singles[row % count], row_values[row]
        agree("rows of a batch: solve", single.solve(rows[row]), own)
        agree("rows of a batch: contains", contained.reshape(-1)[row], single.contains(flipped_costs[row], own))
        flipped = value.flip(0).reshape(row_values.shape)[row]
        agree("rows of a batch: is_feasible", feasible.reshape(-1)[row], single.is_feasible(flipped))
        if problem.is_linear:
            direction = directions.reshape(rows.shape)[row]
            for end, expected in zip(ends, single.chord(rows[row], own, direction), strict=True):
                torch.testing.assert_close(end.reshape(-1)[row], expected)
    # Costs and a value of one row, and problems of many.
    cost, own = rows[0], row_values[0]
    assert problem.objective(cost, own).shape == batch, "objective: expected the batch shape of the problem"
    both = random_costs(problem, 3, 1, *(1 for _ in batch))
    agree("broadcasting: contains", problem.contains(both, value), wide.contains(both.expand(3, *costs.shape), value))


def _check_copies(problem: Problem) -> None:
    for name, copied in (("pickle", pickle.loads(pickle.dumps(problem))), ("deepcopy", copy.deepcopy(problem))):
        assert copied == problem and hash(copied) == hash(problem), f"{name}: expected an equal problem"
    assert problem != problem.expand((7, *problem.batch_shape)), "==: expected problems of other batch shapes to differ"
    assert problem != 0, "==: expected a problem and a number to differ"


def _check_refusals(problem: Problem) -> None:
    costs = random_costs(problem, *problem.batch_shape)
    value = problem.solve(costs)
    long_costs, long_value = (torch.cat([tensor, tensor], -1) for tensor in (costs, value))
    calls: dict[str, tuple[str, Callable[[], object]]] = {
        "solve: costs that are not a tensor": ("costs", lambda: problem.solve(costs.tolist())),  # type: ignore[arg-type]
        "solve: costs that are NaN": ("costs", lambda: problem.solve(torch.full_like(costs, torch.nan))),
        "solve: too many costs": ("costs", lambda: problem.solve(long_costs)),
        "contains: too many costs": ("costs", lambda: problem.contains(long_costs, value)),
        "contains: a value that is too long": ("value", lambda: problem.contains(costs, long_value)),
        "contains: costs of five rows, values of seven": (
            "value",
            lambda: problem.contains(costs.expand(5, *costs.shape), value.expand(7, *value.shape)),
        ),
        "is_feasible: a value that is too long": ("value", lambda: problem.is_feasible(long_value)),
    }
    if problem.is_linear:
        missing, endless = (torch.full_like(costs, wrong) for wrong in (torch.nan, torch.inf))
        calls |= {
            "chord: costs that are NaN": ("costs", lambda: problem.chord(missing, value, costs)),
            "chord: costs that are infinite": ("costs", lambda: problem.chord(endless, value, costs)),
            "reach: costs that are infinite": ("costs", lambda: problem.reach(endless, value, costs)),
            "chord: a direction that is NaN": ("direction", lambda: problem.chord(costs, value, missing)),
            "chord: a direction that is infinite": ("direction", lambda: problem.chord(costs, value, endless)),
        }
    for what, (name, call) in calls.items():
        try:
            call()
        except ValueError as error:
            assert str(error).startswith(f"{name}: "), f"{what}: expected an error that names {name}, got {error}"
        else:
            raise AssertionError(f"{what}: expected a ValueError, got none")
