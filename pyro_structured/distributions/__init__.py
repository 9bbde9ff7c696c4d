"""Pyro distributions over structured discrete variables."""

__all__ = [
    "ApproximateMarginals",
    "Argmin",
    "BagLabel",
    "CategoricalPatternCRF",
    "CountedJunctionTree",
    "DeepPatternCRF",
    "EnergyBounds",
    "EstimateWarning",
    "ExchangeableBlock",
    "ExchangeableMixture",
    "ExchangeablePartition",
    "ExchangeableTree",
    "FieldEstimate",
    "FieldEstimator",
    "FieldOptimum",
    "GeneralizedMatching",
    "GridCRF",
    "JointMode",
    "JunctionTree",
    "KSubset",
    "KSubsetStraightThrough",
    "LatentTree",
    "MarginalApproximation",
    "MatchingEstimate",
    "MatchingEstimator",
    "MixtureOfDensities",
    "MixtureOfExchangeableTrees",
    "MixtureOfJunctionTrees",
    "NanMasked",
    "OptimumEstimate",
    "OptimumEstimator",
    "OverlappingCardinality",
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

from pyro_structured.counts.distributions.bag_label import BagLabel
from pyro_structured.counts.distributions.energy_bounds import EnergyBounds
from pyro_structured.counts.distributions.generalized_matching import GeneralizedMatching
from pyro_structured.counts.distributions.k_subset import KSubset
from pyro_structured.counts.distributions.marginal_approximation import ApproximateMarginals, MarginalApproximation
from pyro_structured.counts.distributions.matching_estimator import MatchingEstimate, MatchingEstimator
from pyro_structured.counts.distributions.overlapping_cardinality import OverlappingCardinality
from pyro_structured.counts.distributions.poisson_binomial import PoissonBinomial
from pyro_structured.counts.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.counts.distributions.recursive_cardinality_straight_through import (
    KSubsetStraightThrough,
    RecursiveCardinalityStraightThrough,
)
from pyro_structured.counts.distributions.selection_mixture import SelectionMixture
from pyro_structured.counts.ops.certified_counts import PrecisionWarning
from pyro_structured.densities.distributions.exchangeable_tree import ExchangeableTree
from pyro_structured.densities.distributions.latent_tree import JointMode, LatentTree
from pyro_structured.densities.distributions.mixture_of_densities import MixtureOfDensities
from pyro_structured.densities.distributions.mixture_of_exchangeable_trees import MixtureOfExchangeableTrees
from pyro_structured.densities.distributions.sum_product_network import SumProductNetwork
from pyro_structured.distributions import cardinality_potentials
from pyro_structured.exchangeable.distributions.exchangeable_block import ExchangeableBlock
from pyro_structured.exchangeable.distributions.exchangeable_mixture import ExchangeableMixture
from pyro_structured.exchangeable.distributions.exchangeable_partition import ExchangeablePartition
from pyro_structured.fields.distributions.categorical_pattern_crf import CategoricalPatternCRF
from pyro_structured.fields.distributions.deep_pattern_crf import DeepPatternCRF
from pyro_structured.fields.distributions.field_estimator import FieldEstimate, FieldEstimator
from pyro_structured.fields.distributions.grid_crf import GridCRF
from pyro_structured.fields.distributions.pattern_crf import PatternCRF
from pyro_structured.fields.distributions.restricted_boltzmann_machine import RBM
from pyro_structured.fields.solvers.field_optimum import FieldOptimum
from pyro_structured.foundation.distributions.estimate_warning import EstimateWarning
from pyro_structured.foundation.distributions.nan_masked import NanMasked
from pyro_structured.junction_trees.distributions.counted_junction_tree import CountedJunctionTree
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.distributions.mixture_of_junction_trees import MixtureOfJunctionTrees
from pyro_structured.optima.distributions.argmin import Argmin
from pyro_structured.optima.distributions.optimum_estimate import OptimumEstimate, OptimumEstimator
from pyro_structured.optima.distributions.randomized_optimum import RandOM
from pyro_structured.optima.distributions.truncated_normal import TruncatedNormal
