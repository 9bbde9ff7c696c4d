"""Sites other than the optimum that depend on costs."""

__all__ = ["find_dependents", "row_log_prob"]

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_structured.foundation.ops.private_members import is_plate
from pyro_structured.optima.inference.cost_sites import CostSite, optima_of

# Number of draws of the costs with which log-probabilities are compared.
NUM_DRAWS = 5


def find_dependents(model: Callable[..., Any], trace: Any, site: CostSite, args: Any, kwargs: Any) -> list[str]:
    """Names of sites whose log-probabilities change with costs, or have derivatives with respect to them; not optima.

    :param trace: Trace of the model, whose values the latent sites keep.
    """
    values = {name: node["value"].detach() for name, node in trace.iter_stochastic_nodes()}
    optima = optima_of(trace, site.costs)
    sampled = {name for name, node in trace.nodes.items() if node["type"] == "sample"}
    if all(is_plate(trace.nodes[name]["fn"]) for name in sampled - {site.costs, *optima}):
        return []

    def run(costs: Tensor) -> dict[str, Tensor]:
        """Total log-probabilities of all sites that may be dependent, by name."""
        given = poutine.condition(model, data={**values, site.costs: costs})
        again: Any = poutine.trace(given).get_trace(*args, **kwargs)
        nodes = {name: node for name, node in again.nodes.items() if node["type"] == "sample"}
        others = nodes.keys() - {site.costs, *optima}
        again.compute_log_prob(lambda name, _: name in others)
        return {name: nodes[name]["log_prob_sum"] for name in nodes if name in others}

    costs = trace.nodes[site.costs]
    present = costs["value"].detach().requires_grad_()
    with torch.enable_grad():
        totals = run(present)
        dependents = {name for name, total in totals.items() if _has_derivative(total, present)}
    # Functions that are constant almost everywhere have no derivatives, but different values.
    with torch.random.fork_rng(devices=[]):
        for _ in range(NUM_DRAWS):
            changed = run(costs["fn"].sample())
            dependents |= {name for name, total in totals.items() if _differ(total, changed[name])}
    return [name for name in totals if name in dependents]


def _differ(first: Tensor, second: Tensor) -> bool:
    """Whether two log-probabilities differ; nan equals nan."""
    return not torch.equal(first, second) and not bool((first.isnan() & second.isnan()).all())


def _has_derivative(total: Tensor, costs: Tensor) -> bool:
    return (
        total.requires_grad and torch.autograd.grad(total, costs, retain_graph=True, allow_unused=True)[0] is not None
    )


def row_log_prob(trace: Any, name: str, costs: str) -> Tensor:
    """Log-probability of a site, summed within each row of costs; the trace has computed log-probabilities.

    :raises ValueError: if the site is outside of the plates that make the rows.
    """
    node = trace.nodes[name]
    plates = {frame.dim: frame.name for frame in trace.nodes[costs]["cond_indep_stack"] if frame.vectorized}
    inside = {frame.dim for frame in node["cond_indep_stack"] if frame.vectorized}
    if not plates.keys() <= inside:
        raise ValueError(
            f"{name}: expected a site in the plates {sorted(plates.values())}, as it depends on the costs {costs!r}, "
            "whose rows are updated at once"
        )
    log_prob: Tensor = node["log_prob"]
    for dim in range(-log_prob.dim(), 0):
        if dim not in plates:
            log_prob = log_prob.sum(dim, keepdim=True)
    while log_prob.dim() and -log_prob.dim() not in plates:
        log_prob = log_prob.squeeze(0)
    return log_prob
