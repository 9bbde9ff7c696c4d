"""Kullback-Leibler divergences, registered with torch."""

__all__: list[str] = []

import math

import torch
from torch import Tensor
from torch.distributions.kl import register_kl

from pyro_structured.distributions.recursive_cardinality import RecursiveCardinality


@register_kl(RecursiveCardinality, RecursiveCardinality)  # type: ignore[untyped-decorator]
def _kl_recursive_cardinality(p: RecursiveCardinality, q: RecursiveCardinality) -> Tensor:
    if p.subsets != q.subsets:
        raise NotImplementedError(
            "kl_divergence: expected two distributions with the same subsets; others can be estimated from samples of p"
        )
    marginals, counts = p.marginals, p.count_marginals
    result = -p.entropy() + q.log_partition_function - q.log_weight
    result = result - _expected(marginals, q.logits.masked_fill(q.logits.isinf(), 0.0))
    result = result - _expected(counts, q.count_logits.masked_fill(q.count_logits == -math.inf, 0.0))
    # A value that p allows and q does not makes the divergence infinite.
    wrong = (marginals > 0) & (q.logits == -math.inf) | (p.marginal_logits < math.inf) & (q.logits == math.inf)
    missing = (counts > 0) & (q.count_logits == -math.inf)
    return result.masked_fill(wrong.any(-1) | missing.any(-1), math.inf)


def _expected(probabilities: Tensor, energies: Tensor) -> Tensor:
    return torch.sum(probabilities * energies, -1)
