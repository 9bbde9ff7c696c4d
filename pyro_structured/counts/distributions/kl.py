"""Kullback-Leibler divergences, registered with torch."""

__all__: list[str] = []

import math

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, kl_divergence
from torch.distributions.kl import register_kl

from pyro_structured.counts.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.counts.ops.count_support import reaches
from pyro_structured.counts.ops.poisson_binomial import probs_to_logits
from pyro_structured.foundation.ops.private_members import bernoulli_is_given_by_logits
from pyro_structured.foundation.ops.requirements import require_support


@register_kl(RecursiveCardinality, RecursiveCardinality)  # type: ignore[untyped-decorator]
def _kl_recursive_cardinality(p: RecursiveCardinality, q: RecursiveCardinality) -> Tensor:
    if p.subsets != q.subsets:
        raise NotImplementedError(
            "kl_divergence: expected two distributions with the same subsets; others can be estimated from samples of p"
        )
    # Both exponents are subtracted before they are summed, in double precision: what they have in common costs no
    # digits beyond the rounding of log Z.
    beliefs = p._beliefs
    own, other = (each._energies(beliefs) for each in (p, q))
    energy = torch.sum(own[0] - other[0], -1) + torch.sum(own[1] - other[1], -1)
    result = energy - p._supported_log_z() + require_support(q._log_z, q._empty)
    # A value that p allows and q does not makes the divergence infinite, however improbable it is.
    odds, clamps = beliefs.marginal_logits, q._parameters[0]
    wrong = (odds > -math.inf) & (clamps == -math.inf) | (odds < math.inf) & (clamps == math.inf)
    forbidden = (q._centred.tables == -math.inf) & (p._centred.tables != -math.inf)
    missing = reaches(p._parameters[0], p._centred.tables, forbidden, p.subsets.forest)
    result = result.masked_fill(wrong.any(-1) | missing, math.inf)
    return result.to(torch.promote_types(p._cast(result).dtype, q._cast(result).dtype))


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
    # The parameter that was given is exact.
    logits = base.logits if bernoulli_is_given_by_logits(base) else probs_to_logits(base.probs)
    return RecursiveCardinality(logits, logits.new_zeros(like.subsets.table_size), like.subsets, validate_args=False)
