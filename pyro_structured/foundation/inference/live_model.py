"""Models some of whose sites have values that change from call to call."""

__all__ = ["LiveModel", "NamedLatents"]

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_structured.foundation.distributions.independent_parts import unmasked
from pyro_structured.foundation.inference.site_handlers import handler_of


class NamedLatents:
    """A model in which hidden variables of its sites are sites of their own, such as the costs of randomized optima;
    picklable, and called like the model.

    :param model: A Pyro model.
    :param summed_sites: Names of sites that stay as they are, and sum their hidden variables out.
    """

    def __init__(self, model: Callable[..., Any], summed_sites: Iterable[str] = ()) -> None:
        self.model, self.summed_sites = model, frozenset(summed_sites)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        with _LatentNames(self.summed_sites):
            return self.model(*args, **kwargs)


class _LatentNames(Messenger):
    """Like ``poutine.reparam``, but initialisation sees the hidden variables, not the sites that are certain given
    them.
    """

    def __init__(self, summed_sites: frozenset[str]) -> None:
        super().__init__()
        self._summed_sites = summed_sites

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self._summed_sites:
            return
        fn = unmasked(msg["fn"])
        reparam: Any = handler_of(fn).reparam(fn)
        if reparam is not None:
            msg.update(reparam.apply({name: msg[name] for name in ("name", "fn", "value", "is_observed")}))


class LiveModel:
    """A model conditioned on the values that a dictionary has at the time of the call.

    :param model: A Pyro model.
    :param dict values: Values of sites, by name; changes of this dictionary change the model.
    :param bool smooth: Whether to leave out sites that are certain given others, such as optima given their costs, for
        kernels that move neither: their densities need not be computed as long as they depend on the same objects in
        all calls.
    :param constant: Names of further sites that are left out because their densities do not change.
    """

    def __init__(
        self, model: Callable[..., Any], values: dict[str, Tensor], smooth: bool, constant: Sequence[str] = ()
    ) -> None:
        self.model, self.values, self.smooth, self.constant = model, values, smooth, frozenset(constant)
        # Results of SiteHandler.constant that have been the same in all calls, by site; None where they have differed.
        self._constants: dict[str, object | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        model = poutine.condition(self.model, data=self.values)
        return poutine.block(model, hide_fn=self._hides)(*args, **kwargs)

    def _hides(self, site: Any) -> bool:
        return site["name"] in self.constant or (self.smooth and site["type"] == "sample" and self._is_fixed(site))

    def _is_fixed(self, site: Any) -> bool:
        constant = handler_of(site["fn"]).constant(site["fn"])
        if constant is None:
            return False
        first = self._constants.setdefault(site["name"], constant)
        if first is not constant and first != constant:
            self._constants[site["name"]] = None
        return self._constants[site["name"]] is not None
