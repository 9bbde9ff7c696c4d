"""The no-U-turn sampler for parameters of costs that are summed out."""

__all__ = ["MarginalNUTS"]

from collections.abc import Callable, Iterable
from typing import Any

from pyro.infer import NUTS


class MarginalNUTS(NUTS):
    """NUTS with the exact log-probabilities of observed optima, in place of densities of their costs.

    As a block of :class:`Gibbs`, it leaves the distribution of its sites invariant in which these costs are summed out:
    they have to be drawn anew, whatever they were, before any other kernel looks at them.

    :param model: A Pyro model.
    :param summed_out: Names of the observed :class:`~pyro_structured.distributions.RandOM` sites.
    """

    def __init__(self, model: Callable[..., Any], summed_out: Iterable[str]) -> None:
        super().__init__(model)  # type: ignore[no-untyped-call]
        self.summed_out = frozenset(summed_out)
