"""Objects as plain data: what comes back is made as what was there."""

import functools
import io
from collections import OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch
from pyro.infer.autoguide import init_to_median
from pyro.ops.dual_averaging import DualAveraging

from pyro_structured.foundation.inference.object_state import ObjectState

Pair = namedtuple("Pair", ["first", "second"])


class Part:
    pass


def through_a_file(data):
    buffer = io.BytesIO()
    torch.save(data, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def machine():
    """A machine as a later process makes it again."""
    found = Part()
    found.tensor, found.array, found.numbers = torch.zeros(3), np.zeros(2), [1, 2]
    found.same, found.view = found.numbers, found.tensor.numpy()
    found.pair, found.queue, found.names = Pair(1, [0.0]), deque([1], 5), {"a"}
    found.table = OrderedDict([(("a", "b"), Part()), ("constant", functools.partial(int, "3"))])
    found.table["a", "b"].outer = found
    return found


def test_what_changed_comes_back():
    """New and old parts, shared ones, cycles, and changes that only the numbers tell of."""
    first, second = machine(), machine()
    states = [ObjectState(each) for each in (first, second)]
    old = second.numbers, second.tensor, second.table["constant"]
    first.numbers.append(first.tensor)
    first.view += 1
    first.array = first.array + 0.5
    first.pair = Pair(first.pair.second, np.float64(7.0))
    first.queue.append(first.queue)
    first.names.add(("b", 2))
    first.table["new"] = first.table.pop(("a", "b"))
    first.table["new"].outer = {"again": first.table, "frozen": frozenset({1}), "scheme": DualAveraging()}
    first.table["copy"] = [first.table["new"].outer]
    first.later = torch.ones(1, dtype=torch.long)
    first.earlier = first.later
    states[1].load(through_a_file(states[0].save()))
    assert second.numbers is second.same is old[0] and second.numbers[:2] == [1, 2] and second.numbers[2] is old[1]
    assert torch.equal(second.tensor, torch.ones(3)) and second.tensor is old[1]
    assert (second.array == 0.5).all()
    assert second.pair == Pair([0.0], 7.0) and isinstance(second.pair.second, np.float64)
    assert second.queue[1] is second.queue and second.queue.maxlen == 5
    assert second.names == {"a", ("b", 2)}
    assert list(second.table) == ["constant", "new", "copy"] and second.table["constant"] is old[2]
    outer = second.table["new"].outer
    assert outer["again"] is second.table and second.table["copy"][0] is outer
    assert outer["frozen"] == {1} and vars(outer["scheme"]) == vars(DualAveraging())
    assert torch.equal(second.later, torch.ones(1, dtype=torch.long)) and second.later is second.earlier


@pytest.mark.parametrize(
    "hidden",
    [
        *(iter([1]), torch.Generator(), np.array([None]), io.BytesIO(), {Pair: 1}, {0: lambda: 1}),
        *(deque([1], 5), defaultdict(list), [torch.nn.Parameter(torch.zeros(1))], torch.nn.Linear(1, 1)),
    ],
)
def test_what_data_cannot_tell_is_refused(hidden):
    root = Part()
    state = ObjectState({"kernel": root, "another": torch.nn.Parameter(torch.zeros(1))})
    root.hidden = hidden
    with pytest.raises(NotImplementedError, match=r"^kernel\.hidden.*: expected tensors, .* give .* state_dict"):
        state.save()


def test_files_do_not_name_foreign_code():
    state = ObjectState()
    assert state.decode(state.encode(init_to_median, "f")) is init_to_median
    for name in ("os:system", "builtins:eval", "pyro.infer.mcmc.api:mp.Process", "pyro.infer.mcmc.api:json.dumps"):
        assert state.resolve(name) is None
    with pytest.raises(NotImplementedError, match="part: expected .* got .*Part"):
        state.encode(Part(), "part")


def test_parts_that_are_missing():
    with pytest.raises(ValueError, match="table.a: expected an object, as in the file, got none"):
        ObjectState({"table": {}}).load(ObjectState({"table": {"a": []}}).save())
