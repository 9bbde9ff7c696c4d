"""Immutable descriptions of the structure of discrete variables, passed to distributions."""

__all__ = [
    "AutomatonStatistic",
    "BipartiteAssignment",
    "BlockCounts",
    "Box",
    "CategoryCounts",
    "CliqueTree",
    "ConnectedComponents",
    "Count",
    "Grid",
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

from pyro_structured.structures.automaton_statistic import AutomatonStatistic
from pyro_structured.structures.bipartite_assignment import BipartiteAssignment
from pyro_structured.structures.block_counts import BlockCounts
from pyro_structured.structures.box import Box
from pyro_structured.structures.category_counts import CategoryCounts
from pyro_structured.structures.clique_tree import CliqueTree
from pyro_structured.structures.connected_components import ConnectedComponents
from pyro_structured.structures.count import Count
from pyro_structured.structures.grid import Grid
from pyro_structured.structures.injection import Injection
from pyro_structured.structures.linear_problem import LinearProblem
from pyro_structured.structures.matching import Matching
from pyro_structured.structures.minimum_cut import MinimumCut
from pyro_structured.structures.nested_subsets import NestedSubsets
from pyro_structured.structures.nested_threshold import NestedThreshold
from pyro_structured.structures.partition import Partition
from pyro_structured.structures.problem import Problem
from pyro_structured.structures.product import Product
from pyro_structured.structures.ranking import Ranking
from pyro_structured.structures.region_tree import RegionTree
from pyro_structured.structures.shortest_path import ShortestPath
from pyro_structured.structures.spanning_tree import SpanningTree
from pyro_structured.structures.statistic import Statistic
from pyro_structured.structures.top_k import TopK
from pyro_structured.structures.transitions import Transitions
