"""Labels, blocks and tables of partitions."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.structures import Partition

LABELS = st.lists(st.lists(st.integers(-3, 3), min_size=5, max_size=5), min_size=1, max_size=3)


@given(LABELS)
def test_blocks_and_tables(labels):
    batch = Partition(torch.tensor(labels))
    assert batch.batch_shape == (len(labels),) and batch.num_variables == 5 and batch.table_size == 10
    marked = torch.rand(len(labels), 5) < 0.5
    for row, given_labels in enumerate(labels):
        partition = batch[row]
        blocks = partition.blocks()
        assert sorted(d for block in blocks for d in block) == list(range(5))
        expected = {tuple(d for d in range(5) if given_labels[d] == label) for label in given_labels}
        assert {tuple(block) for block in blocks} == expected
        assert partition == Partition.from_blocks(blocks, 5) == Partition(torch.tensor(given_labels))
        cells = [(block[0], count) for block in sorted(blocks) for count in range(len(block) + 1)]
        for index, (name, count) in enumerate(cells):
            assert batch.cell_blocks[row, index] == name and batch.cell_counts[row, index] == count
            assert batch.starts[row, name] + count == index
        last = sorted(blocks)[-1]
        assert (batch.cell_counts[row, len(cells) :] > len(last)).all()
        for block in blocks:
            assert batch.sizes[row, block[0]] == len(block) and (batch.sizes[row, block[1:]] == 0).all()
            assert batch.count(marked)[row, block[0]] == marked[row, block].sum()


def test_indexing_and_expanding():
    partition = Partition(torch.tensor([[0, 0, 1], [0, 1, 1]]))
    z = torch.tensor([[1], [0]])
    assert partition[z].batch_shape == (2, 1) and torch.equal(partition[z].labels[0, 0], partition.labels[1])
    assert partition[0].expand((4,)).batch_shape == (4,)
    assert len(partition) == 2 and [p.labels.tolist() for p in partition] == partition.labels.tolist()
    with pytest.raises(TypeError, match="of a single partition"):
        len(partition[0])
    assert partition != partition[0] and partition[0] != 0
    assert pickle.loads(pickle.dumps(partition)) == partition
    assert hash(partition) == hash(Partition(torch.tensor([[5, 5, 6], [0, 2, 2]])))
    assert Partition.from_blocks([], 3).blocks() == [[0], [1], [2]]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_tables_are_packed(labels):
    partition = Partition(torch.tensor(labels))
    tables = [torch.rand(3, len(block) + 1) for block in partition.blocks()]
    packed = partition.pack([tables[0][:1], *tables[1:]])
    assert packed.shape == (3 if tables[1:] else 1, partition.table_size)
    for table, found in zip([tables[0][:1].expand(len(packed), -1), *tables[1:]], partition.split(packed), strict=True):
        assert torch.equal(table, found)
    cells = [(block[0], t) for block in partition.blocks() for t in range(len(block) + 1)]
    found = zip(partition.cell_blocks.tolist(), partition.cell_counts.tolist(), strict=True)
    assert list(found)[: len(cells)] == cells


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: Partition(torch.zeros(3)), "labels: expected a tensor of integers, got torch.float32"),
        (lambda: Partition([0, 1]), r"labels: expected a tensor of integers, got \[0, 1\]"),
        (lambda: Partition(torch.tensor(1)), r"labels: expected shape \(..., n\)"),
        (
            lambda: Partition.from_blocks([[0, 1], [1]], 3),
            r"blocks: expected disjoint subsets of range\(3\), got \[1\]",
        ),
        (lambda: Partition.from_blocks([[0, 3]], 3), r"blocks: expected disjoint subsets of range\(3\), got \[0, 3\]"),
        (lambda: Partition.from_blocks([[0, 0]], 3), r"blocks: expected disjoint subsets"),
        (lambda: Partition.from_blocks(None, 2), "blocks: expected sequences of integers, got None"),
        (lambda: Partition.from_blocks([0, 1], 2), r"blocks: expected sequences of integers, got \[0, 1\]"),
        (lambda: Partition.from_blocks([[0, 1.5]], 2), r"blocks: expected sequences of integers, got \[\[0, 1.5\]\]"),
        (lambda: Partition.from_blocks([[0]], "2"), "num_variables: expected an integer of at least 1, got '2'"),
        (
            lambda: Partition(torch.zeros(2, 3).long()).expand((3,)),
            r"batch_shape: expected a shape to which \(2,\) expands, got \(3,\)",
        ),
        (
            lambda: Partition(torch.zeros(3).long()).count(torch.ones(4)),
            r"marked: expected a tensor with a last axis of 3 numbers, got shape \(4,\)",
        ),
        (lambda: Partition(torch.zeros(2, 3).long()).blocks(), "blocks: expected a single partition, got a batch"),
        (lambda: Partition(torch.zeros(2).long()).pack([]), "tables: expected 1 tables, one for each block, got 0"),
        (lambda: Partition(torch.zeros(2).long()).pack([torch.zeros(2)]), r"tables\[0\]: expected .* of 3 numbers"),
        (lambda: Partition(torch.zeros(2).long()).split(torch.zeros(3)), "statistic_logits: expected .* of 4 numbers"),
    ],
)
def test_bad_arguments(construct, message):
    with pytest.raises(ValueError, match=message):
        construct()


def test_partitions_of_a_batch_one_by_one():
    partition = Partition(torch.tensor([[0, 0, 1], [0, 1, 2]]))
    assert [each.blocks() for each in partition] == [[[0, 1], [2]], [[0], [1], [2]]]
    with pytest.raises(TypeError, match="single partition"):
        iter(Partition(torch.tensor([0, 1])))
