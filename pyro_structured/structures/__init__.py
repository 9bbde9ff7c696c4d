"""Immutable descriptions of the structure of discrete variables, passed to distributions."""

__all__ = [
    "AutomatonStatistic",
    "BipartiteAssignment",
    "BlockCounts",
    "BlockTree",
    "Box",
    "CategoryCounts",
    "CliqueTree",
    "ConnectedComponents",
    "Count",
    "Grid",
    "HiddenTree",
    "Injection",
    "LinearProblem",
    "Matching",
    "MinimumCut",
    "NestedSubsets",
    "NestedThreshold",
    "Partition",
    "Problem",
    "Product",
    "Ranking",
    "RegionTree",
    "ShortestPath",
    "SpanningTree",
    "Statistic",
    "TopK",
    "Transitions",
]

from pyro_structured.counts.structures.nested_subsets import NestedSubsets
from pyro_structured.densities.structures.block_tree import BlockTree
from pyro_structured.densities.structures.hidden_tree import HiddenTree
from pyro_structured.densities.structures.region_tree import RegionTree
from pyro_structured.exchangeable.structures.automaton_statistic import AutomatonStatistic, NestedThreshold, Transitions
from pyro_structured.exchangeable.structures.category_counts import BlockCounts, CategoryCounts, Count
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.exchangeable.structures.product import Product
from pyro_structured.exchangeable.structures.statistic import Statistic
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree
from pyro_structured.optima.structures.bipartite_assignment import BipartiteAssignment
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.connected_components import ConnectedComponents
from pyro_structured.optima.structures.injection import Injection
from pyro_structured.optima.structures.linear_problem import LinearProblem
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.optima.structures.minimum_cut import MinimumCut
from pyro_structured.optima.structures.problem import Problem
from pyro_structured.optima.structures.ranking import Ranking
from pyro_structured.optima.structures.shortest_path import ShortestPath
from pyro_structured.optima.structures.spanning_tree import SpanningTree
from pyro_structured.optima.structures.top_k import TopK
