"""Trees of blocks: all statistics at once are those of the single blocks."""

import itertools

import pytest
import torch

from pyro_structured.structures import BlockTree, CategoryCounts, CliqueTree, Count, NestedThreshold, Transitions

PAIR = CategoryCounts(2, 3)
TREE = BlockTree([PAIR, Count(2), PAIR, Transitions(2)], [[7, 0], [2, 3], [1, 4], [6, 5]], [[0, 1, 3], [2]])


def test_levels():
    generator = torch.Generator().manual_seed(0)
    assert TREE.levels == CliqueTree([[0, 1, 3], [2]], [6, 3, 6, 2])
    assert TREE.cardinalities == (3, 3, 2, 2, 3, 2, 2, 3) and TREE.num_levels == 6 and TREE.table_size == 42
    x = torch.randint(2, (5, 4, 8), generator=generator)
    observed = torch.rand(5, 1, 8, generator=generator) < 0.5
    levels, completions = TREE.value(x), TREE.log_completions(x, observed)
    weights = torch.randn(4, 4, 6, generator=generator)
    log_marginals = TREE.log_marginals(weights, x, observed)
    drawn, completed = TREE.sample(levels, x, observed), TREE.complete(levels, x, observed)
    assert torch.equal(TREE.value(drawn), levels) and torch.equal(TREE.value(completed), levels)
    for b, (statistic, group) in enumerate(zip(TREE.statistics, TREE.groups, strict=True)):
        mine, number, states = (x[..., group], observed[..., group]), statistic.num_levels, statistic.num_categories
        assert torch.equal(levels[..., b], statistic.value(mine[0]))
        torch.testing.assert_close(completions[..., b, :number], statistic.log_completions(*mine))
        assert (completions[..., b, number:] == -torch.inf).all()
        torch.testing.assert_close(TREE.log_sizes[b, :number], statistic.log_sizes)
        expected = statistic.log_marginals(weights[..., b, :number], *mine)
        torch.testing.assert_close(log_marginals[..., group, :states], expected)
        assert (log_marginals[..., group, states:] == -torch.inf).all()
        assert torch.equal(completed[..., group], statistic.complete(levels[..., b], *mine))
        assert (torch.where(mine[1], drawn[..., group], mine[0]) == mine[0]).all()


@pytest.mark.statistical
def test_members_are_drawn_alike(most_standard_errors=6):
    nothing = torch.zeros(8, dtype=torch.long)
    levels = torch.tensor([1, 1, 4, 0])
    drawn = TREE.sample(levels.expand(4000, 4), nothing, nothing.bool())
    for b, group in enumerate(TREE.groups):
        states = list(itertools.product(range(TREE.statistics[b].num_categories), repeat=len(group)))
        members = [s for s in states if TREE.statistics[b].value(torch.tensor(s)) == levels[b]]
        assert len(members) > 1
        for member in members:
            share = (drawn[:, group] == torch.tensor(member)).all(-1).double().mean()
            error = ((1 - 1 / len(members)) / len(members) / 4000) ** 0.5
            assert abs(share - 1 / len(members)) < most_standard_errors * error


def test_counts():
    tree = BlockTree.from_counts([[3, 0], [1], [2]], [2, 3, 3])
    assert tree.levels.cliques == ((0,), (1,), (2,)) and tree.cardinalities == (2, 3, 3, 2)
    assert tree.statistics[1] is tree.statistics[2] and isinstance(tree.statistics[0], Count)
    assert tree == BlockTree([Count(2), CategoryCounts(1, 3), CategoryCounts(1, 3)], [[3, 0], [1], [2]])
    assert hash(tree) == hash(BlockTree.from_counts([[3, 0], [1], [2]], [2, 3, 3]))
    assert tree != BlockTree.from_counts([[3, 0], [1], [2]], [2, 3, 3], [[0, 1], [2]])
    assert tree != BlockTree.from_counts([[0, 3], [1], [2]], [2, 3, 3])
    assert BlockTree.from_counts([[0, 1]]) != BlockTree([NestedThreshold([[0], [1]], 0)], [[0, 1]])
    text = "BlockTree(statistics=(Count(num_variables=1),), groups=((0,),), cliques=((0,),))"
    assert repr(BlockTree.from_counts([[0]])) == text


def test_bad_input():
    for arguments, message in [
        (([Count(2)], [[0, 1], [2]]), "statistics: expected one for each of 2 groups, got 1"),
        ((3, [[0]]), "statistics: expected a sequence, got 3"),
        ((["count"], [[0]]), r"statistics: expected a Statistic in statistics\[0\], got 'count'"),
        (([Count(2)], [[0, 1, 2]]), r"groups: expected 2 variables in groups\[0\], as in its statistic, got 3"),
        (([Count(2)], [[0, 2]]), r"groups: expected a partition of range\(2\)"),
        (([Count(1)] * 2, [[0], [1]], [[0]]), r"cliques: expected sets that cover range\(2\), got \[1\]"),
        (([Count(1)] * 4, [[0], [1], [2], [3]], [[0, 1], [1, 2], [2, 3], [3, 0]]), "no tree is a junction tree"),
    ]:
        with pytest.raises(ValueError, match=message):
            BlockTree(*arguments)
    with pytest.raises(ValueError, match="num_categories: expected one for each of 2 groups, got 1"):
        BlockTree.from_counts([[0], [1]], [2])
    with pytest.raises(ValueError, match="num_categories: expected"):
        BlockTree.from_counts([[0], [1]], [2, 0])
    with pytest.raises(NotImplementedError, match="num_categories: expected at most .* in the count vectors of 2 vari"):
        BlockTree.from_counts([[0], [1, 2]], [2, 1000])
    with pytest.raises(NotImplementedError, match="cliques: expected"):
        BlockTree.from_counts([range(60), range(60, 120)], 5, [[0, 1]])
