"""Trees of latent variables."""

import copy
import pickle

import pytest

from pyro_structured.structures import HiddenTree


def test_levels():
    tree = HiddenTree([3, 3, 1, 3, 4, 4], 2)
    assert tree.levels.sizes == (2, 3, 1)
    assert tree.levels.order.tolist() == [3, 4, 0, 1, 5, 2]
    assert [places.tolist() for places in tree.levels.above] == [[0, 0, 1], [1]]
    assert tree.levels.order[tree.levels.places].tolist() == list(range(6))


def test_equality():
    tree = HiddenTree([0, 0], [2, 3], 2)
    assert tree == HiddenTree((0, 0), [2, 3], [2, 2]) and hash(tree) == hash(HiddenTree((0, 0), [2, 3], [2, 2]))
    assert tree != HiddenTree([0, 0], [3, 2], 2) and tree != "tree"
    assert pickle.loads(pickle.dumps(tree)) == copy.deepcopy(tree) == tree
    assert repr(tree) == "HiddenTree(parents=(0, 0), num_states=(2, 3), cardinalities=(2, 2))"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 2), r"parents: expected integers in range\(0\), at least one, got \[\]"),
        (([0, 2], 2), r"parents: expected integers in range\(2\)"),
        (([0, 2, 1], 2), r"parents: expected no variable to be its own ancestor.*cycle in \[1, 2\]"),
        (([0, 0.5], 2), "parents: expected a sequence of integers"),
        (([0, 0], 0), "num_states: expected an integer of at least 1, or 2 of them, got 0"),
        (([0, 0], [2]), r"num_states: expected an integer of at least 1, or 2 of them, got \[2\]"),
        (([0, 0], 2, True), "cardinalities: expected"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        HiddenTree(*arguments)
