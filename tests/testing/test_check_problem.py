"""The suite for problems accepts what is right, and finds every single thing that is wrong."""

import itertools
import warnings

import pytest
import torch

from pyro_structured.structures import Box, ConnectedComponents, TopK
from pyro_structured.testing import check_problem

VALUES = torch.tensor([c for c in itertools.product((0, 1), repeat=4) if sum(c) == 2])


def changed(method, change):
    """A class whose method returns something else."""
    return type("Changed", (TopK,), {method: lambda self, *args: change(getattr(TopK, method)(self, *args), *args)})


def boxes(change):
    def changed_boxes(self, costs, value):
        for box in TopK.boxes(self, costs, value):
            yield Box(box.index, *change(box.low, box.high), box.free)

    return type("Changed", (TopK,), {"boxes": changed_boxes})


class StaleBoxes(TopK):
    def boxes(self, costs, value):
        yield from TopK.boxes(self, costs.clone(), value)


class FirstBox(TopK):
    def boxes(self, costs, value):
        yield next(TopK.boxes(self, costs, value))


class Warns(TopK):
    def solve(self, costs):
        warnings.warn("slow", stacklevel=1)
        return TopK.solve(self, costs)


class NeverEqual(TopK):
    def __eq__(self, other):
        return self is other

    __hash__ = TopK.__hash__


class Forgets(TopK):
    """Its numbers of items stay behind when it is indexed."""

    def __getitem__(self, index):
        new = super().__getitem__(index)
        new.k = self.k
        return new


FAULTS = {
    "solve: values are optimal": changed("solve", lambda value, costs: value.flip(-1)),
    "solve: costs of torch.float32": changed("solve", lambda v, costs: v + (costs.dtype == torch.float32)),
    "contains": changed("contains", lambda contained, costs, value: contained & False),
    "is_feasible: values of all kinds": changed("is_feasible", lambda feasible, value: feasible | (value.sum(-1) == 1)),
    "is_feasible: feasible values of torch.bool": changed(
        "is_feasible", lambda feasible, value: feasible & (value.dtype != torch.bool)
    ),
    "is_feasible: nan": changed("is_feasible", lambda feasible, value: feasible | value.isnan().any(-1)),
    "incidence: shape": changed("incidence", lambda incidence, value: incidence.float()),
    "feasible_point: optimal values": changed("feasible_point", lambda point, *args: -point),
    "feasible_point leaves its bounds": changed(
        "feasible_point", lambda point, value, *bounds: point + 9 * bool(bounds)
    ),
    "feasible_point: costs within the bounds are in the inverse set": changed(
        "feasible_point", lambda point, value, low, high: (low + high) / 2 if isinstance(high, torch.Tensor) else point
    ),
    "reach is right": changed("reach", lambda end, *args: 0.999 * end),
    "chord: upper end is right": changed("chord", lambda ends, *args: (ends[0], 0.999 * ends[1])),
    "chord: lower end is right": changed("chord", lambda ends, *args: (ends[0] * torch.inf, ends[1])),
    "boxes: the costs lie in the box": boxes(lambda low, high: (low + 0.1, high)),
    "boxes: costs are visited": FirstBox,
    "boxes: costs inside": StaleBoxes,
    "expand: got batch shape": changed("expand", lambda problem, shape: problem[0] if shape == (2,) else problem),
    "slow": Warns,
    "pickle": NeverEqual,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(fault):
    kind = FAULTS[fault]
    kind.__module__, kind.__qualname__ = __name__, kind.__name__
    with pytest.raises((AssertionError, Warning), match=f"^{fault}"):
        check_problem(kind(4, 2), VALUES)


@pytest.mark.parametrize("amount", [-1e-6, 1e-6, 1e-3])
def test_bounds_are_exact(amount):
    """Boxes that are a bit too wide, or too narrow."""
    kind = boxes(lambda low, high: (low, high + amount))
    with pytest.raises(AssertionError, match="^boxes: costs inside|^boxes: the costs lie in the box"):
        check_problem(kind(4, 2), VALUES)


def test_values_must_be_complete():
    with pytest.raises(AssertionError, match="^solve: values are optimal: .* expected True, got False"):
        check_problem(TopK(4, 2), VALUES[1:])


def test_problems_that_are_not_linear_have_no_chords():
    class WithChord(ConnectedComponents):
        def chord(self, costs, value, direction):
            return -torch.ones(len(costs)), torch.ones(len(costs))

    with pytest.raises(AssertionError, match="^chord: expected NotImplementedError"):
        check_problem(WithChord(torch.tensor([[0, 1]]), 2, 0.5), torch.tensor([[0, 0], [0, 1]]))


def test_random_numbers_are_restored():
    state = torch.get_rng_state()
    check_problem(TopK(4, 2), VALUES)
    assert torch.equal(torch.get_rng_state(), state)
