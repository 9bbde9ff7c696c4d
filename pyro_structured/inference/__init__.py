"""Kernels for Pyro's MCMC and what composes them, learners, and estimates of log-probabilities."""

__all__ = [
    "AnnealedImportanceSampling",
    "BinaryGibbs",
    "Checkpoint",
    "ConstrainedSlice",
    "ContrastiveDivergence",
    "CostsReparam",
    "EarlyStopping",
    "ExpectedLoss",
    "FieldGibbs",
    "Gibbs",
    "HardEM",
    "Interweave",
    "MCEM",
    "MaxMargin",
    "MeanFieldLoss",
    "PerturbAndMAP",
    "PlainMonteCarlo",
    "PseudoLikelihood",
    "ShellSMC",
    "Splitting",
    "StepKernel",
    "restore_dtypes",
    "to_arviz",
]

from pyro_structured.inference.annealed_importance_sampling import AnnealedImportanceSampling
from pyro_structured.inference.binary_gibbs import BinaryGibbs
from pyro_structured.inference.checkpoint import Checkpoint
from pyro_structured.inference.constrained_slice import ConstrainedSlice
from pyro_structured.inference.contrastive_divergence import ContrastiveDivergence
from pyro_structured.inference.costs_reparam import CostsReparam
from pyro_structured.inference.early_stopping import EarlyStopping
from pyro_structured.inference.expected_loss import ExpectedLoss
from pyro_structured.inference.field_gibbs import FieldGibbs
from pyro_structured.inference.gibbs import Gibbs
from pyro_structured.inference.hard_em import HardEM
from pyro_structured.inference.interweave import Interweave
from pyro_structured.inference.max_margin import MaxMargin
from pyro_structured.inference.mean_field_loss import MeanFieldLoss
from pyro_structured.inference.monte_carlo_em import MCEM
from pyro_structured.inference.perturb_and_map import PerturbAndMAP
from pyro_structured.inference.plain_monte_carlo import PlainMonteCarlo
from pyro_structured.inference.pseudo_likelihood import PseudoLikelihood
from pyro_structured.inference.restore_dtypes import restore_dtypes
from pyro_structured.inference.shell_smc import ShellSMC
from pyro_structured.inference.splitting import Splitting
from pyro_structured.inference.step_kernel import StepKernel
from pyro_structured.inference.to_arviz import to_arviz
