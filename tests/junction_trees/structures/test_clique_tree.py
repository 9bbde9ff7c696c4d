"""Cliques of junction trees and their packed tables."""

import pickle
import re
from itertools import combinations

import pyro
import pytest
import torch

from pyro_structured.structures import CliqueTree


def test_chain_and_grid():
    assert CliqueTree.chain(1, 3).cliques == ((0,),)
    assert sorted(CliqueTree.chain(4, 2).separators) == [(1,), (2,)]
    for height, width in ((1, 1), (1, 5), (3, 4), (4, 3), (3, 3)):
        tree = CliqueTree.grid(height, width, 2)
        assert tree.treewidth == min(height, width, height * width - 1)
        places = torch.arange(height * width).reshape(height, width)
        across, down = ((places[:, :-1], places[:, 1:]), (places[:-1], places[1:]))
        for one, other in (across, down):
            assert set(zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)) <= set(tree.edges)


def test_from_cliques():
    """Given cliques stay if they can; otherwise they are contained."""
    tree = CliqueTree.from_cliques([[2, 1], [1], [0, 1]], [2, 2, 2, 3])
    assert tree.cliques == ((1, 2), (1,), (0, 1), (3,))
    wanted = [[0, 1, 2], [2, 3], [3, 4], [4, 0]]
    tree = CliqueTree.from_cliques(wanted, [2] * 5)
    assert all(tree.find(clique) is not None for clique in wanted) and tree.treewidth == 2
    assert tree.find([1, 3]) is None


def test_pack_and_split():
    tree = CliqueTree([[1, 0], [1, 2]], [2, 3, 4])
    tables = [torch.randn(5, 1, 2, 3), torch.randn(7, 3, 4)]
    packed = tree.pack(tables)
    assert packed.shape == (5, 7, tree.table_size)
    for found, table in zip(tree.split(packed), tables, strict=True):
        assert torch.equal(found, table.expand(found.shape))
    assert packed[0, 0, 6 + 4 * 2 + 3] == tables[1][0, 2, 3]


def test_equality_and_pickle():
    tree = CliqueTree.from_edges(torch.tensor([[0, 1], [1, 2]]), [2, 3, 2])
    assert tree == CliqueTree([[0, 1], [1, 2]], [2, 3, 2]) != CliqueTree([[0, 1], [1, 2]], [2, 3, 3])
    _ = tree.plan.order(torch.device("cpu"))
    assert pickle.loads(pickle.dumps(tree)) == tree and hash(pickle.loads(pickle.dumps(tree))) == hash(tree)
    assert set(tree.edges) == {pair for clique in tree.cliques for pair in combinations(clique, 2)}


@pytest.mark.parametrize(
    "make, clique, size",
    [
        (lambda: CliqueTree.from_edges(combinations(range(30), 2), [2] * 30), r"\(0, 1, .*, 29\)", 2**30),
        (lambda: CliqueTree.from_cliques([range(30), [0]], [2] * 30), r"\(0, 1, .*, 29\)", 2**30),
        (lambda: CliqueTree([[0], [1, 0]], [3, 2**25]), r"\(0, 1\)", 3 * 2**25),
    ],
)
def test_budget(make, clique, size):
    """The clique with the largest table is named, and nothing of its size is computed."""
    message = (
        r"cliques: expected at most 33554432 numbers \(pyro_structured_max_table_entries\) in the tables of all "
        rf"cliques, the largest of which, {clique}, has {size}, got \d+; pyro.settings.set\("
    )
    with pytest.raises(NotImplementedError, match=message):
        make()
    with pyro.settings.context(pyro_structured_max_table_entries=2**60):
        assert make().table_size >= size


@pytest.mark.parametrize(
    "make, what, size",
    [
        (lambda: CliqueTree.grid(40, 40, 2), r"height: .* a single clique of a grid, \(39, 40, .*, 79\)", 2**41),
        (lambda: CliqueTree.grid(25, 40, 2), r"height: .* a single clique of a grid, \(1, 41, .*, 960, 961\)", 2**26),
        (lambda: CliqueTree.grid(10**9, 10**9, 2), "height: .* the tables of a grid", 10**27),
        (lambda: CliqueTree.grid(3000, 3000, 1), "height: .* the tables of a grid", 3000**3),
        (lambda: CliqueTree.grid(2, 2, 10**9), "height: .* the tables of a grid", 4 * 10**9),
        (lambda: CliqueTree.chain(10**9, 3), "num_variables: .* the tables of a chain", 3 * 10**9),
    ],
)
def test_budget_of_chains_and_grids(make, what, size):
    """No time is spent on what is going to be refused."""
    with pytest.raises(NotImplementedError, match=f"{what}, got {size};"):
        make()


