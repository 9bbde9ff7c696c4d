"""Masks of sites, given by the distribution or by ``poutine.mask``."""

__all__ = ["OWN_MASK", "MaskedSites"]

from collections.abc import Callable
from typing import Any

from pyro.distributions import MaskedDistribution
from pyro.poutine.messenger import Messenger

from pyro_structured.foundation.inference.site_handlers import handler_of
from pyro_structured.foundation.ops.private_members import mask_of

# Key of a node's ``infer`` with the mask of a site whose mask another site has taken over.
OWN_MASK = "_own_mask"


class MaskedSites:
    """A model in which ``fn.mask(...)`` is a mask of the site, as that of ``poutine.mask``.

    Sites that are certain given hidden variables, such as observed optima, have no mask: they are either right or
    wrong, and the mask applies to the density of the hidden variables.

    :param model: A Pyro model.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        with _Masks():
            return self.model(*args, **kwargs)


class _Masks(Messenger):
    def __init__(self) -> None:
        super().__init__()
        self._inherited: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        own = self._inherited.pop(msg["name"], None)
        while isinstance(msg["fn"], MaskedDistribution):
            own = _both(own, mask_of(msg["fn"]))
            msg["fn"] = msg["fn"].base_dist
        msg["mask"] = _both(msg["mask"], own)
        heir = handler_of(msg["fn"]).mask_heir(msg["name"]) if msg["is_observed"] else None
        if heir is not None:
            # The site of the hidden variables, which comes later, will be inside of the same handlers.
            self._inherited[heir] = own
            msg["infer"] = {**msg["infer"], OWN_MASK: msg["mask"]}
            msg["mask"] = None


def _both(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return first & second
