"""Learners of structures and parameters."""

__all__ = [
    "BayesianNetwork",
    "ExchangeableSPN",
    "ExchangeableTreeMixture",
    "JunctionTreeCRF",
    "JunctionTreeMixture",
    "LatentTreeDensity",
    "MEVMClassifier",
    "MEVMDensity",
    "MultipleInstanceClassifier",
    "PixelClassifier",
    "SegmentationCRF",
    "StackedDensity",
    "StackedMember",
    "ThinJunctionTree",
    "clustered_patterns",
    "cut_graph",
    "edge_features",
    "learn_nested_subsets",
    "merge_partition",
    "pixel_features",
    "position_features",
    "read_bif",
    "welch_partition",
    "write_bif",
]

from pyro_structured.counts.models.multiple_instance_classifier import MultipleInstanceClassifier
from pyro_structured.counts.models.nested_subset_learner import learn_nested_subsets
from pyro_structured.densities.models.exchangeable_spn import ExchangeableSPN
from pyro_structured.densities.models.exchangeable_tree_mixture import ExchangeableTreeMixture
from pyro_structured.densities.models.latent_tree_density import LatentTreeDensity
from pyro_structured.densities.models.stacked_density import StackedDensity, StackedMember
from pyro_structured.exchangeable.models.merge_partition import merge_partition
from pyro_structured.exchangeable.models.mevm_classifier import MEVMClassifier
from pyro_structured.exchangeable.models.mevm_density import MEVMDensity
from pyro_structured.exchangeable.models.welch_partition import welch_partition
from pyro_structured.fields.models.clustered_patterns import clustered_patterns
from pyro_structured.fields.models.edge_features import edge_features
from pyro_structured.fields.models.pixel_classifier import PixelClassifier
from pyro_structured.fields.models.pixel_features import pixel_features, position_features
from pyro_structured.fields.models.segmentation_crf import SegmentationCRF
from pyro_structured.junction_trees.models.bayesian_network import BayesianNetwork
from pyro_structured.junction_trees.models.bif import read_bif, write_bif
from pyro_structured.junction_trees.models.graph_cut_search import cut_graph
from pyro_structured.junction_trees.models.junction_tree_crf import JunctionTreeCRF
from pyro_structured.junction_trees.models.junction_tree_mixture import JunctionTreeMixture
from pyro_structured.junction_trees.models.thin_junction_tree import ThinJunctionTree
