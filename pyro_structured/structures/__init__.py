"""Immutable descriptions of the structure of discrete variables, passed to distributions."""

__all__ = [
    "AutomatonStatistic",
    "BipartiteAssignment",
    "BlockCounts",
    "CategoryCounts",
    "Count",
    "LinearProblem",
    "MinimumCut",
    "NestedSubsets",
    "NestedThreshold",
    "Partition",
    "Product",
    "RegionTree",
    "ShortestPath",
    "Statistic",
    "Transitions",
]

from pyro_structured.structures.automaton_statistic import AutomatonStatistic
from pyro_structured.structures.bipartite_assignment import BipartiteAssignment
from pyro_structured.structures.block_counts import BlockCounts
from pyro_structured.structures.category_counts import CategoryCounts
from pyro_structured.structures.count import Count
from pyro_structured.structures.linear_problem import LinearProblem
from pyro_structured.structures.minimum_cut import MinimumCut
from pyro_structured.structures.nested_subsets import NestedSubsets
from pyro_structured.structures.nested_threshold import NestedThreshold
from pyro_structured.structures.partition import Partition
from pyro_structured.structures.product import Product
from pyro_structured.structures.region_tree import RegionTree
from pyro_structured.structures.shortest_path import ShortestPath
from pyro_structured.structures.statistic import Statistic
from pyro_structured.structures.transitions import Transitions
