"""Values of rows: any part of them, in any order, again and again, with a memory of what was seen."""

import subprocess
import sys

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.foundation.inference.row_state import RowState

SHAPE, TAIL = torch.Size([2]), torch.Size([1])

PROGRAM = """
import resource
import torch
from pyro_structured.foundation.inference.row_state import RowState

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

state, number, before = RowState(), 10**6, peak()
for step in range(2):
    rows = torch.randperm(number)[:100]
    sizes, observed = torch.Size([number]), torch.zeros(100, 10, 10)
    state.read("y", (rows,), sizes, torch.Size([10, 10]), observed)
    state.write("y", (rows,), sizes, torch.zeros(100, 10, 10).double(), observed)
    state.commit()
restored = RowState()
restored.load_state_dict(state.state_dict())
print(peak() - before)
"""


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=6), max_size=6))
def test_rows_are_those_of_a_dictionary(steps):
    """Grids of rows of two plates, whose later rows come later, against a dictionary of rows."""
    state, known = RowState(), {}
    for number, pairs in enumerate(steps):
        first, second = (torch.tensor(sorted({pair[axis] for pair in pairs})) for axis in (0, 1))
        sizes = torch.Size([int(first.max()) + 1, int(second.max()) + 1])
        places = (first.reshape(-1, 1), second)
        observed = torch.full((len(first), len(second), 1), float(number % 2))
        keys = [[(i, j) for j in second.tolist()] for i in first.tolist()]
        last, started = state.read("y", places, sizes, SHAPE, observed)
        for i, row in enumerate(keys):
            for j, key in enumerate(row):
                value, seen = known.get(key, (None, None))
                assert bool(started[i, j]) == (seen == number % 2)
                assert not started[i, j] or torch.equal(last[i, j], value)
        values = torch.rand(len(first), len(second), 2)
        state.write("y", places, sizes, values, observed)
        if number % 3 == 2:
            state.discard()
            continue
        state.commit()
        known |= {key: (values[i, j], number % 2) for i, row in enumerate(keys) for j, key in enumerate(row)}
        copy = RowState()
        copy.load_state_dict(state.state_dict())
        state = copy
        part = state.state_dict()["y"]
        assert [tuple(row) for row in part["rows"].tolist()] == sorted(known)
        assert torch.equal(part["values"], torch.stack([known[key][0] for key in sorted(known)]))


def test_a_row_that_comes_twice():
    state, rows = RowState(), torch.tensor([1, 1, 0])
    state.write("y", (rows,), torch.Size([3]), torch.tensor([[4.0], [4.0], [5.0]]), torch.zeros(3, 1))
    state.commit()
    assert state.state_dict()["y"]["rows"].tolist() == [[0], [1]]
    assert state.state_dict()["y"]["values"].tolist() == [[5.0], [4.0]]


def test_sites_without_rows():
    state = RowState()
    for value in (1.0, 2.0):
        state.write("y", (), torch.Size(), torch.tensor([value]), torch.tensor([0.0]))
        state.commit()
        restored = RowState()
        restored.load_state_dict(state.state_dict())
        for each in (state, restored):
            last, started = each.read("y", (), torch.Size(), torch.Size([1]), torch.tensor([0.0]))
            assert last.tolist() == [value] and bool(started)


def test_values_of_another_shape_start_anew():
    state, rows = RowState(), torch.arange(2)
    for shape in ((2, 3), (2, 2)):
        assert state.read("y", (rows,), torch.Size([2]), torch.Size(shape[1:]), torch.zeros(2, 1))[0] is None
        state.write("y", (rows,), torch.Size([2]), torch.zeros(shape), torch.zeros(2, 1))
        state.commit()
    assert state.state_dict()["y"]["values"].shape == (2, 2)


def test_memory_is_that_of_the_rows_seen():
    """200 of a million rows of 10 x 10 numbers in double precision, all of which would be 800 MB."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 60
