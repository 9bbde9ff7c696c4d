"""Kernels for Pyro's MCMC and what composes them, learners, and estimates of log-probabilities."""

__all__ = [
    "AnnealedMatching",
    "AnnealedImportanceSampling",
    "BinaryGibbs",
    "Checkpoint",
    "ConstrainedSlice",
    "ContrastiveDivergence",
    "CostsReparam",
    "CountMeanField",
    "DistributedOptim",
    "EarlyStopping",
    "ExpectedLoss",
    "FieldGibbs",
    "Gibbs",
    "HardEM",
    "Interweave",
    "LoopyBP",
    "MCEM",
    "MaxMargin",
    "MeanFieldLoss",
    "ParallelMCMC",
    "PerturbAndMAP",
    "PlainMonteCarlo",
    "PseudoLikelihood",
    "ReplicatedEstimate",
    "ShellSMC",
    "Splitting",
    "StepKernel",
    "StructuredGibbs",
    "TreeReweighted",
    "replicate_estimate",
    "restore_dtypes",
    "shard_rows",
    "to_arviz",
]

from pyro_structured.counts.inference.annealed_matching import AnnealedMatching
from pyro_structured.counts.inference.count_mean_field import CountMeanField
from pyro_structured.counts.inference.loopy_belief_propagation import LoopyBP
from pyro_structured.counts.inference.tree_reweighted import TreeReweighted
from pyro_structured.fields.inference.annealed_importance_sampling import AnnealedImportanceSampling
from pyro_structured.fields.inference.contrastive_divergence import ContrastiveDivergence
from pyro_structured.fields.inference.expected_loss import ExpectedLoss
from pyro_structured.fields.inference.field_gibbs import FieldGibbs
from pyro_structured.fields.inference.mean_field_loss import MeanFieldLoss
from pyro_structured.fields.inference.pseudo_likelihood import PseudoLikelihood
from pyro_structured.foundation.inference.binary_gibbs import BinaryGibbs
from pyro_structured.foundation.inference.checkpoint import Checkpoint
from pyro_structured.foundation.inference.distributed_optim import DistributedOptim
from pyro_structured.foundation.inference.early_stopping import EarlyStopping
from pyro_structured.foundation.inference.gibbs import Gibbs, StepKernel
from pyro_structured.foundation.inference.parallel_mcmc import ParallelMCMC
from pyro_structured.foundation.inference.replicated_estimate import ReplicatedEstimate, replicate_estimate
from pyro_structured.foundation.inference.restore_dtypes import restore_dtypes
from pyro_structured.foundation.inference.row_shards import shard_rows
from pyro_structured.foundation.inference.structured_gibbs import StructuredGibbs
from pyro_structured.foundation.inference.to_arviz import to_arviz
from pyro_structured.optima.inference.constrained_slice import ConstrainedSlice
from pyro_structured.optima.inference.costs_reparam import CostsReparam
from pyro_structured.optima.inference.hard_em import HardEM
from pyro_structured.optima.inference.interweave import Interweave
from pyro_structured.optima.inference.linear_loss import MaxMargin, PerturbAndMAP
from pyro_structured.optima.inference.monte_carlo_em import MCEM
from pyro_structured.optima.inference.plain_monte_carlo import PlainMonteCarlo
from pyro_structured.optima.inference.shell_smc import ShellSMC
from pyro_structured.optima.inference.splitting import Splitting
