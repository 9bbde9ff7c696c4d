"""Learners of structures and parameters."""

__all__ = [
    "BayesianNetwork",
    "ExchangeableSPN",
    "JunctionTreeCRF",
    "JunctionTreeMixture",
    "MEVMClassifier",
    "MEVMDensity",
    "PixelClassifier",
    "SegmentationCRF",
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

from pyro_structured.models.bayesian_network import BayesianNetwork
from pyro_structured.models.bif import read_bif, write_bif
from pyro_structured.models.clustered_patterns import clustered_patterns
from pyro_structured.models.edge_features import edge_features
from pyro_structured.models.exchangeable_spn import ExchangeableSPN
from pyro_structured.models.graph_cut_search import cut_graph
from pyro_structured.models.junction_tree_crf import JunctionTreeCRF
from pyro_structured.models.junction_tree_mixture import JunctionTreeMixture
from pyro_structured.models.merge_partition import merge_partition
from pyro_structured.models.mevm_classifier import MEVMClassifier
from pyro_structured.models.mevm_density import MEVMDensity
from pyro_structured.models.nested_subset_learner import learn_nested_subsets
from pyro_structured.models.pixel_classifier import PixelClassifier
from pyro_structured.models.pixel_features import pixel_features
from pyro_structured.models.position_features import position_features
from pyro_structured.models.segmentation_crf import SegmentationCRF
from pyro_structured.models.thin_junction_tree import ThinJunctionTree
from pyro_structured.models.welch_partition import welch_partition
