"""Log-potentials of counts, for the tables of cardinality distributions."""

__all__ = [
    "at_least",
    "at_most",
    "between",
    "competition",
    "consistency",
    "exactly",
    "for_sizes",
    "group_sparsity",
    "noisy_or",
    "normal_fraction",
    "parity",
    "smoothness",
]

from pyro_structured.counts.distributions.cardinality_potentials import (
    at_least,
    at_most,
    between,
    competition,
    consistency,
    exactly,
    for_sizes,
    group_sparsity,
    noisy_or,
    normal_fraction,
    parity,
    smoothness,
)
