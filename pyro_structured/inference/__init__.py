"""Kernels for Pyro's MCMC, and what composes them."""

__all__ = ["ConstrainedSlice", "CostsReparam", "Gibbs", "Interweave"]

from pyro_structured.inference.constrained_slice import ConstrainedSlice
from pyro_structured.inference.costs_reparam import CostsReparam
from pyro_structured.inference.gibbs import Gibbs
from pyro_structured.inference.interweave import Interweave