def test_cliques_of_grids_are_named():
    for height, width in ((3, 4), (4, 3), (3, 3), (2, 7)):
        size = 2 ** (min(height, width) + 1)
        with pyro.settings.context(pyro_structured_max_table_entries=size - 1):
            with pytest.raises(NotImplementedError) as error:
                CliqueTree.grid(height, width, 2)
        if "single clique" in str(error.value):
            clique = re.search(r"\((\d.*?)\), got", str(error.value)).group(1)
            assert tuple(map(int, clique.split(", "))) in CliqueTree.grid(height, width, 2).cliques


def test_setting():
    tree = CliqueTree.chain(3, 2)
    with pyro.settings.context(pyro_structured_max_table_entries=8):
        assert CliqueTree(tree.cliques, tree.cardinalities) == tree
    with pyro.settings.context(pyro_structured_max_table_entries=7):
        with pytest.raises(NotImplementedError, match=r"at most 7 numbers .* of which, \(0, 1\), has 4, got 8"):
            CliqueTree(tree.cliques, tree.cardinalities)
    for entries in (0, 2.0, True, "8"):
        with pytest.raises(
            ValueError, match="pyro_structured_max_table_entries: expected an integer of at least 1, got"
        ):
            pyro.settings.set(pyro_structured_max_table_entries=entries)
    assert pyro.settings.get("pyro_structured_max_table_entries") == 2**25


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: CliqueTree([[0, 1], [1, 2], [0, 2]], [2, 2, 2]), "cliques: expected those of a chordal graph"),
        (lambda: CliqueTree([[0]], [2, 2]), r"cliques: expected sets that cover range\(2\), got \[1\] in none"),
        (lambda: CliqueTree([[0, 0]], [2]), "cliques: expected sets .* got some twice"),
        (lambda: CliqueTree([[], [0]], [2]), "cliques: expected sets .* got an empty one"),
        (lambda: CliqueTree([[0]], [0]), "cardinalities: expected at least one number, all of at least 1"),
        (
            lambda: CliqueTree.from_edges([(0, 2)], [2, 2]),
            r"edges: expected pairs .* in range\(2\)",
        ),
        (lambda: CliqueTree.from_edges([(0, 1)], [2, 2], "best"), "heuristic: expected one of .* got 'best'"),
        (lambda: CliqueTree.from_cliques([[0, 5]], [2, 2]), r"cliques: expected variables in range\(2\), got \[5\]"),
        (lambda: CliqueTree.chain(2, 2).pack([]), "tables: expected 1, one for each clique, got 0"),
        (lambda: CliqueTree.chain(2, 2).pack([torch.zeros(3, 2)]), r"tables: expected shape .* for number 0"),
        (lambda: CliqueTree.chain(2, 2).pack(3), "tables: expected a sequence, got 3"),
        (lambda: CliqueTree.chain(2, 2).pack([[[0.0, 1.0]] * 2]), "tables: expected shape .* for number 0, got list"),
        (lambda: CliqueTree.chain(2, 2).pack([torch.zeros(2)]), r"tables: expected shape .* for number 0, got \(2,\)"),
        (
            lambda: CliqueTree.chain(3, 2).pack([torch.zeros(5, 2, 2), torch.zeros(3, 2, 2)]),
            r"tables: expected batch shapes that broadcast, got \[\(5,\), \(3,\)\]",
        ),
        (lambda: CliqueTree.from_cliques([[0]], [2], "best"), "heuristic: expected one of .* got 'best'"),
        (
            lambda: CliqueTree.chain(2, 2).split(torch.zeros(3)),
            "clique_logits: expected .* a last axis of 4",
        ),
        (lambda: CliqueTree.grid(0, 1, 2), "height: expected an integer of at least 1"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
