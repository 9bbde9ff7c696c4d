"""Kullback-Leibler divergences, registered with torch."""

__all__: list[str] = []

import math

import torch
from torch import Tensor
from torch.distributions.kl import register_kl

from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree


@register_kl(JunctionTree, JunctionTree)  # type: ignore[untyped-decorator]
def _kl_junction_tree(p: JunctionTree, q: JunctionTree) -> Tensor:
    if p.tree.cardinalities != q.tree.cardinalities:
        raise NotImplementedError(
            f"kl_divergence: expected variables with as many states, got {p.tree.cardinalities} and "
            f"{q.tree.cardinalities}"
        )
    log_q, allowed = q._leveled[0], q._arguments[1]
    if p.tree == q.tree:
        # Both exponents are subtracted before they are summed.
        probs, log_p, constant = p._supported_beliefs.clique_marginals, p._leveled[0], -p._supported_log_z
    else:
        probs = q.tree.pack([p._probabilities_of(clique) for clique in q.tree.cliques])
        log_p, constant = torch.zeros_like(log_q), -p._exact_entropy
    energy = (probs * (log_p.masked_fill(probs == 0, 0.0) - log_q.masked_fill(log_q == -math.inf, 0.0))).sum(-1)
    result = energy + constant + q._supported_log_z
    missing = ((probs > 0) & (log_q == -math.inf)).any(-1)
    if allowed.shape[-1]:
        excluded = q._unflatten(allowed) == -math.inf
        missing = missing | ((p._supported_beliefs.marginals > 0) & excluded).any(-1)
    result = result.masked_fill(missing, math.inf)
    return result.to(torch.promote_types(p._cast(result).dtype, q._cast(result).dtype))
