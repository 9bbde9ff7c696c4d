"""Wrong arguments for everything public: a right result, or an error that names an argument.

Every call is made of a valid one in which an argument or two are changed; what comes out of it is asked for a sample,
its log-probability, a solution, a fit. A call ends within a deadline, or the process ends with a traceback.
"""

import argparse
import faulthandler
import importlib
import inspect
import random
import re
import resource
import traceback
import types
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import NUTS, SVI, Trace_ELBO
from scipy.cluster.hierarchy import linkage
from tqdm import trange

from pyro_structured import inference, models, ops, structures
from pyro_structured.distributions import JunctionTree, KSubset, RecursiveCardinality

DEADLINE_SECONDS = 10
# Valid calls come first, and wait for compilers.
FIRST_SECONDS = 120
MEMORY_BYTES = 2 * 2**30
# Larger results are not asked for anything.
LARGEST_QUERY = 10**5
PACKAGES = (
    "distributions",
    "distributions.cardinality_potentials",
    "structures",
    "inference",
    "models",
    "ops",
    "datasets",
)
# Functions that read files are in mutated_files.py; to_arviz wants a whole run, and moved_copies takes arrays by
# their places.
ELSEWHERE = {
    *("models.read_bif", "models.write_bif", "datasets.network_file", "inference.Checkpoint.resume"),
    *("inference.to_arviz", "datasets.moved_copies"),
}
# Large ones ask for long computations, or large results: these are not faults.
AMOUNTS = {
    *("max_iter", "max_steps", "num_epochs", "n_init", "n_networks", "n_states", "n_components", "n_hidden"),
    *("num_rows", "num_variables", "num_images", "num_pairs", "num_points", "num_discs", "height", "width"),
    *(
        "treewidth",
        "patterns",
        "shifts",
        "num_clusters",
        "num_patterns",
        "n_patterns",
        "n",
        "num_samples",
        "num_nodes",
        "num_items",
        "num_replicates",
    ),
}
MOST = 50

GRID, TREE, PATH = structures.Grid(2, 2), structures.CliqueTree.chain(3, 2), torch.tensor([[0, 1], [1, 2], [0, 2]])
HIDDEN = structures.HiddenTree([0, 0, 1], num_states=2, cardinalities=[2, 3, 2])
BLOCKS = structures.BlockTree.from_counts([[0, 2], [1]], cliques=[[0, 1]])
PARTITION, FOREST = structures.Partition(torch.tensor([0, 1, 0])), ops.CountForest(3)
BITS = torch.tensor([[0.0, 0, 1], [1, 1, 1], [1, 0, 0], [0, 1, 1], [1, 0, 1], [0, 1, 0]])


def numbers(*shape):
    """Numbers between -1 and 1 that differ, always the same."""
    return torch.linspace(0.1, 17, torch.Size(shape).numel()).sin().reshape(shape)


def model(value=None):
    return pyro.sample("x", dist.Normal(0.0, 1.0))


def score():
    return 0.0


def learner(**arguments):
    return {"model": model, "guide": score, "optim": pyro.optim.Adam({"lr": 0.1}), **arguments}


def field(**arguments):
    return {"pairwise": numbers(4), "grid": GRID, **arguments}


def regions():
    return {
        "regions": torch.tensor([[0, 0, 1]]),
        "region_parents": torch.tensor([[0, 0]]),
        "variable_parents": torch.tensor([[[0, 0, 2], [0, 1, 2]]]),
        "partition": structures.Partition(torch.tensor([[[0, 1, 2], [0, 0, 2]]])),
    }


def network():
    return {
        "network_logits": numbers(1),
        "transition_logits": numbers(1, 2, 2, 2),
        "leaf_logits": numbers(1, 2, 2, 2),
        "conditional_logits": numbers(1, 2, 3, 2),
        "statistic_logits": numbers(1, 2, 6),
        "structure": structures.RegionTree(**regions()),
    }


def pictures(*shape):
    return (numbers(*shape).numpy() + 1) / 2


