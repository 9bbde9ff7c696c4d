"""Every public distribution keeps the contract of Pyro's."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.inspect import TrackProvenance
from pyro.ops.provenance import get_provenance

import pyro_structured.distributions as sdist
from pyro_structured.distributions.cardinality_potentials import noisy_or
from pyro_structured.structures import (
    BlockTree,
    CategoryCounts,
    CliqueTree,
    ConnectedComponents,
    Count,
    Grid,
    HiddenTree,
    Matching,
    NestedSubsets,
    NestedThreshold,
    Partition,
    Product,
    Ranking,
    RegionTree,
    Statistic,
    TopK,
    Transitions,
)
from pyro_structured.testing import check_distribution
from pyro_structured.testing.check_shapes import empty_batch
from pyro_structured.testing.distribution_case import DistributionCase, log_prob_refusal, nudge, substitute

pytestmark = pytest.mark.statistical

NESTED = NestedSubsets([[0, 1], [3], [], [0, 1, 2, 3], [1, 0]], num_variables=4)


def numbers(batch_shape, size, dtype, device, low=-1.5, high=1.5):
    """Numbers that differ over the batch, the same in every call."""
    shape = (*batch_shape, size)
    generator = torch.Generator("cpu").manual_seed(size + 100 * len(shape))
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    return (low + (high - low) * uniform).to(dtype).to(device)


def single(batch_shape, dtype, device="cpu"):
    return sdist.RecursiveCardinality(
        numbers(batch_shape, 4, dtype, device), numbers(batch_shape, 5, dtype, device, -2.0, 2.0)
    )


def shared_potential(batch_shape, dtype, device="cpu"):
    return sdist.RecursiveCardinality(numbers(batch_shape, 4, dtype, device), numbers((), 5, dtype, device, -2.0, 2.0))


def nested(batch_shape, dtype, device="cpu"):
    tables = numbers(batch_shape, NESTED.table_size, dtype, device, -2.0, 2.0)
    return sdist.RecursiveCardinality(numbers(batch_shape, 4, dtype, device), tables, NESTED)


def independent(batch_shape, dtype, device="cpu"):
    subsets = NestedSubsets([], num_variables=3)
    tables = torch.zeros((*batch_shape, 0), dtype=dtype, device=device)
    return sdist.RecursiveCardinality(numbers(batch_shape, 3, dtype, device), tables, subsets)


def forbidden_counts(batch_shape, dtype, device="cpu"):
    tables = numbers(batch_shape, 6, dtype, device, -2.0, 2.0)
    tables[..., [0, 2, 5]] = -math.inf
    return sdist.RecursiveCardinality(numbers(batch_shape, 5, dtype, device), tables)


def forbidden_nested_counts(batch_shape, dtype, device="cpu"):
    tables = NESTED.split(numbers(batch_shape, NESTED.table_size, dtype, device, -2.0, 2.0))
    tables = [table.clone() for table in tables]
    tables[0][..., 1] = -math.inf
    tables[3][..., 3:] = -math.inf
    return sdist.RecursiveCardinality(numbers(batch_shape, 4, dtype, device), NESTED.pack(tables), NESTED)


def clamped(batch_shape, dtype, device="cpu"):
    logits = numbers(batch_shape, 5, dtype, device)
    logits[..., 1] = math.inf
    logits[..., 3] = -math.inf
    return sdist.RecursiveCardinality(logits, numbers(batch_shape, 6, dtype, device, -2.0, 2.0))


def conditioned(batch_shape, dtype, device="cpu"):
    """A member that carries a constant weight along."""
    value = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=dtype, device=device)
    observed = torch.tensor([True, False, False, True], device=device)
    return nested(batch_shape, dtype, device).condition(value, observed)


def certain(batch_shape, dtype, device="cpu"):
    table = torch.tensor([-math.inf, -math.inf, -math.inf, 0.0], dtype=dtype, device=device)
    return sdist.RecursiveCardinality(numbers(batch_shape, 3, dtype, device), table)


def one_variable(batch_shape, dtype, device="cpu"):
    return sdist.RecursiveCardinality(numbers(batch_shape, 1, dtype, device), numbers(batch_shape, 2, dtype, device))


def counted_tree(batch_shape, dtype, device="cpu"):
    subsets = NestedSubsets([[0, 1], range(4)], 4, [[1, 0], [0, 1, 0, 0]], edges=[(0, 1), (2, 1), (1, 3)])
    edges = numbers(batch_shape, 12, dtype, device).view(*batch_shape, 3, 2, 2)
    tables = numbers((), subsets.table_size, dtype, device, -2.0, 2.0)
    return sdist.RecursiveCardinality(numbers(batch_shape, 4, dtype, device), tables, subsets, edge_logits=edges)


def linked_counts(batch_shape, dtype, device="cpu"):
    links = [(0, 1, "<="), (2, 1, "difference")]
    subsets = NestedSubsets([[0, 1], [2], [3]], 4, edges=[(0, 1)], links=links)
    return sdist.RecursiveCardinality(
        numbers((), 4, dtype, device),
        numbers(batch_shape, subsets.table_size, dtype, device),
        subsets,
        edge_logits=numbers((), 4, dtype, device).view(1, 2, 2),
        link_logits=numbers(batch_shape, subsets.link_table_size, dtype, device),
    )


def soft_matching(batch_shape, dtype, device="cpu"):
    logits, rows = (shaped(batch_shape, (2, size), dtype, device) for size in (2, 3))
    return sdist.GeneralizedMatching(logits, rows, rows + 0.1)


def hard_matching(batch_shape, dtype, device="cpu"):
    """Laws with impossible counts, a clamped entry and a forbidden one."""
    logits, rows = (shaped(batch_shape, (2, size), dtype, device) for size in (3, 4))
    columns = shaped((), (3, 3), dtype, device)
    logits[..., 0, 1], logits[..., 1, 2] = math.inf, -math.inf
    rows[..., [0, 3]], columns[2, 2] = -math.inf, -math.inf
    return sdist.GeneralizedMatching(logits, rows, columns)


def crossing_counts(batch_shape, dtype, device="cpu"):
    """Two families of pairs, nested in others, with references and a constant."""
    first = NestedSubsets([[0, 1], [2, 3], range(4)], 4)
    second = NestedSubsets([[1, 2], [3, 0], []], 4, [[0, 1], [1, 1], []])
    table = numbers(batch_shape, first.table_size, dtype, device, -2.0, 2.0)
    table[..., 2] = -math.inf
    families = [(first, table), (second, numbers((), second.table_size, dtype, device))]
    return sdist.OverlappingCardinality(numbers(batch_shape, 4, dtype, device), families)


def crossing_tree(batch_shape, dtype, device="cpu"):
    """A tree with counts, one of whose variables is clamped, and links, beside pairs."""
    tree = counted_tree(batch_shape, dtype, device)
    logits = numbers((), 4, dtype, device).index_fill(0, torch.tensor(2, device=device), math.inf)
    tree = sdist.RecursiveCardinality(logits, tree.count_logits, tree.subsets, tree.edge_logits)
    pairs = NestedSubsets([[0, 2], [1, 3]], 4)
    families = [tree, (pairs, numbers(batch_shape, 6, dtype, device)), linked_counts(batch_shape, dtype, device)]
    return sdist.OverlappingCardinality(numbers((), 4, dtype, device), families)


def straight_through(batch_shape, dtype, device="cpu"):
    tables = numbers(batch_shape, NESTED.table_size, dtype, device, -2.0, 2.0)
    return sdist.RecursiveCardinalityStraightThrough(numbers(batch_shape, 4, dtype, device), tables, NESTED)


def truncated_normal(batch_shape, dtype, device="cpu"):
    loc, scale = numbers(batch_shape, 2, dtype, device, 0.5, 1.5).unbind(-1)
    return sdist.TruncatedNormal(loc, scale, 0.0, 1.0)


def half_truncated_normal(batch_shape, dtype, device="cpu"):
    loc, scale = numbers(batch_shape, 2, dtype, device, 0.5, 1.5).unbind(-1)
    return sdist.TruncatedNormal(-loc, scale, high=1.0)


def k_subset(batch_shape, dtype, device="cpu"):
    return sdist.KSubset(numbers(batch_shape, 5, dtype, device), 2)


def k_subset_with_tensor(batch_shape, dtype, device="cpu"):
    k = torch.arange(torch.Size(batch_shape).numel(), device=device).reshape(batch_shape) % 5
    return sdist.KSubset(numbers(batch_shape, 4, dtype, device), k)


def k_subset_straight_through(batch_shape, dtype, device="cpu"):
    return sdist.KSubsetStraightThrough(numbers(batch_shape, 4, dtype, device), 2)


def bag_of_causes(batch_shape, dtype, device="cpu"):
    logits = numbers(batch_shape, 3, dtype, device)
    laws = [noisy_or(3, outcome, leak=0.1, strength=0.6) for outcome in (False, True)]
    return sdist.BagLabel(logits, torch.stack(laws).to(logits))


def bag_with_gaps(batch_shape, dtype, device="cpu"):
    """Padding, a count that no law allows, and a label that is impossible."""
    logits = numbers(batch_shape, 4, dtype, device).index_fill(-1, torch.tensor([2], device=device), -math.inf)
    laws = numbers(batch_shape, 15, dtype, device).reshape(*batch_shape, 3, 5)
    forbidden = torch.zeros(3, 5, dtype=torch.bool, device=device)
    forbidden[:, 1], forbidden[0, :4], forbidden[1, 3] = True, True, True
    return sdist.BagLabel(logits, laws.masked_fill(forbidden, -math.inf))


def counts_by_logits(batch_shape, dtype, device="cpu"):
    return sdist.PoissonBinomial(logits=numbers(batch_shape, 6, dtype, device))


def counts_by_probs(batch_shape, dtype, device="cpu"):
    return sdist.PoissonBinomial(probs=numbers(batch_shape, 6, dtype, device, 0.1, 0.9))


def components(batch_shape, size, dtype, device):
    low = dist.Normal(numbers(batch_shape, size, dtype, device, -3.0, -1.0), torch.ones((), dtype=dtype, device=device))
    high = dist.Normal(
        numbers(batch_shape, size, dtype, device, 1.0, 3.0), numbers(batch_shape, size, dtype, device, 0.5, 1.5)
    )
    return low, high


def mixture(batch_shape, dtype, device="cpu"):
    selector = sdist.RecursiveCardinality(
        numbers(batch_shape, 3, dtype, device), numbers(batch_shape, 4, dtype, device, -2.0, 2.0)
    )
    return sdist.SelectionMixture(selector, *components(batch_shape, 3, dtype, device))


def mixture_of_binary(batch_shape, dtype, device="cpu"):
    selector = sdist.KSubset(numbers(batch_shape, 3, dtype, device), 1)
    flips = (dist.Bernoulli(logits=numbers(batch_shape, 3, dtype, device, *ends)) for ends in ((-2, -1), (1, 2)))
    return sdist.SelectionMixture(selector, *flips)


def mixture_of_counts(batch_shape, dtype, device="cpu"):
    """Large counts are possible for entries that are not selected."""
    selector = sdist.KSubset(numbers(batch_shape, 3, dtype, device), 2)
    few = dist.Bernoulli(logits=numbers(batch_shape, 3, dtype, device))
    return sdist.SelectionMixture(selector, dist.Poisson(numbers(batch_shape, 3, dtype, device, 1.0, 3.0)), few)


def masked_selector(batch_shape, dtype, device="cpu"):
    return sdist.NanMasked(nested(batch_shape, dtype, device))


def masked_subset(batch_shape, dtype, device="cpu"):
    """Sizes that differ over the batch: what one of them allows is impossible for another."""
    return sdist.NanMasked(k_subset_with_tensor(batch_shape, dtype, device))


def masked_mixture(batch_shape, dtype, device="cpu"):
    return sdist.NanMasked(mixture(batch_shape, dtype, device))


def block(statistic):
    """A factory of blocks with a statistic."""

    def factory(batch_shape, dtype, device="cpu"):
        return sdist.ExchangeableBlock(numbers(batch_shape, statistic.num_levels, dtype, device, -2.0, 2.0), statistic)

    factory.__name__ = f"block_{type(statistic).__name__}"
    return factory


def impossible_levels(batch_shape, dtype, device="cpu"):
    logits = numbers(batch_shape, 5, dtype, device, -2.0, 2.0)
    logits[..., [0, 3]] = -math.inf
    return sdist.ExchangeableBlock(logits, Count(4))


class LastIsOne(Statistic):
    """A statistic that defines no more than it has to, one of whose levels is empty."""

    num_variables, num_levels = 3, 3

    def value(self, x):
        return 2 * (x[..., -1] == 1)

    def log_completions(self, value, observed):
        free = (~observed[..., :-1]).sum(-1, keepdim=True) * math.log(2.0)
        levels = torch.arange(3, device=value.device)
        last, seen = value[..., -1:], observed[..., -1:]
        possible = (levels != 1) & (~seen | (2 * last == levels))
        return free.double().expand(possible.shape).masked_fill(~possible, -math.inf)

    def sample(self, level, value, observed):
        shape = torch.broadcast_shapes(level.shape + (1,), value.shape)
        drawn = torch.randint(2, shape, device=value.device)
        drawn[..., -1] = level // 2
        return torch.where(observed, value, drawn)

    def complete(self, level, value, observed):
        first = torch.zeros(level.shape + (2,), dtype=torch.long, device=value.device)
        return torch.where(observed, value, torch.cat([first, level.unsqueeze(-1) // 2], -1))


def partition(labels):
    """A factory of partitions that are the same in the whole batch."""

    def factory(batch_shape, dtype, device="cpu"):
        blocks = Partition(torch.tensor(labels, device=device))
        return sdist.ExchangeablePartition(numbers(batch_shape, blocks.table_size, dtype, device, -2.0, 2.0), blocks)

    factory.__name__ = f"partition_{labels}"
    return factory


def impossible_counts(batch_shape, dtype, device="cpu"):
    logits = numbers(batch_shape, 8, dtype, device, -2.0, 2.0)
    logits[..., [0, 2, 4]] = -math.inf
    return sdist.ExchangeablePartition(logits, Partition(torch.tensor([0, 1, 0, 0], device=device)))


def exchangeable_mixture(batch_shape, dtype, device="cpu"):
    blocks = Partition(torch.tensor([[0, 0, 1, 0], [0, 1, 2, 2], [0, 1, 2, 3]], device=device))
    logits = numbers((*batch_shape, 3), 8, dtype, device, -2.0, 2.0)
    return sdist.ExchangeableMixture(numbers(batch_shape, 3, dtype, device), logits, blocks)


def mixture_with_impossible_counts(batch_shape, dtype, device="cpu"):
    blocks = Partition(torch.tensor([0, 0, 0], device=device)).expand((2,))
    logits = numbers((*batch_shape, 2), 6, dtype, device, -2.0, 2.0)
    logits[..., 0, [0, 2]] = -math.inf
    logits[..., 1, [0, 1]] = -math.inf
    return sdist.ExchangeableMixture(numbers(batch_shape, 2, dtype, device), logits, blocks)


def regions(device):
    return RegionTree(
        torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0]], device=device),
        torch.tensor([[0, 0], [0, 0]], device=device),
        torch.tensor([[[0, 3, 0, 3], [2, 1, 2, 1]], [[1, 2, 2, 0], [0, 1, 2, 3]]], device=device),
        Partition(torch.tensor([[[0, 1, 0, 1], [0, 1, 2, 1]], [[0, 0, 0, 0], [0, 1, 1, 0]]], device=device)),
    )


def sum_product_network(batch_shape, dtype, device="cpu"):
    shapes = {
        "network": (2,),
        "transition": (2, 2, 2, 2),
        "leaf": (2, 2, 2, 2),
        "odds": (2, 2, 4, 2),
        "count": (2, 2, 8),
    }
    tables = (numbers((*batch_shape, *s[:-1]), s[-1], dtype, device, -2.0, 2.0) for s in shapes.values())
    return sdist.SumProductNetwork(*tables, regions(device))


def network_with_impossible_counts(batch_shape, dtype, device="cpu"):
    """Its leaves are blocks only, and some transitions are impossible."""
    d = sum_product_network(batch_shape, dtype, device)
    d.leaf_logits[..., 0] = -math.inf
    d.transition_logits[..., 1, 0, 1] = -math.inf
    d.statistic_logits[..., [0, 4]] = -math.inf
    return d


def masked_exchangeable_mixture(batch_shape, dtype, device="cpu"):
    return sdist.NanMasked(exchangeable_mixture(batch_shape, dtype, device))


GRAPH = ConnectedComponents(torch.tensor([[0, 1], [1, 2], [2, 3], [0, 2], [0, 2]]), 4, 0.3)


def optimum(problem):
    """A factory of optima of normal costs."""

    def factory(batch_shape, dtype, device="cpu"):
        loc, scale = (
            numbers((*batch_shape, 2), problem.cost_shape.numel(), dtype, device, 0.5, 1.5)
            .unflatten(-1, problem.cost_shape)
            .unbind(-1 - len(problem.cost_shape))
        )
        base = dist.Normal(loc, scale)
        return sdist.RandOM(base.to_event(len(problem.cost_shape)), problem)

    factory.__name__ = f"optimum_{type(problem).__name__}_{problem.cost_shape.numel()}"
    return factory


def exponential_ranking(batch_shape, dtype, device="cpu"):
    return sdist.RandOM(dist.Exponential(numbers(batch_shape, 3, dtype, device, 0.5, 2.0)).to_event(1), Ranking(3))


def argmin(problem):
    """A factory of optima of given costs."""

    def factory(batch_shape, dtype, device="cpu"):
        costs = numbers(batch_shape, problem.cost_shape.numel(), dtype, device)
        costs = costs + 2 * costs.sign()  # far from thresholds, for Hamiltonian Monte Carlo
        return sdist.Argmin(costs.reshape(torch.Size(batch_shape) + problem.cost_shape), problem)

    factory.__name__ = f"argmin_{type(problem).__name__}"
    return factory


LOOP = CliqueTree.from_edges([(0, 1), (1, 2), (2, 3), (3, 0)], [2, 2, 3, 2])
FOREST = CliqueTree([[2, 0], [1], [0], [3]], [3, 1, 2, 2])


def junction_tree(batch_shape, dtype, device="cpu"):
    return sdist.JunctionTree(numbers(batch_shape, LOOP.table_size, dtype, device), LOOP)


def junction_forest(batch_shape, dtype, device="cpu"):
    tables = numbers(batch_shape, FOREST.table_size, dtype, device)
    tables[..., [1, 4]] = -math.inf
    return sdist.JunctionTree(tables, FOREST)


def counted_junction_tree(batch_shape, dtype, device="cpu"):
    """A list inside another one; two states of a variable count."""
    inner = [(0, 1), (1, 0)]
    counted = [inner, [*inner, (2, 1), (2, 2)]]
    counts = numbers(batch_shape, 7, dtype, device)
    counts[..., [0, 5]] = -math.inf
    return sdist.CountedJunctionTree(numbers(batch_shape, LOOP.table_size, dtype, device), LOOP, counts, counted)


def counted_forest(batch_shape, dtype, device="cpu"):
    tables = numbers(batch_shape, FOREST.table_size, dtype, device)
    tables[..., [1, 4]] = -math.inf
    counts = numbers(batch_shape, 5, dtype, device)
    return sdist.CountedJunctionTree(tables, FOREST, counts, [(d, 0) for d in range(4)])


def mixture_of_junction_trees(batch_shape, dtype, device="cpu"):
    trees = [LOOP, CliqueTree([[0], [1, 3], [2]], LOOP.cardinalities)]
    size = sum(tree.table_size for tree in trees)
    return sdist.MixtureOfJunctionTrees(
        numbers(batch_shape, 2, dtype, device), numbers(batch_shape, size, dtype, device), trees
    )


def mixture_with_impossible_states(batch_shape, dtype, device="cpu"):
    """With tables that are the same for the whole batch."""
    trees = [FOREST, CliqueTree.from_edges([(0, 1), (2, 3)], FOREST.cardinalities)]
    tables = numbers((), sum(tree.table_size for tree in trees), dtype, device)
    tables[[1, 4, FOREST.table_size + 2]] = -math.inf
    return sdist.MixtureOfJunctionTrees(numbers(batch_shape, 2, dtype, device), tables, trees)


def mixture_of_counted_trees(batch_shape, dtype, device="cpu"):
    trees = [FOREST, FOREST]
    size = 2 * FOREST.table_size
    counts = numbers(batch_shape, 5, dtype, device)
    weights, tables = numbers(batch_shape, 2, dtype, device), numbers((), size, dtype, device)
    return sdist.MixtureOfJunctionTrees(weights, tables, trees, counts, [[], [(d, 0) for d in range(4)]])


GRID = Grid(2, 2)


BLOCKS = BlockTree([CategoryCounts(2, 3), Transitions(2)], [[0, 3], [2, 1]], cliques=[[0, 1]])


def exchangeable_tree(batch_shape, dtype, device="cpu"):
    tables = numbers(batch_shape, BLOCKS.table_size, dtype, device)
    tables[..., [1, 4, 5]] = -math.inf
    return sdist.ExchangeableTree(tables, BLOCKS)


HIDDEN = HiddenTree([2, 2, 2, 1], num_states=[2, 3, 2, 1], cardinalities=[2, 1, 3, 2])


def latent_tree(batch_shape, dtype, device="cpu"):
    transitions = numbers(batch_shape, 36, dtype, device).unflatten(-1, (4, 3, 3))
    emissions = numbers((), 36, dtype, device).unflatten(-1, (4, 3, 3))
    emissions[0, 0, 1] = emissions[2, 1, 0] = -math.inf
    return sdist.LatentTree(transitions, emissions, HIDDEN)


def mixture_of_densities(batch_shape, dtype, device="cpu"):
    """A categorical and a binary member, with tables of their own batches, one of which excludes a value."""
    tree = CliqueTree([[0, 1], [1, 2]], [2, 2, 2])
    tables = numbers((), tree.table_size, dtype, device)
    tables[3] = -math.inf
    members = [sdist.JunctionTree(tables, tree), sdist.KSubset(numbers(batch_shape, 3, dtype, device), 2)]
    return sdist.MixtureOfDensities(numbers((), 2, dtype, device), members)


def mixture_of_categories(batch_shape, dtype, device="cpu"):
    members = [latent_tree((), dtype, device), latent_tree(batch_shape, dtype, device)]
    return sdist.MixtureOfDensities(numbers(batch_shape, 2, dtype, device), members)


def mixture_of_exchangeable_trees(batch_shape, dtype, device="cpu"):
    """With tables that are the same for the whole batch."""
    trees = [BlockTree.from_counts([[2, 0], [1]], cliques=[[0, 1]]), BlockTree.from_counts([[0, 1, 2]])]
    tables = numbers((), sum(tree.table_size for tree in trees), dtype, device)
    tables[[1, 4, 7]] = -math.inf
    return sdist.MixtureOfExchangeableTrees(numbers(batch_shape, 2, dtype, device), tables, trees)


def shaped(batch_shape, shape, dtype, device, low=-1.5, high=1.5):
    return numbers(batch_shape, math.prod(shape), dtype, device, low, high).unflatten(-1, shape)


def grid_field(batch_shape, dtype, device="cpu"):
    return sdist.GridCRF(
        shaped(batch_shape, (2, 2), dtype, device), numbers(batch_shape, 4, dtype, device, -0.5, 1.5), GRID
    )


def clamped_grid_field(batch_shape, dtype, device="cpu"):
    unary, pairwise = shaped(batch_shape, (2, 2), dtype, device), numbers(batch_shape, 4, dtype, device)
    unary[..., 0, 0], unary[..., 1, 1], pairwise[..., 2] = math.inf, -math.inf, math.inf
    return sdist.GridCRF(unary, pairwise, GRID)


def pattern_field(composition, temperature, paired=True):
    """A factory of fields with two patterns."""

    def factory(batch_shape, dtype, device="cpu"):
        table = composition
        if composition == "table":
            table = numbers(batch_shape, 3, dtype, device)
            table[..., 1] = -math.inf
        return sdist.PatternCRF(
            shaped(batch_shape, (2, 2), dtype, device),
            numbers(batch_shape, 4, dtype, device, -0.5, 1.5) if paired else None,
            shaped((), (2, 2, 2), dtype, device, -2.0, 2.0),
            numbers(batch_shape, 2, dtype, device),
            GRID,
            table,
            temperature,
        )

    factory.__name__ = f"pattern_field_{composition}_{temperature}_{paired}"
    return factory


def categorical_pattern_field(composition, temperature, shape=(1, 3), labels=3, paired=True):
    """A factory of fields of several labels with two patterns, one of whose labels is impossible."""
    grid = Grid(*shape)

    def factory(batch_shape, dtype, device="cpu"):
        table = composition
        if composition == "table":
            table = numbers(batch_shape, 3, dtype, device)
            table[..., 1] = -math.inf
        unary = shaped(batch_shape, (*shape, labels), dtype, device)
        if labels > 2:
            unary[..., 0, 0, 1] = -math.inf
        return sdist.CategoricalPatternCRF(
            unary,
            numbers(batch_shape, grid.num_edges, dtype, device, -0.5, 1.5) if paired else None,
            shaped((), (2, *shape, labels), dtype, device, -2.0, 2.0),
            numbers(batch_shape, 2, dtype, device),
            grid,
            table,
            temperature,
        )

    factory.__name__ = f"categorical_pattern_field_{composition}_{temperature}_{labels}_{paired}"
    return factory


def deep_pattern_field(number, upper, paired=True):
    """A factory of fields with so many patterns and units over them."""

    def factory(batch_shape, dtype, device="cpu"):
        logits = numbers(batch_shape, upper, dtype, device)
        if upper > 1:
            logits[..., 0] = -math.inf
        return sdist.DeepPatternCRF(
            shaped(batch_shape, (2, 2), dtype, device),
            numbers(batch_shape, 4, dtype, device, -0.5, 1.5) if paired else None,
            shaped((), (number, 2, 2), dtype, device, -2.0, 2.0),
            numbers(batch_shape, number, dtype, device),
            shaped((), (upper, number), dtype, device, -2.0, 2.0),
            logits,
            GRID,
        )

    factory.__name__ = f"deep_pattern_field_{number}_{upper}_{paired}"
    return factory


def boltzmann_machine(num_hidden):
    """A factory of machines with three visible units."""

    def factory(batch_shape, dtype, device="cpu"):
        return sdist.RBM(
            shaped((), (num_hidden, 3), dtype, device, -2.0, 2.0),
            numbers(batch_shape, 3, dtype, device),
            numbers(batch_shape, num_hidden, dtype, device),
        )

    factory.__name__ = f"boltzmann_machine_{num_hidden}"
    return factory


FACTORIES = {
    "GridCRF": [grid_field, clamped_grid_field],
    "PatternCRF": [
        pattern_field("sum", 1),
        pattern_field("min", 2, paired=False),
        pattern_field("table", 1),
        pattern_field("table", 0),
    ],
    "CategoricalPatternCRF": [
        categorical_pattern_field("sum", 1),
        categorical_pattern_field("min", 2, shape=(2, 2), labels=2),
        categorical_pattern_field("table", 1, paired=False),
        categorical_pattern_field("table", 0),
    ],
    "DeepPatternCRF": [deep_pattern_field(2, 3), deep_pattern_field(3, 1, paired=False)],
    "RBM": [boltzmann_machine(1), boltzmann_machine(4)],
    "Argmin": [argmin(problem) for problem in (TopK(4, 2), Ranking(3, maximize=True), Matching(3), GRAPH)],
    "RandOM": [
        *(optimum(problem) for problem in (TopK(3, 2), Ranking(3), Matching(2), Matching(3), GRAPH)),
        exponential_ranking,
    ],
    "ExchangeableMixture": [exchangeable_mixture, mixture_with_impossible_counts],
    "ExchangeablePartition": [
        *(partition(labels) for labels in ([0, 1, 1, 0], [0, 0, 0], [0, 1, 2, 3])),
        impossible_counts,
    ],
    "ExchangeableBlock": [
        *(block(s) for s in (Count(4), Transitions(4), CategoryCounts(2, 3), LastIsOne())),
        block(NestedThreshold([[2, 0], [1, 3]], 0)),
        block(Product([Count(2), Transitions(2)], [[3, 1], [0, 2]])),
        impossible_levels,
    ],
    "RecursiveCardinality": [
        single,
        shared_potential,
        nested,
        independent,
        forbidden_counts,
        forbidden_nested_counts,
        clamped,
        conditioned,
        certain,
        one_variable,
        counted_tree,
        linked_counts,
    ],
    "RecursiveCardinalityStraightThrough": [straight_through],
    "ExchangeableTree": [exchangeable_tree],
    "LatentTree": [latent_tree],
    "MixtureOfDensities": [mixture_of_densities, mixture_of_categories],
    "MixtureOfExchangeableTrees": [mixture_of_exchangeable_trees],
    "CountedJunctionTree": [counted_junction_tree, counted_forest],
    "JunctionTree": [junction_tree, junction_forest],
    "MixtureOfJunctionTrees": [mixture_of_junction_trees, mixture_with_impossible_states, mixture_of_counted_trees],
    "KSubset": [k_subset, k_subset_with_tensor],
    "GeneralizedMatching": [soft_matching, hard_matching],
    "OverlappingCardinality": [crossing_counts, crossing_tree],
    "KSubsetStraightThrough": [k_subset_straight_through],
    "BagLabel": [bag_of_causes, bag_with_gaps],
    "PoissonBinomial": [counts_by_logits, counts_by_probs],
    "SelectionMixture": [mixture, mixture_of_binary, mixture_of_counts],
    "SumProductNetwork": [sum_product_network, network_with_impossible_counts],
    "TruncatedNormal": (truncated_normal, half_truncated_normal),
    "NanMasked": [masked_selector, masked_subset, masked_mixture, masked_exchangeable_mixture],
}


def test_every_distribution_is_checked():
    classes = {name for name in sdist.__all__ if isinstance(getattr(sdist, name), type)}
    assert set(FACTORIES) == {name for name in classes if issubclass(getattr(sdist, name), dist.TorchDistribution)}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_make_what_they_say(name):
    for factory in FACTORIES[name]:
        assert type(factory((2,), torch.float64)) is getattr(sdist, name)


@pytest.mark.parametrize("batch_shape", [pytest.param((), marks=pytest.mark.slow), (2, 3)], ids=str)
@pytest.mark.parametrize(
    "factory", [f for factories in FACTORIES.values() for f in factories], ids=lambda f: f.__name__
)
def test_contract(factory, batch_shape):
    check_distribution(factory, batch_shapes=[batch_shape])


@pytest.mark.parametrize(
    "factory", [f for factories in FACTORIES.values() for f in factories], ids=lambda f: f.__name__
)
def test_draws_whose_provenance_is_tracked(factory):
    """No part of the contract for others: torch's Exponential draws other shapes then."""
    with TrackProvenance(), pyro.plate("columns", 3, dim=-1), pyro.plate("rows", 2, dim=-2):
        shift = pyro.sample("shift", dist.Normal(torch.zeros(()).double(), 1.0))
        shifted = substitute(factory((2, 3), torch.float64), lambda p: nudge(p, shift))
        assert "value" in get_provenance(pyro.sample("value", shifted))


@pytest.mark.parametrize(
    "factory", [f for factories in FACTORIES.values() for f in factories], ids=lambda f: f.__name__
)
def test_batches_without_elements(factory):
    """No part of the contract for others: distributions of torch fail it."""
    case = DistributionCase(factory, (), torch.float64, "cpu")
    if log_prob_refusal(case.make()) is None:
        empty_batch(case)
    else:
        assert factory((2, 0), torch.float64).sample((3,)).shape[:3] == (3, 2, 0)
