"""Kullback-Leibler divergences, registered with torch."""

__all__: list[str] = []

import math

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, kl_divergence
from torch.distributions.kl import register_kl

from pyro_structured.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.ops.poisson_binomial import probs_to_logits


@register_kl(RecursiveCardinality, RecursiveCardinality)  # type: ignore[untyped-decorator]
def _kl_recursive_cardinality(p: RecursiveCardinality, q: RecursiveCardinality) -> Tensor:
    if p.subsets != q.subsets:
        raise NotImplementedError(
            "kl_divergence: expected two distributions with the same subsets; others can be estimated from samples of p"
        )
    odds, counts = p.marginal_logits, p.count_marginals
    result = -p.entropy() + q.leveled_log_partition
    result = result - _expected(torch.sigmoid(odds), q.logits.masked_fill(q.logits.isinf(), 0.0))
    result = result - _expected(counts, q.leveled_count_logits.masked_fill(q.count_logits == -math.inf, 0.0))
    # A value that p allows and q does not makes the divergence infinite.
    wrong = (odds > -math.inf) & (q.logits == -math.inf) | (odds < math.inf) & (q.logits == math.inf)
    missing = (counts > 0) & (q.count_logits == -math.inf)
    return result.masked_fill(wrong.any(-1) | missing.any(-1), math.inf)


def _expected(probabilities: Tensor, energies: Tensor) -> Tensor:
    return torch.sum(probabilities * energies, -1)


@register_kl(RecursiveCardinality, Independent)  # type: ignore[untyped-decorator]
def _kl_to_independent(p: RecursiveCardinality, q: "Independent[Bernoulli]") -> Tensor:
    return kl_divergence(p, _without_potentials(q, p))


@register_kl(Independent, RecursiveCardinality)  # type: ignore[untyped-decorator]
def _kl_from_independent(p: "Independent[Bernoulli]", q: RecursiveCardinality) -> Tensor:
    return kl_divergence(_without_potentials(p, q), q)


def _without_potentials(independent: "Independent[Bernoulli]", like: RecursiveCardinality) -> RecursiveCardinality:
    """Independent variables as a member of the family with the same subsets."""
    base = independent.base_dist
    if not isinstance(base, Bernoulli) or independent.event_shape != like.event_shape:
        raise NotImplementedError(
            f"kl_divergence: expected Bernoulli(...).to_event(1) with event shape {tuple(like.event_shape)} beside a "
            f"{type(like).__name__}, got {independent}"
        )
    logits = probs_to_logits(base.probs) if "probs" in base.__dict__ else base.logits
    return RecursiveCardinality(logits, logits.new_zeros(like.subsets.table_size), like.subsets, validate_args=False)
