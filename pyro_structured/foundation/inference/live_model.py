"""Models some of whose sites have values that change from call to call."""

__all__ = ["LiveModel", "NamedCosts"]

from collections.abc import Callable, Sequence
from typing import Any

from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_structured.optima.distributions.argmin import Argmin
from pyro_structured.optima.inference.costs_reparam import named_costs
from pyro_structured.optima.structures.problem import Problem


class NamedCosts:
    """A model in which the costs of every randomized optimum are a site; picklable, and called like the model.

    :param model: A Pyro model.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        with _CostNames():
            return self.model(*args, **kwargs)


class _CostNames(Messenger):
    """As ``poutine.reparam``, but initialisation sees the costs, not the discrete optimum that it could not handle."""

    def _pyro_sample(self, msg: Any) -> None:
        reparam: Any = named_costs(msg)
        if reparam is not None:
            msg.update(reparam.apply({name: msg[name] for name in ("name", "fn", "value", "is_observed")}))


class LiveModel:
    """A model conditioned on the values that a dictionary has at the time of the call.

    :param model: A Pyro model.
    :param dict values: Values of sites; whoever changes them changes the model.
    :param bool smooth: Leaves out optima of costs, for kernels that move neither costs nor optima: as long as their
        problems are the same in all calls, the optimum is right, and need not be computed.
    :param constant: Names of sites that are left out too, as their densities do not change.
    """

    def __init__(
        self, model: Callable[..., Any], values: dict[str, Tensor], smooth: bool, constant: Sequence[str] = ()
    ) -> None:
        self.model, self.values, self.smooth, self.constant = model, values, smooth, frozenset(constant)
        # Those that have not been different in any call; None for the others.
        self._problems: dict[str, Problem | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        model = poutine.condition(self.model, data=self.values)
        return poutine.block(model, hide_fn=self._hides)(*args, **kwargs)

    def _hides(self, site: Any) -> bool:
        is_optimum = site["type"] == "sample" and isinstance(site["fn"], Argmin)
        return site["name"] in self.constant or (self.smooth and is_optimum and self._is_fixed(site))

    def _is_fixed(self, site: Any) -> bool:
        problem = site["fn"].problem
        first = self._problems.setdefault(site["name"], problem)
        if first is not problem and first != problem:
            self._problems[site["name"]] = None
        return self._problems[site["name"]] is not None
