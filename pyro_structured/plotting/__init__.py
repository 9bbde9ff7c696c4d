"""Pictures of structures, distributions and chains, drawn with matplotlib (the extra ``plot``).

Every function takes ``ax``, matplotlib axes, or makes new ones in the current figure, and returns them; styles and
colour maps are those that are set, unless one is given.
"""

__all__ = [
    "plot_chains",
    "plot_clique_tree",
    "plot_field",
    "plot_matching",
    "plot_nested_subsets",
    "plot_path",
    "plot_patterns",
    "plot_pictures",
]

from pyro_structured.junction_trees.structures.clique_tree_picture import plot_clique_tree
from pyro_structured.plotting.chains import plot_chains
from pyro_structured.plotting.fields import plot_field, plot_patterns, plot_pictures
from pyro_structured.plotting.graphs import plot_matching, plot_path
from pyro_structured.plotting.nested_subsets import plot_nested_subsets