# By their names, one or several valid calls.
EXAMPLES = {
    "distributions.Argmin": [lambda: {"costs": numbers(2, 2), "problem": structures.Matching(2)}],
    "distributions.CategoricalPatternCRF": [
        lambda: field(
            unary_logits=numbers(2, 2, 3),
            weights=numbers(2, 2, 2, 3),
            pattern_logits=numbers(2),
            composition="min",
            temperature=1.0,
        ),
        lambda: field(
            unary_logits=numbers(2, 2, 3),
            weights=numbers(2, 2, 2, 3),
            pattern_logits=numbers(2),
            composition=numbers(3),
        ),
    ],
    "distributions.DeepPatternCRF": [
        lambda: field(
            unary_logits=numbers(2, 2),
            weights=numbers(2, 2, 2),
            pattern_logits=numbers(2),
            upper_weights=numbers(3, 2),
            upper_logits=numbers(3),
        )
    ],
    "distributions.ExchangeableBlock": [
        lambda: {"statistic_logits": numbers(4), "statistic": structures.Count(3)},
        lambda: {"statistic_logits": numbers(2, 2), "statistic": structures.Transitions(3), "validate_args": True},
    ],
    "distributions.ExchangeableBlock.from_potentials": [
        lambda: {"potentials": numbers(4), "statistic": structures.Count(3)}
    ],
    "distributions.ExchangeableBlock.from_data": [
        lambda: {"values": BITS, "statistic": structures.Count(3), "smoothing": 1.0, "weights": torch.ones(6)}
    ],
    "distributions.ExchangeableMixture": [
        lambda: {"mixture_logits": numbers(2), "statistic_logits": numbers(2, 6), "partition": PARTITION.expand([2])}
    ],
    "distributions.ExchangeableMixture.from_data": [
        lambda: {
            "values": BITS,
            "memberships": torch.full((6, 2), 0.5),
            "partition": PARTITION.expand([2]),
            "smoothing": 1.0,
        }
    ],
    "distributions.ExchangeablePartition": [lambda: {"statistic_logits": numbers(6), "partition": PARTITION}],
    "distributions.ExchangeablePartition.from_data": [
        lambda: {"values": BITS, "partition": PARTITION, "smoothing": 1.0, "weights": torch.ones(6)}
    ],
    "distributions.ExchangeableTree": [
        lambda: {"clique_logits": numbers(6), "tree": BLOCKS},
        lambda: {"clique_logits": numbers(2, 6), "tree": BLOCKS, "validate_args": True},
    ],
    "distributions.ExchangeableTree.from_data": [
        lambda: {"values": BITS, "tree": BLOCKS, "smoothing": 1.0, "weights": torch.ones(6)}
    ],
    "distributions.GridCRF": [lambda: field(unary_logits=numbers(2, 2))],
    "distributions.CountedJunctionTree": [
        lambda: {
            "clique_logits": numbers(TREE.table_size),
            "tree": TREE,
            "count_logits": numbers(4),
            "counted": [(0, 1), (1, 1), (2, 1)],
        },
        lambda: {
            "clique_logits": numbers(2, TREE.table_size),
            "tree": TREE,
            "count_logits": numbers(2 + 4),
            "counted": [[(0, 1)], [(0, 1), (1, 1), (2, 1)]],
            "validate_args": True,
        },
    ],
    "distributions.JunctionTree": [
        lambda: {"clique_logits": numbers(TREE.table_size), "tree": TREE},
        lambda: {"clique_logits": numbers(2, TREE.table_size), "tree": TREE, "validate_args": True},
    ],
    "distributions.JunctionTree.from_data": [
        lambda: {"values": BITS, "tree": TREE, "smoothing": 1.0, "weights": torch.ones(6)}
    ],
    "distributions.JunctionTree.from_factors": [
        lambda: {"factors": [([0, 1], numbers(2, 2)), ([2], numbers(2))], "cardinalities": [2, 2, 2], "tree": TREE}
    ],
    "distributions.JunctionTree.from_bayesian_network": [
        lambda: {"parents": [[], [0]], "tables": [torch.tensor([0.5, 0.5]), torch.full((2, 3), 1 / 3)]}
    ],
    "distributions.KSubset": [
        lambda: {"logits": numbers(4), "k": 2},
        lambda: {"logits": numbers(2, 4), "k": torch.tensor([1, 2])},
    ],
    "distributions.KSubsetStraightThrough": [lambda: {"logits": numbers(4), "k": 2}],
    "distributions.LatentTree": [
        lambda: {"transition_logits": numbers(3, 2, 2), "emission_logits": numbers(3, 2, 3), "tree": HIDDEN},
        lambda: {
            "transition_logits": numbers(2, 3, 2, 2),
            "emission_logits": numbers(3, 2, 3),
            "tree": HIDDEN,
            "validate_args": True,
        },
    ],
    "distributions.MixtureOfDensities": [
        lambda: {
            "mixture_logits": numbers(2),
            "members": [JunctionTree(numbers(TREE.table_size), TREE), KSubset(numbers(3), 2)],
        },
        lambda: {
            "mixture_logits": numbers(2, 1),
            "members": [JunctionTree(numbers(TREE.table_size), TREE)],
            "validate_args": True,
        },
    ],
    "distributions.MixtureOfExchangeableTrees": [
        lambda: {
            "mixture_logits": numbers(2),
            "clique_logits": numbers(10),
            "trees": [BLOCKS, structures.BlockTree.from_counts([[0, 1, 2]])],
        }
    ],
    "distributions.MixtureOfJunctionTrees": [
        lambda: {
            "mixture_logits": numbers(2),
            "clique_logits": numbers(2 * TREE.table_size),
            "trees": [TREE, structures.CliqueTree([[0, 2], [1, 2]], [2, 2, 2])],
        },
        lambda: {
            "mixture_logits": numbers(2),
            "clique_logits": numbers(2 * TREE.table_size),
            "trees": [TREE, TREE],
            "count_logits": numbers(4),
            "counted": [[(0, 1), (1, 1), (2, 1)], []],
        },
    ],
    "distributions.NanMasked": [lambda: {"base_dist": RecursiveCardinality(numbers(3), numbers(4))}],
    "distributions.PatternCRF": [
        lambda: field(
            unary_logits=numbers(2, 2),
            weights=numbers(2, 2, 2),
            pattern_logits=numbers(2),
            composition="sum",
            temperature=1.0,
        ),
        lambda: field(
            unary_logits=numbers(2, 2), weights=numbers(2, 2, 2), pattern_logits=numbers(2), composition=numbers(3)
        ),
    ],
    "distributions.BagLabel": [
        lambda: {"instance_logits": numbers(2, 3), "label_count_logits": numbers(2, 4)},
        lambda: {"instance_logits": numbers(3), "label_count_logits": numbers(2, 2, 4), "validate_args": True},
    ],
    "distributions.GeneralizedMatching": [
        lambda: {
            "logits": numbers(2, 3),
            "row_count_logits": numbers(2, 4),
            "column_count_logits": numbers(2, 3, 3),
            "validate_args": True,
        },
    ],
    "distributions.GeneralizedMatching.of_labels": [
        lambda: {"logits": numbers(2, 3, 2), "label_count_logits": numbers(2, 4), "validate_args": True},
    ],
    "distributions.OverlappingCardinality.from_subsets": [
        lambda: {"logits": numbers(2, 3), "subsets": [[0, 1], [1, 2]], "tables": [numbers(3), numbers(2, 3)]},
    ],
    "distributions.OverlappingCardinality": [
        lambda: {
            "logits": numbers(2, 3),
            "families": [
                (structures.NestedSubsets([[0, 1]], 3), numbers(3)),
                RecursiveCardinality(numbers(3), numbers(4)),
            ],
        },
    ],
    "distributions.EnergyBounds": [
        lambda: {
            "distribution": RecursiveCardinality(numbers(3), numbers(4)),
            "pairs": PATH,
            "pair_logits": numbers(2, 3, 2, 2),
        },
        lambda: {
            "distribution": KSubset(numbers(2, 3), 2),
            "pairs": PATH,
            "pair_logits": numbers(3, 2, 2),
            "num_steps": 2,
        },
    ],
    "distributions.PoissonBinomial": [
        lambda: {"probs": numbers(4).abs()},
        lambda: {"logits": numbers(2, 4), "validate_args": True},
    ],
    "distributions.RBM": [
        lambda: {"weights": numbers(2, 3), "visible_logits": numbers(3), "hidden_logits": numbers(2)}
    ],
    "distributions.RandOM": [
        lambda: {"base": dist.Normal(numbers(2, 2), 1.0).to_event(2), "problem": structures.Matching(2)},
        lambda: {
            "base": dist.Normal(numbers(3), 1.0).to_event(1),
            "problem": structures.TopK(3, 2),
            "estimator": inference.PlainMonteCarlo(100),
        },
    ],
    "distributions.RecursiveCardinality": [
        lambda: {"logits": numbers(3), "count_logits": numbers(4), "validate_args": True},
        lambda: {
            "logits": numbers(2, 3),
            "count_logits": numbers(7),
            "subsets": structures.NestedSubsets([[0, 1], [0, 1, 2]], 3),
        },
        lambda: {
            "logits": numbers(2, 3),
            "count_logits": numbers(5),
            "subsets": structures.NestedSubsets([[0, 1], [2]], 3, edges=[(0, 1)], links=[(0, 1, None)]),
            "edge_logits": numbers(1, 2, 2),
            "link_logits": numbers(6),
        },
    ],
    "distributions.RecursiveCardinalityStraightThrough": [
        lambda: {
            "logits": numbers(3),
            "count_logits": numbers(7),
            "subsets": structures.NestedSubsets([[0, 1], [0, 1, 2]], 3),
        }
    ],
    "distributions.SelectionMixture": [
        lambda: {
            "selector": KSubset(numbers(3), 1),
            "component0": dist.Normal(numbers(3), 1.0),
            "component1": dist.Normal(5.0, 1.0),
        }
    ],
    "distributions.SumProductNetwork": [network],
    "distributions.TruncatedNormal": [
        lambda: {"loc": numbers(3), "scale": 1.0, "low": -1.0, "high": torch.tensor([1.0, 2, 3])},
        lambda: {"loc": 0.5, "scale": torch.ones(2, 1), "validate_args": True},
    ],
    "distributions.cardinality_potentials.at_least": [lambda: {"n": 4, "k": 2}],
    "distributions.cardinality_potentials.at_most": [lambda: {"n": 4, "k": torch.tensor([1, 2])}],
    "distributions.cardinality_potentials.between": [lambda: {"n": 4, "low": 1, "high": 2}],
    "distributions.cardinality_potentials.competition": [lambda: {"n": 4, "strength": 1.0}],
    "distributions.cardinality_potentials.consistency": [lambda: {"n": 4, "strength": 1.0, "tolerance": 2}],
    "distributions.cardinality_potentials.exactly": [lambda: {"n": 4, "k": 2}],
    "distributions.cardinality_potentials.for_sizes": [
        lambda: {"law": lambda n: numbers(2, n + 1), "sizes": torch.tensor([1, 3])}
    ],
    "distributions.cardinality_potentials.group_sparsity": [lambda: {"n": 4, "spike": numbers(2)}],
    "distributions.cardinality_potentials.noisy_or": [
        lambda: {"n": 4, "outcome": True, "leak": 0.1, "strength": torch.tensor([0.5, 0.6])}
    ],
    "distributions.cardinality_potentials.normal_fraction": [lambda: {"n": 4, "mean": 0.5, "scale": torch.ones(2)}],
    "distributions.cardinality_potentials.parity": [lambda: {"n": 4, "odd": True}],
    "distributions.cardinality_potentials.smoothness": [lambda: {"n": 4, "strength": numbers(2)}],
    "structures.AutomatonStatistic": [
        lambda: {
            "num_variables": 3,
            "transitions": torch.tensor([[1, 2], [3, 2], [1, 3], [3, 3]]),
            "levels": torch.tensor([0, 0, 0, 1]),
            "order": [2, 0, 1],
        }
    ],
    "structures.BipartiteAssignment": [
        lambda: {
            "row_counts": torch.tensor([1, 2]),
            "column_capacities": 1,
            "allowed": torch.ones(2, 3, dtype=torch.bool),
            "num_rows": 2,
            "num_columns": 3,
        }
    ],
    "structures.BlockCounts": [lambda: {"blocks": [[0, 1], [2]]}],
    "structures.BlockTree": [
        lambda: {
            "statistics": [structures.Count(2), structures.CategoryCounts(1, 3)],
            "groups": [[0, 2], [1]],
            "cliques": [[0, 1]],
        }
    ],
    "structures.BlockTree.from_counts": [
        lambda: {"groups": [[0, 2], [1]], "num_categories": 3, "cliques": [[0, 1]]},
        lambda: {"groups": [[0, 2], [1]], "num_categories": [2, 3]},
    ],
    "structures.Box": [
        lambda: {
            "index": torch.tensor([0, 2]),
            "low": torch.zeros(3, 2),
            "high": torch.ones(3, 2),
            "free": torch.tensor([True, False]),
        }
    ],
    "structures.CategoryCounts": [lambda: {"num_variables": 3, "num_categories": 2}],
    "structures.CliqueTree": [lambda: {"cliques": [[0, 1], [1, 2]], "cardinalities": [2, 3, 2]}],
    "structures.CliqueTree.from_edges": [
        lambda: {"edges": [(0, 1), (1, 2)], "cardinalities": [2, 3, 2], "heuristic": "min_fill"}
    ],
    "structures.CliqueTree.from_cliques": [
        lambda: {"cliques": [[0, 1], [1, 2], [0, 2]], "cardinalities": [2, 3, 2], "heuristic": "min_fill"}
    ],
    "structures.CliqueTree.chain": [lambda: {"num_variables": 3, "num_states": 2}],
    "structures.CliqueTree.grid": [lambda: {"height": 2, "width": 3, "num_states": 2}],
    "structures.ConnectedComponents": [
        lambda: {"edges": PATH, "num_nodes": 3, "threshold": 0.5},
        lambda: {"edges": PATH, "num_nodes": 3, "threshold": numbers(2, 1)},
    ],
    "structures.Count": [lambda: {"num_variables": 3}],
    "structures.Grid": [lambda: {"height": 2, "width": 3}],
    "structures.HiddenTree": [
        lambda: {"parents": [1, 1, 0], "num_states": 2, "cardinalities": [2, 3, 2]},
        lambda: {"parents": [0, 1], "num_states": [2, 3]},
    ],
    "structures.HiddenTree.chain": [lambda: {"num_variables": 3, "num_states": 2, "cardinalities": [2, 3, 2]}],
    "structures.Injection": [lambda: {"size": 2, "num_values": 3}],
    "structures.LinearProblem": [
        lambda: {
            "solve_fn": lambda costs: (costs < 0).double(),
            "cost_shape": [2],
            "event_shape": [2],
            "incidence_fn": lambda value: value,
            "support": dist.constraints.independent(dist.constraints.boolean, 1),
            "maximize": False,
            "cost_low": torch.zeros(2),
            "is_feasible_fn": lambda value: value.ge(0).all(-1),
        }
    ],
    "structures.Matching": [
        lambda: {"num_rows": 2, "num_columns": 3, "allowed": torch.ones(2, 3, dtype=torch.bool), "maximize": False}
    ],
    "structures.MinimumCut": [lambda: {"edges": PATH, "num_nodes": 3}],
    "structures.NestedSubsets": [
        lambda: {"subsets": [[0, 1], [0, 1, 2]], "num_variables": 3},
        lambda: {
            "subsets": [[0, 1], [2]],
            "num_variables": 3,
            "references": [[0, 1], [1]],
            "edges": [(0, 1)],
            "links": [(0, 1, "<=")],
        },
    ],
    "structures.NestedSubsets.balanced": [lambda: {"num_variables": 3}],
    "structures.NestedSubsets.from_tree": [lambda: {"edges": [(0, 1), (1, 2)], "num_variables": 3, "min_size": 2}],
    "structures.NestedSubsets.from_linkage": [lambda: {"linkage": linkage([[0.0], [1.0], [5.0]])}],
    "structures.NestedThreshold": [lambda: {"groups": [[0, 1], [2, 3]], "threshold": 1}],
    "structures.Partition": [lambda: {"labels": torch.tensor([[5, 5, 7], [0, 1, 1]])}],
    "structures.Partition.from_blocks": [lambda: {"blocks": [[2, 1]], "num_variables": 3}],
    "structures.Product": [
        lambda: {"statistics": [structures.Count(2), structures.Transitions(2)], "groups": [[0, 2], [1, 3]]}
    ],
    "structures.Ranking": [lambda: {"num_items": 3, "maximize": True}],
    "structures.RegionTree": [regions],
    "structures.ShortestPath": [
        lambda: {"edges": PATH, "num_nodes": 3, "source": 0, "target": 2},
        lambda: {"edges": PATH, "num_nodes": 3, "source": torch.tensor([0, 1]), "target": 2},
    ],
    "structures.SpanningTree": [lambda: {"edges": PATH, "num_nodes": 3, "maximize": True}],
    "structures.TopK": [
        lambda: {"num_items": 3, "k": 2, "maximize": True},
        lambda: {"num_items": 3, "k": torch.tensor([1, 2])},
    ],
    "structures.Transitions": [lambda: {"num_variables": 3}],
    "inference.AnnealedImportanceSampling": [lambda: {"num_temperatures": 10, "num_chains": 4, "reverse": False}],
    "inference.AnnealedMatching": [lambda: {"num_temperatures": 3, "num_chains": 4}],
    "inference.CountMeanField": [lambda: {"tolerance": 1e-6, "max_iterations": 10}],
    "inference.LoopyBP": [lambda: {"tolerance": 1e-6, "max_iterations": 10, "memory": 2}],
    "inference.TreeReweighted": [lambda: {"tolerance": 1e-6, "max_iterations": 10, "memory": 2}],
    "inference.StructuredGibbs": [lambda: {"model": model, "additive": False}],
    "inference.BinaryGibbs": [lambda: {"model": model}],
    "inference.Checkpoint": [lambda: {"kernel": NUTS(model), "path": "run.pt", "every": 10}],
    "inference.ConstrainedSlice": [lambda: {"model": model, "num_lines": 3}],
    "inference.ContrastiveDivergence": [
        lambda: learner(persistent=True, num_sweeps=1, num_chains=2, on_nonfinite="raise")
    ],
    "inference.CostsReparam": [dict],
    "inference.DistributedOptim": [lambda: {"optim": pyro.optim.Adam({"lr": 0.1}), "rows": torch.arange(3)}],
    "inference.EarlyStopping": [
        lambda: {
            "learner": SVI(model, score, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()),
            "score": score,
            "num_steps": 1,
            "patience": 2,
        }
    ],
    "inference.ExpectedLoss": [
        lambda: learner(loss="intersection_over_union", num_chains=2, num_sweeps=1, on_nonfinite="skip")
    ],
    "inference.FieldGibbs": [lambda: {"model": model, "num_sweeps": 2}],
    "inference.Gibbs": [lambda: {"blocks": [(NUTS(model), ["x"]), (NUTS(model), None)]}],
    "inference.HardEM": [lambda: learner(margin=1.0)],
    "inference.Interweave": [lambda: {"model": model, "num_directions": 2}],
    "inference.MCEM": [
        lambda: learner(
            kernel=inference.ConstrainedSlice(model),
            num_samples=1,
            num_gradient_steps=1,
            objective="mean of logs",
            control_variate=False,
        )
    ],
    "inference.MaxMargin": [lambda: learner(on_nonfinite="raise")],
    "inference.MeanFieldLoss": [lambda: learner(loss="intersection_over_union", num_rounds=2)],
    "inference.ParallelMCMC": [
        lambda: {
            "kernel": NUTS(model),
            "num_samples": 2,
            "warmup_steps": 1,
            "initial_params": {"x": torch.zeros(2)},
            "num_chains": 2,
            "n_jobs": 1,
            "save_params": ["x"],
            "disable_progbar": True,
        }
    ],
    "inference.PerturbAndMAP": [lambda: learner(num_samples=2)],
    "inference.PlainMonteCarlo": [lambda: {"num_samples": 10}],
    "inference.PseudoLikelihood": [learner],
    "inference.ShellSMC": [lambda: {"num_particles": 20, "num_groups": 2}],
    "inference.Splitting": [lambda: {"num_particles": 20, "num_groups": 2, "num_sweeps": 1, "num_lines": 1}],
    "inference.replicate_estimate": [lambda: {"estimate": partial(torch.zeros, 2), "num_replicates": 2}],
    "inference.shard_rows": [lambda: {"n": 5}],
    "inference.restore_dtypes": [lambda: {"samples": {"x": torch.ones(3)}, "model": model}],
    "models.BayesianNetwork": [
        lambda: {
            "names": ["a", "b"],
            "states": [["yes", "no"], ["p", "q", "r"]],
            "parents": [[], [0]],
            "tables": [np.array([0.5, 0.5]), np.full((2, 3), 1 / 3)],
        }
    ],
    "models.ExchangeableSPN": [
        lambda: {
            "n_networks": 1,
            "n_states": 2,
            "max_region_size": 2,
            "smoothing": 1.0,
            "max_iter": 2,
            "binarize": "auto",
            "n_jobs": None,
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.ExchangeableTreeMixture": [
        lambda: {
            "n_components": 2,
            "treewidth": 1,
            "max_levels": 10,
            "penalty": 0.5,
            "smoothing": [1.0],
            "n_init": 1,
            "tol": 0.1,
            "max_iter": 2,
            "n_iter_no_change": 2,
            "categories": "auto",
            "handle_unknown": "missing",
            "n_jobs": None,
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.JunctionTreeCRF": [
        lambda: {
            "treewidth": 1,
            "method": "chordal",
            "penalty": 0.5,
            "edges": [(0, 1)],
            "edge_features": False,
            "l2": 1.0,
            "l1": 0.0,
            "feature_map": torch.nn.Linear(3, 2),
            "tol": 0.1,
            "max_iter": 3,
            "n_jobs": None,
            "verbose": False,
        }
    ],
    "models.LatentTreeDensity": [
        lambda: {
            "n_states": 2,
            "n_trees": 1,
            "smoothing": [1.0],
            "batch_size": 10,
            "max_iter": 2,
            "n_iter_no_change": 1,
            "device": "cpu",
            "categories": "auto",
            "handle_unknown": "other",
            "n_jobs": None,
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.StackedDensity": [
        lambda: {
            "members": [("tree", models.ThinJunctionTree(treewidth=1)), ("other", models.ThinJunctionTree())],
            "time_budget": 5.0,
            "categories": "auto",
            "handle_unknown": "other",
            "device": "cpu",
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.JunctionTreeMixture": [
        lambda: {
            "n_components": 2,
            "treewidth": 1,
            "penalty": 0.5,
            "smoothing": [1.0],
            "n_init": 1,
            "tol": 0.1,
            "max_iter": 2,
            "n_iter_no_change": 2,
            "categories": "auto",
            "handle_unknown": "other",
            "n_jobs": None,
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.MEVMClassifier": [
        lambda: {
            "structure": "welch+merge",
            "smoothing": 0.1,
            "tol": 0.1,
            "max_iter": 2,
            "binarize": "auto",
            "unlabeled": -1,
            "level": 0.1,
            "linkage": "anchor",
            "correction": "none",
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.MEVMDensity": [
        lambda: {
            "n_components": 2,
            "structure": "merge",
            "smoothing": 0.1,
            "tol": 0.1,
            "max_iter": 2,
            "n_init": 1,
            "binarize": 0.5,
            "level": 0.1,
            "linkage": "anchor",
            "correction": "none",
            "n_jobs": None,
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.MultipleInstanceClassifier": [
        lambda: {
            "law": "noisy_or",
            "strength": 0.9,
            "leak": 0.01,
            "fraction": 0.5,
            "scale": 0.2,
            "count": 1,
            "module": torch.nn.Linear(3, 1),
            "l1": 0.0,
            "l2": 1.0,
            "batch_size": 3,
            "learning_rate": 0.1,
            "tol": 0.1,
            "max_iter": 3,
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.PixelClassifier": [
        lambda: {
            "n_hidden": 2,
            "weight_decay": 0.1,
            "learning_rate": 0.01,
            "max_iter": 1,
            "n_jobs": None,
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.SegmentationCRF": [
        lambda: {
            "n_patterns": 2,
            "image_dependent": False,
            "composition": "sum",
            "positioned": True,
            "inference": "mean_field",
            "loss": "intersection_over_union",
            "classifier": models.PixelClassifier(n_hidden=2, max_iter=1),
            "shifts": 0,
            "learning_rate": 0.003,
            "weight_decay": 1.0,
            "max_iter": 1,
            "validation_fraction": 0.5,
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.ThinJunctionTree": [
        lambda: {
            "treewidth": 1,
            "method": "chordal",
            "penalty": 0.5,
            "smoothing": 1.0,
            "discount": 0.1,
            "information": "mutual",
            "tolerance": 0.0,
            "polish": 0.0,
            "categories": "auto",
            "handle_unknown": "other",
            "counts": True,
            "max_iter": 2,
            "verbose": False,
            "random_state": 0,
        }
    ],
    "models.clustered_patterns": [lambda: {"masks": pictures(6, 2, 2) > 0.5, "n_patterns": 2, "random_state": 0}],
    "models.cut_graph": [
        lambda: {
            "weights": np.array([[0, 3, 1], [3, 0, 2], [1, 2, 0]]),
            "treewidth": 1,
            "log_sizes": [0.7, 0.7, 1.1],
            "discount": 0.1,
            "tolerance": 0.0,
            "most_states": 100.0,
        }
    ],
    "models.edge_features": [lambda: {"images": pictures(2, 2, 2, 3), "grid": GRID, "sigma": 0.5}],
    "models.learn_nested_subsets": [
        lambda: {"values": BITS, "memberships": torch.full((6, 2), 0.5), "penalty": 1.0, "verbose": False}
    ],
    "models.merge_partition": [lambda: {"values": BITS, "weights": torch.ones(6), "start": PARTITION}],
    "models.pixel_features": [lambda: {"images": pictures(1, 3, 3, 3)}],
    "models.position_features": [lambda: {"height": 2, "width": 3}],
    "models.welch_partition": [
        lambda: {
            "means": torch.tensor([0.5, 0.1, 0.52]),
            "sizes": torch.tensor(100.0),
            "level": 0.1,
            "linkage": "anchor",
            "correction": "none",
        }
    ],
    "ops.CountForest": [lambda: {"num_variables": 3}],
    "datasets.conjunction_task": [lambda: {"attributes": [2, 1], "num_rows": 3, "num_variables": 9, "seed": 0}],
    "datasets.disjunction_task": [lambda: {"attributes": [2, 1], "num_rows": 3, "num_variables": 9, "seed": 0}],
    "datasets.ellipse_figures": [lambda: {"level": 1, "num_images": 2, "seed": 0}],
    "datasets.label_variability": [lambda: {"labels": pictures(6, 2, 2) > 0.5, "num_clusters": 2, "seed": 0}],
    "datasets.matching_task": [
        lambda: {
            "name": "unimodal",
            "num_pairs": 2,
            "num_points": 3,
            "seed": 0,
            "position_noise": 0.1,
            "size_noise": 0.1,
            "color_noise": 0.1,
        }
    ],
    "datasets.noisy_observations": [
        lambda: {
            "labels": pictures(2, 3, 3) > 0.5,
            "noise": 0.5,
            "num_discs": 2,
            "contrast": 1.5,
            "seed": 0,
        }
    ],
    "datasets.symmetric_task": [lambda: {"name": "parity", "num_rows": 3, "num_variables": 9, "seed": 0}],
}
PICTURES = pictures(4, 6, 6, 3), pictures(4, 6, 6) > 0.5


def strange(generator):
    """Anything of any kind."""
    return generator.choice(
        [
            lambda: None,
            lambda: "",
            lambda: "some",
            lambda: b"some",
            lambda: True,
            lambda: False,
            lambda: generator.choice([0, 1, -1, 2, 5, 2**16, 2**31, 2**63, 10**30, -(10**30)]),
            lambda: generator.choice([0.0, 0.5, -0.5, 2.0, 1e300, -1e300, 1e-320, float("nan"), float("inf")]),
            lambda: 1 + 2j,
            lambda: np.float64("nan"),
            lambda: np.int64(2),
            lambda: [],
            lambda: (),
            lambda: {},
            lambda: {"a": 1},
            lambda: [[]],
            lambda: [None],
            lambda: ["a", "b"],
            lambda: [1, 2, 3],
            lambda: [[1, 2], [3]],
            lambda: [[0, 1], [10**30]],
            lambda: {0, 1},
            lambda: range(3),
            lambda: iter([0, 1]),
            lambda: object(),
            lambda: object,
            lambda: lambda *arguments: None,
            lambda: np.zeros((0, 3)),
            lambda: np.ones((2, 2)),
            lambda: np.array(["a", None], dtype=object),
            lambda: torch.tensor(1.0),
            lambda: torch.zeros(0),
            lambda: torch.zeros(2, 0),
            lambda: torch.ones(3, 3).to_sparse(),
            lambda: torch.Size([2]),
            lambda: GRID,
            lambda: TREE,
            lambda: PARTITION,
            lambda: structures.Count(2),
            lambda: structures.TopK(4, 1),
            lambda: structures.NestedSubsets.balanced(2),
            lambda: dist.Normal(0.0, 1.0),
            lambda: dist.Normal(torch.zeros(4), 1.0).to_event(1),
            lambda: dist.Bernoulli(torch.full((3,), 0.5)),
            lambda: KSubset(torch.zeros(3), 1),
        ]
    )()


DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64),
)


def other_tensor(tensor, generator):
    """Another dtype, layout or shape, or other numbers."""
    axis = generator.randrange(max(1, tensor.dim()))
    axes = tensor.dim() > 0
    match generator.randrange(16):
        case 0 | 1:
            return tensor.to(generator.choice(DTYPES))
        case 2:
            return tensor.unsqueeze(generator.randrange(tensor.dim() + 1))
        case 3:
            return tensor.select(axis, 0) if axes and tensor.shape[axis] else tensor[None]
        case 4:
            return tensor.narrow(axis, 0, 0) if axes else tensor.new_zeros(0)
        case 5:
            return torch.cat([tensor, tensor], axis) if axes else tensor.expand(2)
        case 6:
            return tensor.narrow(axis, 0, 1) if axes and tensor.shape[axis] else tensor[None]
        case 7:
            return tensor.expand(generator.choice([(2,), (3,), (0,), (2, 1)]) + tensor.shape)
        case 8:
            return tensor.transpose(0, axis) if axes else tensor
        case 9:
            return generator.choice([tensor.numpy, tensor.tolist, tensor.to_sparse, tensor.flatten, tensor.sum])()
        case 10:
            return tensor.neg() if tensor.dtype != torch.bool else ~tensor
        case 11:
            return tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor + tensor
    changed = tensor.clone()
    if tensor.dtype == torch.bool:
        changed[...] = generator.random() < 0.5
    elif tensor.is_floating_point():
        ends = torch.finfo(tensor.dtype)
        values = [torch.nan, torch.inf, -torch.inf, ends.max, ends.min, ends.max / 8, ends.tiny, 0.0, 1e6, -50.0]
        place = generator.randrange(tensor.numel()) if tensor.numel() and generator.random() < 0.7 else slice(None)
        changed.view(-1)[place] = generator.choice(values)
    elif tensor.numel():
        ends = torch.iinfo(tensor.dtype)
        changed.view(-1)[generator.randrange(tensor.numel())] = generator.choice(
            [ends.min, ends.max, 0, 1, 2, 5, 2**7 - 1]
        )
    return changed


def other_number(number, generator):
    """A near one, a far one, or an equal one of another type."""
    values = [number + 1, number - 1, -number, 0, float(number), str(number), 10 * number, torch.tensor(number)]
    values += [np.array(number), [number], number + 0.5, 2**20, 2**31 - 1, 2**31, 2**64, float("inf"), float("nan")]
    return generator.choice(values)


def other_sequence(sequence, generator):
    """Something is left out, repeated, added or changed; or as an array, a tensor, a generator."""
    members = list(sequence)
    place = generator.randrange(max(1, len(members)))
    match generator.randrange(8):
        case 0:
            del members[place : place + 1]
        case 1:
            members[place:place] = members[place : place + 1]
        case 2:
            members.append(strange(generator))
        case 3:
            members.reverse()
        case 4:
            return generator.choice([tuple, iter, set, str, lambda m: np.array(m, dtype=object)])(
                [tuple(member) if isinstance(member, list) else member for member in members]
                if all(isinstance(member, (int, list, str)) for member in members)
                else []
            )
        case _:
            if members:
                members[place] = changed(members[place], generator)
    return type(sequence)(members)


def changed(value, generator):
    """Another value, of the same kind more often than not."""
    if generator.random() < 0.3:
        return strange(generator)
    if isinstance(value, torch.Tensor):
        return other_tensor(value, generator)
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and generator.random() < 0.1:
            return value.astype(generator.choice(["f2", "i8", "O", "U3", "c16", "?"]))
        other = other_tensor(torch.from_numpy(value.copy()), generator)
        dense = isinstance(other, torch.Tensor) and other.layout == torch.strided and other.device.type == "cpu"
        return other.detach().numpy() if dense and other.dtype != torch.bfloat16 else other
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return strange(generator)
    if isinstance(value, (int, float)):
        return other_number(value, generator)
    if isinstance(value, (list, tuple)):
        return other_sequence(value, generator)
    return strange(generator)


def mutated_call(number):
    """Name and arguments of a call: a valid one, one or two arguments of which were changed."""
    generator = random.Random(number)
    name = sorted(EXAMPLES)[number % len(EXAMPLES)]
    arguments = generator.choice(EXAMPLES[name])()
    for key in generator.sample(sorted(arguments), min(len(arguments), generator.choice([1, 1, 2]))):
        arguments[key] = changed(arguments[key], generator)
    for key in AMOUNTS & set(arguments):
        if isinstance(arguments[key], (int, float)) and MOST < arguments[key] < 2**31:
            arguments[key] = MOST
    # Seconds.
    if isinstance(arguments.get("polish"), (int, float)):
        arguments["polish"] = min(arguments["polish"], 0.1)
    chance = generator.random()
    if chance < 0.01 and arguments:
        del arguments[generator.choice(sorted(arguments))]
    elif chance < 0.02 and arguments:
        arguments["unexpected"] = 1
    return name, arguments


def public(name):
    """Object of a public name, such as ``structures.Grid``."""
    package, *rest = name.split(".")
    found = importlib.import_module(f"pyro_structured.{package}")
    for part in rest:
        found = getattr(found, part)
    return found


def public_names():
    """Every class that can be made, its class methods that make one, and every function, unless it is elsewhere.

    Functions of ``ops`` are for tensors that were checked.
    """
    found = set()
    for package in PACKAGES:
        for name in public(package).__all__:
            made = public(f"{package}.{name}")
            if isinstance(made, types.ModuleType) or inspect.isabstract(made):
                continue
            if issubclass(made, (tuple, Warning)) if isinstance(made, type) else package == "ops":
                continue
            found.add(f"{package}.{name}")
            if isinstance(made, type):
                methods = {key for key, value in vars(made).items() if isinstance(value, classmethod)}
                found |= {f"{package}.{name}.{key}" for key in methods if not key.startswith("_")}
    return {name for name in found if not name.split(".")[-1].startswith("load_")} - ELSEWHERE


def ask(made):
    """Cheap questions; an AssertionError tells what is wrong about the answer."""
    repr(made)
    if isinstance(made, torch.distributions.Distribution) and made.shape().numel() < LARGEST_QUERY:
        log_prob = made.log_prob(made.sample())
        assert log_prob.shape == made.batch_shape, f"log_prob of shape {log_prob.shape}, not {made.batch_shape}"
        assert bool((log_prob < torch.inf).all()), f"log_prob of a sample: {log_prob}"
    elif isinstance(made, structures.Problem) and not isinstance(made, structures.LinearProblem):
        if made.batch_shape.numel() * made.cost_shape.numel() < LARGEST_QUERY:
            made.solve(torch.rand(made.batch_shape + made.cost_shape))
    elif isinstance(made, structures.Statistic) and made.num_levels * made.num_variables < LARGEST_QUERY:
        assert not bool(made.log_sizes.isnan().any()), "log_sizes: NaN"
    elif isinstance(made, (models.SegmentationCRF, models.PixelClassifier)):
        made.fit(*PICTURES)
    elif isinstance(made, (models.MEVMClassifier, models.MultipleInstanceClassifier, models.JunctionTreeCRF)):
        made.fit(BITS.numpy(), BITS[:, 1:].numpy() if isinstance(made, models.JunctionTreeCRF) else BITS[:, 0].numpy())
    elif hasattr(made, "fit"):
        made.fit(BITS.numpy().astype(int))


def names_of_arguments(make):
    """Those of a class or function, of the class whose method it is, and of the fit of estimators."""
    makers = [make, getattr(make, "__self__", None), getattr(make, "fit", None)]
    return [name for maker in makers if maker for name in inspect.signature(maker).parameters]


def names_an_argument(error, names):
    """Whether an error is of a kind that arguments are refused with, and tells which one is meant."""
    known = "|".join(map(re.escape, names))
    pattern = rf"^(sample|log_prob|{known})\b.*: |\barguments?:? '({known})'|^Expected parameter ({known})\b"
    refused = isinstance(error, (ValueError, TypeError, NotImplementedError))
    return refused and bool(re.search(pattern, str(error), re.DOTALL))


def outcome(make, arguments, seconds=DEADLINE_SECONDS):
    """Outcome of a call: "result", or the kind of its error; errors that name no argument are raised."""
    torch.manual_seed(0)
    pyro.clear_param_store()
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = make(**arguments)
            # Without validation, wrong numbers are the caller's.
            if arguments.get("validate_args") in (None, True):
                ask(made)
    except Exception as error:
        if not names_an_argument(error, [*names_of_arguments(make), *arguments]):
            raise
        return type(error).__name__
    finally:
        faulthandler.cancel_dump_traceback_later()
    return "result"


def make_all(seeds):
    """Numbers of calls by outcome, and failed calls: their numbers, names, arguments and errors."""
    found, failures = Counter(), []
    for number in seeds:
        name, arguments = mutated_call(number)
        try:
            found[outcome(public(name), arguments)] += 1
        except Exception as error:
            failures.append((number, name, arguments, error))
    return found, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20000, help="number of calls")
    parser.add_argument("--seed", type=int, default=0, help="of the first call; the next ones count on")
    options = parser.parse_args()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))
    for name in EXAMPLES:
        for example in EXAMPLES[name]:
            outcome(public(name), example(), FIRST_SECONDS)
    found, failures = make_all(trange(options.seed, options.seed + options.calls, desc="constructors"))
    for number, name, arguments, error in failures:
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(f"call {number}, {name}: {error!r} at {place.filename}:{place.lineno}, of {arguments}")
    print("constructors", dict(found), f"failures: {len(failures)}")
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
