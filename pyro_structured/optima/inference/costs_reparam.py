"""Costs of a randomized optimum as a sample site of their own."""

__all__ = ["CostsReparam", "costs_name"]

from typing import Any

import pyro
import pyro.distributions as dist
from pyro.infer.reparam.reparam import Reparam

from pyro_structured.foundation.structures.representation import Represented
from pyro_structured.optima.distributions.argmin import Argmin
from pyro_structured.optima.distributions.randomized_optimum import RandOM
from pyro_structured.optima.inference.cost_sites import UNSEEN_ROWS


class CostsReparam(Represented, Reparam):
    """Rewrites a :class:`~pyro_structured.distributions.RandOM` site as latent costs and the optimum for these costs.

    The site ``y`` gets a companion ``y_costs``, drawn from its base distribution. If ``y`` is observed, it stays so, as
    an :class:`~pyro_structured.distributions.Argmin` of the costs; otherwise it is a deterministic function of them.
    :class:`ConstrainedSlice` applies it by itself.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Equation 11.

    Example::

        >>> import torch
        >>> from pyro_structured.structures import Matching
        >>> def model():
        ...     pyro.sample("y", RandOM(dist.Normal(torch.zeros(2, 2), 1.0).to_event(2), Matching(2)))
        >>> named = pyro.poutine.reparam(model, config={"y": CostsReparam()})
        >>> list(pyro.poutine.trace(named).get_trace().stochastic_nodes)
        ['y_costs']
    """

    def apply(self, msg: Any) -> Any:
        """New distribution, value and status of the site, after its costs have been sampled."""
        name, fn, value = msg["name"], msg["fn"], msg["value"]
        if not isinstance(fn, RandOM):
            raise ValueError(
                f"{name}: expected a RandOM site, neither masked nor declared an event, got {fn}; {UNSEEN_ROWS}"
            )
        costs = pyro.sample(costs_name(name), fn.base.expand(fn.batch_shape))
        optimum: Any = Argmin(costs, fn.problem, validate_args=False)
        if not msg["is_observed"]:
            value = optimum.mode
            optimum = dist.Delta(value, event_dim=len(fn.event_shape)).mask(False)
        return {"fn": optimum, "value": value, "is_observed": True}


def costs_name(name: str) -> str:
    """Name of the site of an optimum's costs."""
    return f"{name}_costs"
