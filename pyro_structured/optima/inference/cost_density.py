"""Densities of given costs as functions of parameters."""

__all__ = ["cost_log_density"]

from typing import Any

import pyro
from torch import Tensor

from pyro_structured.foundation.distributions.independent_parts import unmasked
from pyro_structured.foundation.distributions.support_bounds import moving_parameters


def cost_log_density(node: Any, costs: Tensor) -> Tensor:
    r"""The log-density of costs that were inferred with the present parameters, for learners that make it larger.

    Where parameters move the ends of a support, the mean gradient of the log-density is not that of
    :math:`\log P(y)`: it lacks the mass that crosses the ends. The smaller the support around given costs, the larger
    is their density.

    :param node: Node of the costs in a trace.
    :raises NotImplementedError: if a parameter moves the ends of the support, with its name.
    """
    names = moving_parameters(node["fn"], dict(pyro.get_param_store().named_parameters()))
    if names:
        raise NotImplementedError(
            f"{node['name']}: expected costs between ends that no parameter moves, as learning from given costs does "
            f"not see what is gained or lost at the ends, got {type(unmasked(node['fn'])).__name__} costs, whose ends "
            f"depend on {', '.join(map(repr, names))}; use SVI where log_prob is exact, PerturbAndMAP, which needs "
            "their means only, or ends that are fixed"
        )
    log_density: Tensor = node["fn"].log_prob(costs)
    return log_density
