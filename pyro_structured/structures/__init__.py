"""Immutable descriptions of the structure of discrete variables, passed to distributions."""

__all__ = [
    "AutomatonStatistic",
    "BlockCounts",
    "CategoryCounts",
    "Count",
    "NestedSubsets",
    "NestedThreshold",
    "Partition",
    "Product",
    "RegionTree",
    "Statistic",
    "Transitions",
]

from pyro_structured.structures.automaton_statistic import AutomatonStatistic
from pyro_structured.structures.block_counts import BlockCounts
from pyro_structured.structures.category_counts import CategoryCounts
from pyro_structured.structures.count import Count
from pyro_structured.structures.nested_subsets import NestedSubsets
from pyro_structured.structures.nested_threshold import NestedThreshold
from pyro_structured.structures.partition import Partition
from pyro_structured.structures.product import Product
from pyro_structured.structures.region_tree import RegionTree
from pyro_structured.structures.statistic import Statistic
from pyro_structured.structures.transitions import Transitions
