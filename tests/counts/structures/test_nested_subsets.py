"""Which families are accepted, what their counts are, and what messages say."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage

from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets
from pyro_structured.testing import brute_force
from pyro_structured.testing.strategies import nested_families

SIZES = st.integers(1, 9)
FAMILIES = SIZES.flatmap(lambda size: st.tuples(nested_families(size), st.just(size)))


def are_nested(family):
    """By definition."""
    sets = [set(subset) for subset in family]
    return all(a.isdisjoint(b) or a <= b or b <= a for a in sets for b in sets)


def as_lists(subsets):
    return [subset.tolist() for subset in subsets.subsets]


@given(FAMILIES)
def test_nested_families_are_accepted(drawn):
    family, size = drawn
    assert are_nested(family)
    subsets = NestedSubsets(family, size)
    assert as_lists(subsets) == [sorted(subset) for subset in family]
    assert subsets.sizes == tuple(len(subset) for subset in family)
    assert subsets.table_size == sum(len(subset) + 1 for subset in family)
    assert subsets.num_variables == size and subsets.event_shape == (size,)


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.lists(st.sets(st.integers(0, n - 1)), max_size=5), st.just(n))))
def test_crossing_families_are_refused(drawn):
    """The message names a pair that does cross, and elements that prove it."""
    family, size = drawn
    if are_nested(family):
        NestedSubsets(family, size)
        return
    with pytest.raises(ValueError, match="subsets: expected nested subsets, but .* cross:") as error:
        NestedSubsets(family, size)
    words = str(error.value).translate(str.maketrans("[],;:", "     ")).split()
    first, second, both, only_first, only_second = (int(word) for word in words if word.isdigit())
    assert both in family[first] & family[second]
    assert only_first in family[first] - family[second]
    assert only_second in family[second] - family[first]


@given(FAMILIES, st.integers(0, 2**16), st.sampled_from([(), (3,), (2, 1)]))
def test_counts(drawn, seed, batch):
    family, size = drawn
    subsets = NestedSubsets(family, size)
    generator = torch.Generator().manual_seed(seed)
    value = torch.randint(2, (*batch, size), generator=generator)
    expected = [[sum(row[d] for d in subset) for subset in family] for row in value.reshape(-1, size).tolist()]
    for dtype in (torch.long, torch.bool, torch.float32, torch.float64):
        counts = subsets.counts(value.to(dtype))
        assert counts.dtype == torch.long and counts.shape == (*batch, len(family))
        assert counts.reshape(len(expected), len(family)).tolist() == expected


@given(FAMILIES, st.sampled_from([(), (3,), (2, 1)]))
def test_pack_and_split(drawn, batch):
    family, size = drawn
    subsets = NestedSubsets(family, size)
    tables = [torch.randn((*batch, len(subset) + 1)) for subset in family]
    if tables:
        tables[0] = tables[0][(0,) * len(batch)]  # Batch shapes broadcast.
    packed = subsets.pack(tables)
    assert packed.shape == (*(batch if len(tables) > 1 else ()), subsets.table_size)
    for part, table in zip(subsets.split(packed), tables, strict=True):
        assert torch.equal(part, table.expand_as(part))


def test_pack_keeps_the_device_and_dtype_of_one_kind():
    subsets = NestedSubsets([[0], [0, 1]], 2)
    packed = subsets.pack([torch.zeros(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)])
    assert packed.dtype == torch.float64 and packed.tolist() == [0, 0, 1, 1, 1]
    assert [part.tolist() for part in subsets.split(packed)] == [[0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    "tables, message",
    [
        ([torch.zeros(3)], "tables: expected 2 tables, one for each subset, got 1"),
        ([torch.zeros(3), torch.zeros(3)], r"tables\[1\]: expected .* last axis of 4 numbers, got shape \(3,\)"),
        ([torch.zeros(2, 4), torch.zeros(4)], r"tables\[0\]: expected .* last axis of 3 numbers, got shape \(2, 4\)"),
        ([torch.tensor(0.0), torch.zeros(4)], r"tables\[0\]: expected .* last axis of 3 numbers, got shape \(\)"),
        ([[0.0] * 3, torch.zeros(4)], r"tables\[0\]: expected a tensor .*, got list"),
        ([torch.zeros(2, 3), torch.zeros(5, 4)], r"tables: expected batch shapes that broadcast"),
    ],
)
def test_wrong_tables(tables, message):
    with pytest.raises(ValueError, match=message):
        NestedSubsets([[0, 1], [0, 1, 2]], 3).pack(tables)


@pytest.mark.parametrize("shape", [(6,), (8,), (7, 2), ()])
def test_wrong_packed_tables(shape):
    with pytest.raises(ValueError, match=r"count_logits: expected .* last axis of 7 numbers, got shape \("):
        NestedSubsets([[0, 1], [0, 1, 2]], 3).split(torch.zeros(shape))


def test_wrong_values():
    subsets = NestedSubsets([[0, 1], [0, 1, 2]], 4)
    for value, got in [(torch.zeros(3), r"shape \(3,\)"), (torch.zeros(()), r"shape \(\)"), ([0, 1, 0, 1], "list")]:
        with pytest.raises(ValueError, match=f"value: expected a tensor with a last axis of 4 numbers, got {got}"):
            subsets.counts(value)
    with pytest.raises(ValueError, match="count_logits: expected a tensor with a last axis of 7 numbers, got list"):
        subsets.split([0.0] * 7)


@pytest.mark.parametrize(
    "subsets, num_variables, message",
    [
        (
            [[0, 1], [1, 2]],
            3,
            r"subsets\[0\] and subsets\[1\] cross: 1 is in both, 0 only in the first, 2 only in the sec",
        ),
        ([[0, 1, 2, 3], [5], [3, 4]], 6, r"subsets\[0\] and subsets\[2\] cross: 3 is in both"),
        ([[3, 4], [0], range(4)], 6, r"subsets\[0\] and subsets\[2\] cross: 3 is in both, 4 only in the first, 0 only"),
        ([[0, 1, 0]], 3, r"subsets: expected every element once in subsets\[0\], got 0 repeatedly"),
        ([[0], [3]], 3, r"subsets: expected elements in range\(3\) in subsets\[1\], got 3"),
        ([[-1]], 3, r"subsets: expected elements in range\(3\) in subsets\[0\], got -1"),
        ([[0.5]], 3, r"subsets: expected integers in subsets\[0\], got \[0.5\]"),
        ([[True, False]], 3, r"subsets: expected integers in subsets\[0\]"),
        ([["a"]], 3, r"subsets: expected integers in subsets\[0\], got \['a'\]"),
        ([[[0, 1]]], 3, r"subsets: expected integers in subsets\[0\]"),
        ([[[0], [1, 2]]], 3, r"subsets: expected integers in subsets\[0\], got \[\[0\], \[1, 2\]\]"),
        ([0, 1], 3, r"subsets: expected integers in subsets\[0\], got 0"),
        (5, 3, r"subsets: expected .*got 5"),
        ([[0]], 0, "num_variables: expected an integer of at least 1, got 0"),
        ([[0]], 1.5, "num_variables: expected an integer of at least 1, got 1.5"),
        ([[0]], True, "num_variables: expected an integer of at least 1, got True"),
        ([[0]], None, "num_variables: expected an integer of at least 1, got None"),
    ],
)
def test_bad_families(subsets, num_variables, message):
    with pytest.raises(ValueError, match=message):
        NestedSubsets(subsets, num_variables)


def test_elements_may_come_in_any_container():
    expected = [[0, 2], [0, 1, 2]]
    for family in (
        [(2, 0), range(3)],
        [{0, 2}, {2, 1, 0}],
        [np.array([2, 0]), np.arange(3, dtype=np.int32)],
        [torch.tensor([2, 0]), torch.arange(3)],
        ((d for d in subset) for subset in expected),
        [[np.int64(2), np.int64(0)], [0, np.int32(1), 2]],
    ):
        assert as_lists(NestedSubsets(family, 3)) == expected


def test_duplicates_add_up():
    """Equal subsets keep a table each; their potentials add up."""
    x, f = torch.randn(3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    twice = RecursiveCardinality(x, f.flatten(), NestedSubsets([[0, 2], [2, 0]], 3))
    once = RecursiveCardinality(x, f.sum(0), NestedSubsets([[0, 2]], 3))
    torch.testing.assert_close(twice.log_partition_function, once.log_partition_function)
    torch.testing.assert_close(twice.marginals, once.marginals)
    assert torch.equal(*twice.subsets.split(twice.count_marginals))


def test_a_table_of_one_variable_is_a_logit():
    x = torch.randn(2, dtype=torch.float64)
    d = RecursiveCardinality(x, torch.tensor([1.0, 3.0], dtype=torch.float64), NestedSubsets([[1]], 2))
    torch.testing.assert_close(d.marginal_logits, x + torch.tensor([0.0, 2.0]))
    expected = torch.nn.functional.softplus(x + torch.tensor([0.0, 2.0])).sum() + 1.0
    torch.testing.assert_close(d.log_partition_function, expected)


def test_the_empty_subset_is_a_constant():
    d = RecursiveCardinality(torch.zeros(2), torch.tensor([5.0]), NestedSubsets([[]], 2))
    torch.testing.assert_close(d.log_partition_function, torch.tensor(5.0) + 2 * torch.tensor(2.0).log())
    assert d.count_marginals.tolist() == [1.0]
    torch.testing.assert_close(d.log_prob(torch.ones(2)).exp(), torch.tensor(0.25))


def test_variables_in_no_subset_are_independent():
    x, f = torch.randn(5, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    d = RecursiveCardinality(x, f, NestedSubsets([[1, 3]], 5))
    torch.testing.assert_close(d.marginal_logits[[0, 2, 4]], x[[0, 2, 4]])
    inside = RecursiveCardinality(x[[1, 3]], f)
    torch.testing.assert_close(d.marginals[[1, 3]], inside.marginals)
    outside = torch.nn.functional.softplus(x[[0, 2, 4]]).sum()
    torch.testing.assert_close(d.log_partition_function, inside.log_partition_function + outside)


def test_no_subset_at_all():
    x = torch.randn(3, dtype=torch.float64)
    subsets = NestedSubsets([], 3)
    assert subsets.table_size == 0 and subsets.sizes == ()
    assert subsets.counts(torch.ones(2, 3)).shape == (2, 0)
    assert subsets.pack([]).shape == (0,)
    assert subsets.split(torch.zeros(2, 0)) == ()
    d = RecursiveCardinality(x, torch.zeros(0, dtype=torch.float64), subsets)
    torch.testing.assert_close(d.marginal_logits, x)


@given(st.integers(2, 12), st.integers(0, 2**16), st.sampled_from(["single", "average", "complete", "ward"]))
def test_linkage(size, seed, method):
    points = np.random.default_rng(seed).normal(size=(size, 2))
    matrix = linkage(points, method)
    subsets = NestedSubsets.from_linkage(matrix)
    assert subsets.num_variables == size
    assert subsets.sizes == tuple(int(count) for count in matrix[:, 3])
    assert subsets.sizes[-1] == size
    clusters = [{d} for d in range(size)]
    for left, right in matrix[:, :2].astype(int):
        clusters.append(clusters[left] | clusters[right])
    assert [set(subset) for subset in as_lists(subsets)] == clusters[size:]


@pytest.mark.parametrize(
    "matrix, message",
    [
        (np.zeros((3, 3)), r"linkage: expected a scipy linkage matrix of shape \(D - 1, 4\), got shape \(3, 3\)"),
        (np.zeros((0, 4)), r"linkage: expected .* got shape \(0, 4\)"),
        (np.zeros(4), r"linkage: expected .* got shape \(4,\)"),
        (np.array([[0.0, 5.0, 1.0, 2.0], [1.0, 2.0, 1.0, 3.0]]), r"linkage: expected .*, got \(0, 5\) in row 0"),
        (np.array([[0.0, -1.0, 1.0, 2.0]]), r"linkage: expected .*, got \(0, -1\) in row 0"),
        (np.array([[0.0, 0.0, 1.0, 2.0]]), r"linkage: expected "),
        (np.array([[np.nan, 1.0, 1.0, 2.0]]), r"linkage: expected .*, got \(nan, 1\) in row 0"),
        (np.array([[0.0, np.inf, 1.0, 2.0]]), r"linkage: expected .*, got \(0, inf\) in row 0"),
        ([[0.5, 1, 0, 2]], r"linkage: expected .*, got \(0.5, 1\) in row 0"),
        ([["0", "1", "0", "2"]], r"linkage: expected .* got shape \(1, 4\) and dtype <U1"),
        (np.array([[0.0, 1.0, 1.0, 2.0], [0.0, 2.0, 1.0, 3.0]]), r"linkage: expected "),
    ],
)
def test_bad_linkage(matrix, message):
    """Among others a cluster that is merged with itself, or twice."""
    with pytest.raises(ValueError, match=message):
        NestedSubsets.from_linkage(matrix)


@given(st.integers(1, 40))
def test_balanced(size):
    subsets = NestedSubsets.balanced(size)
    family = as_lists(subsets)
    assert len(family) == size - 1
    assert sorted(family, key=len) == family
    assert are_nested(family)
    for subset in family:
        assert subset == list(range(subset[0], subset[0] + len(subset)))
        children = [part for part in [*family, *([d] for d in range(size))] if set(part) < set(subset)]
        largest = max(map(len, children))
        assert largest == (len(subset) + 1) // 2
    with pytest.raises(ValueError, match="num_variables: expected an integer of at least 1, got 0"):
        NestedSubsets.balanced(0)
    with pytest.raises(ValueError, match="num_variables: expected an integer of at least 1, got '3'"):
        NestedSubsets.balanced("3")


@given(FAMILIES)
def test_copies_are_equal(drawn):
    subsets = NestedSubsets(*drawn)
    for copied in (pickle.loads(pickle.dumps(subsets)), copy.deepcopy(subsets), NestedSubsets(*drawn)):
        assert copied == subsets and hash(copied) == hash(subsets)
        x, f = torch.randn(drawn[1]), torch.randn(subsets.table_size)
        if subsets.table_size:
            distributions = RecursiveCardinality(x, f, copied), RecursiveCardinality(x, f, subsets)
            assert torch.equal(*(d.log_partition_function for d in distributions))


def test_subsets_cannot_be_changed():
    given = np.array([0, 1])
    subsets = NestedSubsets([given], 3)
    given[0] = 2
    for same in (subsets, pickle.loads(pickle.dumps(subsets)), copy.deepcopy(subsets), copy.copy(subsets)):
        with pytest.raises(ValueError, match="read-only"):
            same.subsets[0][0] = 2
        assert as_lists(same) == [[0, 1]]


def test_inequality():
    subsets = NestedSubsets([[0, 1], [2]], 4)
    assert subsets != NestedSubsets([[2], [0, 1]], 4)
    assert subsets != NestedSubsets([[0, 1], [2]], 5)
    assert subsets != NestedSubsets([[0, 1], [3]], 4)
    assert subsets != [[0, 1], [2]]
    assert repr(subsets) == "NestedSubsets(2 subsets, num_variables=4)"


def test_a_deep_nest():
    """A chain of 600 subsets, each with one variable more: no recursion, and all counts are right."""
    size = 600
    subsets = NestedSubsets([range(n) for n in range(1, size + 1)], size)
    value = torch.randint(2, (size,))
    assert torch.equal(subsets.counts(value), value.cumsum(0))
    tables = torch.zeros(subsets.table_size, dtype=torch.float64)
    d = RecursiveCardinality(torch.zeros(size, dtype=torch.float64), tables, subsets)
    assert abs(d.log_partition_function.item() - size * np.log(2)) < 1e-9


def test_order_of_the_variables_does_not_matter():
    torch.manual_seed(0)
    family, order = [[0, 1], [2], [0, 1, 2, 3]], torch.tensor([3, 1, 0, 2])
    x, f = torch.randn(4, dtype=torch.float64), torch.randn(10, dtype=torch.float64)
    moved = [[order.tolist().index(d) for d in subset] for subset in family]
    here = RecursiveCardinality(x, f, NestedSubsets(family, 4)).marginals
    there = RecursiveCardinality(x[order], f, NestedSubsets(moved, 4)).marginals
    torch.testing.assert_close(here[order], there)
    torch.testing.assert_close(here, brute_force.marginals(x, f, family))


@given(st.data())
def test_subtrees(data):
    """Each subtree is what is left when the edge to its parent is cut; the roots are the smallest variables."""
    size = data.draw(st.integers(1, 12))
    parents = [data.draw(st.integers(-1, d - 1)) for d in range(size)]
    edges = [(d, parent) for d, parent in enumerate(parents) if parent >= 0]
    least = data.draw(st.integers(1, 4))
    expected = []
    for d in range(size):
        members = {d}
        for other in range(d + 1, size):
            if parents[other] in members:
                members.add(other)
        expected.append(sorted(members))
    subsets = NestedSubsets.from_tree(edges, size, least)
    assert sorted(s.tolist() for s in subsets.subsets) == sorted(s for s in expected if len(s) >= least)
    assert list(subsets.sizes) == sorted(subsets.sizes) and subsets.edges == tuple(edges)
