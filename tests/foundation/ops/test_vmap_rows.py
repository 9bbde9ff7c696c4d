"""Shapes to which others are broadcast, against torch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


@given(st.lists(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4).map(tuple), max_size=4))
def test_shapes_are_those_of_torch(shapes):
    """And so are errors."""
    try:
        expected = torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as found:
            broadcast_shapes(*shapes)
        assert str(found.value) == str(error)
    else:
        found = broadcast_shapes(*shapes)
        assert isinstance(found, torch.Size) and found == expected


def test_shapes_in_graphs():
    """Unknown sizes are compared by torch."""

    def rows(one, other):
        return one.new_ones(broadcast_shapes(one.shape, other.shape))

    compiled = torch.compile(rows, backend="eager", fullgraph=True, dynamic=True)
    for size in (2, 5):
        assert compiled(torch.zeros(size, 1), torch.zeros(3)).shape == (size, 3)
