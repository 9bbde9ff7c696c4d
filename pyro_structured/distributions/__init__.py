"""Pyro distributions over structured discrete variables."""

__all__ = [
    "Argmin",
    "CategoricalPatternCRF",
    "DeepPatternCRF",
    "EstimateWarning",
    "ExchangeableBlock",
    "ExchangeableMixture",
    "ExchangeablePartition",
    "FieldEstimator",
    "GridCRF",
    "JunctionTree",
    "KSubset",
    "KSubsetStraightThrough",
    "MixtureOfJunctionTrees",
    "NanMasked",
    "OptimumEstimate",
    "OptimumEstimator",
    "PatternCRF",
    "PoissonBinomial",
    "PrecisionWarning",
    "RBM",
    "RandOM",
    "RecursiveCardinality",
    "RecursiveCardinalityStraightThrough",
    "SelectionMixture",
    "SumProductNetwork",
    "TruncatedNormal",
    "cardinality_potentials",
]

import pyro_structured.distributions.kl  # noqa: F401  (registers divergences)
from pyro_structured.distributions import cardinality_potentials
from pyro_structured.distributions.argmin import Argmin
from pyro_structured.distributions.categorical_pattern_crf import CategoricalPatternCRF
from pyro_structured.distributions.deep_pattern_crf import DeepPatternCRF
from pyro_structured.distributions.estimate_warning import EstimateWarning
from pyro_structured.distributions.exchangeable_block import ExchangeableBlock
from pyro_structured.distributions.exchangeable_mixture import ExchangeableMixture
from pyro_structured.distributions.exchangeable_partition import ExchangeablePartition
from pyro_structured.distributions.field_estimator import FieldEstimator
from pyro_structured.distributions.grid_crf import GridCRF
from pyro_structured.distributions.junction_tree import JunctionTree
from pyro_structured.distributions.k_subset import KSubset
from pyro_structured.distributions.k_subset_straight_through import KSubsetStraightThrough
from pyro_structured.distributions.mixture_of_junction_trees import MixtureOfJunctionTrees
from pyro_structured.distributions.nan_masked import NanMasked
from pyro_structured.distributions.optimum_estimator import OptimumEstimate, OptimumEstimator
from pyro_structured.distributions.pattern_crf import PatternCRF
from pyro_structured.distributions.poisson_binomial import PoissonBinomial
from pyro_structured.distributions.randomized_optimum import RandOM
from pyro_structured.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.distributions.recursive_cardinality_straight_through import RecursiveCardinalityStraightThrough
from pyro_structured.distributions.restricted_boltzmann_machine import RBM
from pyro_structured.distributions.selection_mixture import SelectionMixture
from pyro_structured.distributions.sum_product_network import SumProductNetwork
from pyro_structured.distributions.truncated_normal import TruncatedNormal
from pyro_structured.ops.precision_warning import PrecisionWarning
