import copy
import pickle

import pytest
import torch

# How often the boxes of a problem are compared with the list of its values, in each of several cases.
NUM_COMPARISONS = 2_500


def losses(problem, costs, values):
    """What every value costs, to be minimised, shape ``(..., V)``."""
    axes = len(problem.cost_shape)
    terms = costs.unsqueeze(-1 - axes) * problem.incidence(values)
    return terms.flatten(-axes).sum(-1) * (-1 if problem.maximize else 1)


def is_best(problem, costs, value, values):
    own = losses(problem, costs, value.unsqueeze(-1 - len(problem.event_shape))).squeeze(-1)
    return own <= losses(problem, costs, values).amin(-1) + 1e-11


def check_optima(problem, costs, values):
    value = problem.solve(costs)
    assert value.shape == costs.shape[: costs.dim() - len(problem.cost_shape)] + problem.event_shape
    assert value.dtype == costs.dtype and torch.equal(
        problem.solve(costs.float()), problem.solve(costs.float().double())
    )
    listed = (value.unsqueeze(1) == values).flatten(2).all(-1)
    assert listed.any(-1).all() and problem.is_feasible(value).all() and problem.is_feasible(values).all()
    assert problem.support.check(values).all() and not problem.is_feasible(values + 0.5).any()
    assert is_best(problem, costs, value, values).all()
    all_costs = losses(problem, costs, values)
    expected = all_costs <= all_costs.amin(-1, keepdim=True) + 1e-9
    assert torch.equal(problem.contains(costs.unsqueeze(1), values), expected)
    point = problem.feasible_point(values)
    assert torch.equal(problem.contains(point.unsqueeze(1), values), torch.eye(len(values), dtype=torch.bool))


def check_boxes(problem, costs, values):
    """Moves all costs about, as a sampler would; how often a box was compared with the list of all values."""
    value, flat = problem.solve(costs), costs.view(len(costs), -1)
    least = torch.as_tensor(problem.cost_low).double().expand(costs.shape).reshape(flat.shape)
    compared, visited = 0, torch.zeros_like(flat)
    for box in problem.boxes(costs, value):
        now, low, high = flat.gather(-1, box.index), box.low, box.high
        free = torch.ones_like(now, dtype=torch.bool) if box.free is None else box.free
        assert (((now >= low - 1e-9) & (now <= high + 1e-9)) | ~free).all()
        visited.scatter_add_(-1, box.index, free.double())
        # Anywhere, or just inside or outside of an end; one entry, or all of them.
        end = torch.where(torch.rand_like(now) < 0.5, low, high)
        near = end + 1e-6 * torch.randn_like(now).sign() * (0.5 + torch.rand_like(now))
        tight = (torch.rand_like(now[:, :1]) < 0.5) & end.isfinite()
        new = torch.where(tight, near, now + torch.randn_like(now)).maximum(least.gather(-1, box.index))
        one = torch.rand_like(now).masked_fill(~free, -1.0)
        moving = free & ((one == one.amax(-1, keepdim=True)) | (torch.rand_like(now[:, :1]) < 0.5))
        new = torch.where(moving, new, now)
        inside = ((new >= low - 1e-10) & (new <= high + 1e-10)) | ~moving
        moved = flat.scatter(-1, box.index, new).view(costs.shape)
        assert torch.equal(is_best(problem, moved, value, values), inside.all(-1))
        compared += int(moving.any(-1).sum())
        flat.copy_(flat.scatter(-1, box.index, torch.where(inside, new, now)))
    assert (visited > 0).all()
    return compared


def check_chords(problem, costs, values):
    value, direction = problem.solve(costs), torch.randn_like(costs)
    own = value.unsqueeze(1)
    ahead = (losses(problem, costs, values) - losses(problem, costs, own)).clamp(min=0)
    slope = losses(problem, direction, values) - losses(problem, direction, own)
    room = (problem.cost_low - costs) / direction
    for end, sign in zip(problem.chord(costs, value, direction), (-1, 1), strict=True):
        met = (-ahead / slope * sign).masked_fill(slope * sign > -1e-12, torch.inf).amin(-1)
        bound = (room * sign).masked_fill(direction * sign >= 0, torch.inf).flatten(1).amin(-1)
        torch.testing.assert_close(end * sign, torch.minimum(met, bound), rtol=1e-7, atol=1e-9)


def check_copies(problem, costs):
    """Pickles, and rows of a batch, which must not know of each other."""
    for other in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert other == problem and hash(other) == hash(problem)
    batch, count = problem.batch_shape, problem.batch_shape.numel()
    wide = problem.expand((len(costs) // count, *batch))
    rows, assert_equal = wide.flatten(wide.batch_shape), torch.testing.assert_close
    value = wide.solve(costs.view(wide.batch_shape + problem.cost_shape))
    assert wide.is_feasible(value).all() and wide != problem
    assert_equal(rows.solve(costs), value.view(-1, *problem.event_shape))
    for row in range(0, len(costs), 7):
        assert rows[row].batch_shape == ()
        assert_equal(rows[row].solve(costs[row]), rows.solve(costs)[row])
        assert_equal(
            rows[row : row + 2].is_feasible(rows.solve(costs)[0]), rows.is_feasible(rows.solve(costs)[0])[row : row + 2]
        )
    shared = problem.solve(costs[0])
    assert_equal(shared, problem.expand(batch).solve(costs[0].expand(batch + problem.cost_shape)))


@pytest.fixture
def check_against_all_values():
    """Checks a problem by the list of its feasible values, one list for each row of the batch."""

    def check(problem, listed, random_costs):
        rows = problem.flatten(problem.batch_shape)
        for row, values in enumerate(listed):
            costs = random_costs(50)
            tied = costs.mul(2).round()
            check_optima(rows[row], costs, values)
            check_optima(rows[row], tied, values)
            check_chords(rows[row], costs, values)
            compared = 0 if has_boxes(problem) else NUM_COMPARISONS
            while compared * len(listed) < NUM_COMPARISONS:
                compared += check_boxes(rows[row], costs.clone(), values)
                compared += check_boxes(rows[row], tied.clone(), values)
        check_copies(problem, random_costs(4 * len(listed)))

    return check


def has_boxes(problem):
    return "boxes" in vars(type(problem))
