"""Trees of regions: levels of the forests, sums over regions, and what is refused."""

import copy
import pickle

import pytest
import torch

from pyro_structured.structures import Partition, RegionTree


def arguments():
    return {
        "regions": torch.tensor([[0, 1, 0, 0]]),
        "region_parents": torch.tensor([[0, 0, 1]]),  # region 2 is empty
        "variable_parents": torch.tensor([[[2, 1, 3, 3], [0, 1, 2, 3]]]),
        "partition": Partition(torch.tensor([[[0, 1, 0, 3], [0, 1, 2, 2]]])),
    }


def test_levels():
    tree = RegionTree(**arguments())
    assert tree.levels.tolist() == [[[2, 0, 1, 0], [0, 0, 0, 0]]] and tree.num_levels == 3
    assert (tree.num_networks, tree.num_regions, tree.num_states, tree.num_variables) == (1, 3, 2, 4)


def test_forests():
    tree = RegionTree(**arguments())
    parents, levels, num_levels = tree.forests
    assert parents is tree.variable_parents and levels is tree.levels and num_levels == 3


def test_variables_and_regions():
    """Regions 0 and 1 of the one network have the variables 0, 2, 3 and 1; region 2 has none."""
    tree = RegionTree(**arguments())
    terms = torch.tensor([[[1.0, 10.0, 100.0, 1000.0], [2.0, 20.0, 200.0, 2000.0]]])
    sums = tree.sum_by_region(terms.expand(5, 1, 2, 4))
    assert sums.shape == (5, 1, 3, 2) and sums[0, 0].tolist() == [[1101.0, 2202.0], [10.0, 20.0], [0.0, 0.0]]
    entries = tree.at_variables(sums > 50)
    assert entries.shape == (5, 1, 2, 4) and entries[0, 0].tolist() == [[True, False, True, True]] * 2


def test_copies_are_equal():
    tree = RegionTree(**arguments())
    for other in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert other == tree and hash(other) == hash(tree) and other.num_levels == 3
    changed = arguments() | {"regions": torch.tensor([[2, 1, 2, 2]])}
    assert RegionTree(**changed) != tree
    assert repr(tree) == "RegionTree(num_networks=1, num_regions=3, num_states=2, num_variables=4)"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("regions", torch.zeros(1, 4), "expected a tensor of integers, got torch.float32"),
        ("regions", torch.tensor([0, 0, 0, 0]), r"expected 2 axes that are not empty, got shape \(4,\)"),
        ("regions", torch.tensor([[0, 3, 0, 0]]), r"expected integers in range\(3\)"),
        ("region_parents", torch.tensor([[0, 1, 0]]), "a smaller region for each one and 0 for the root"),
        ("region_parents", torch.tensor([[0, 0], [0, 0]]), r"expected shape \(1, G\)"),
        ("variable_parents", torch.tensor([[[2, 1, 3]]]), r"expected shape \(1, 1, 4\), got \(1, 1, 3\)"),
        ("variable_parents", torch.tensor([[[4, 1, 3, 3], [0, 1, 2, 3]]]), r"expected integers in range\(4\)"),
        ("variable_parents", torch.tensor([[[1, 1, 3, 3], [0, 1, 2, 3]]]), "expected variables of the same region"),
        ("variable_parents", torch.tensor([[[2, 1, 3, 0], [0, 1, 2, 3]]]), "expected forests, got parents that go in"),
        ("partition", Partition(torch.tensor([[[0, 0, 2, 3], [0, 1, 2, 3]]])), "expected variables of the same region"),
        ("partition", Partition(torch.tensor([0, 1, 2, 3])), r"expected shape \(1, 2, 4\), got \(4,\)"),
        ("partition", torch.zeros(1, 2, 4), "expected a Partition, got Tensor"),
    ],
)
def test_wrong_arguments(name, value, message):
    with pytest.raises(ValueError, match=f"{name}: .*{message}"):
        RegionTree(**(arguments() | {name: value}))


def test_parents_of_some_networks_alone():
    regions, parents, forests, blocks = arguments().values()
    with pytest.raises(ValueError, match=r"region_parents: expected shape \(2, G\)"):
        RegionTree(regions.tile(2, 1), parents, forests.tile(2, 1, 1), Partition(blocks.labels.tile(2, 1, 1)))
