"""A binary site, as rows that are independent given all other sites."""

__all__ = ["BinarySite"]

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.distributions.independent_parts import entry_constraint
from pyro_structured.foundation.inference.latent_state import later_sites
from pyro_structured.foundation.inference.site_handlers import log_weight

# Densities of rows that are equal but for rounding, relative to their size.
ROUNDING = 1e-3


class BinarySite:
    """Values and densities of the rows of a binary site.

    Rows are indexed by those plates that all later sites of the model share, as only later sites depend on a value.

    :param str name: Name of the site.
    :param trace: Of the model.
    :param model: A Pyro model, conditioned on all other sites.
    :ivar Tensor rows: Present values, shape ``(rows, entries)``.
    :raises ValueError: if the site is not binary.
    """

    def __init__(self, name: str, trace: Any, model: Callable[..., Any], args: Any, kwargs: Any) -> None:
        fn = trace.nodes[name]["fn"]
        if not isinstance(entry_constraint(fn.support), type(constraints.boolean)):
            raise ValueError(
                f"{name}: expected a binary site for BinaryGibbs, whose support is boolean, got {fn}; a category may "
                "be a KSubset(logits, 1), a vector with a single one, and other discrete sites need a kernel of their "
                "own in Gibbs, such as a StepKernel"
            )
        self.name, self._model, self._args, self._kwargs = name, model, args, kwargs
        others = [_plates(node) for _, node in later_sites(trace, name)]
        self._dims = sorted(dim for _, dim in _plates(trace.nodes[name]).intersection(*others))
        self._axes = [dim - len(fn.event_shape) for dim in self._dims]
        self._front = list(range(len(self._dims)))

    def start(self, values: dict[str, Tensor]) -> None:
        """Takes the present values of the kernel's sites."""
        moved = values[self.name].movedim(self._axes, self._front)
        self._shape = moved.shape
        self.rows = moved.reshape(moved.shape[: len(self._axes)].numel(), -1)
        self._values = values
        trace = self._run(values)
        self._node = trace.nodes[self.name]
        self._densities = self._prior(self.rows) + self._likelihood(trace)

    def value(self, rows: Tensor) -> Tensor:
        """Rows as a value of the site."""
        return rows.reshape(self._shape).movedim(self._front, self._axes)

    def move(self, proposed: Tensor) -> Tensor:
        """Moves each row to a proposed one or not: a Metropolis step for a symmetric proposal.

        :return: Which rows moved.
        """
        prior = self._prior(proposed)
        possible = prior > -torch.inf
        if not bool(possible.any()):
            return possible
        tried = torch.where(possible.unsqueeze(-1), proposed, self.rows)
        densities = prior + self._likelihood(self._run({**self._values, self.name: self.value(tried)}))
        noise = torch.rand(possible.shape, dtype=torch.double, device=possible.device).log()
        moved = possible & (noise < densities - self._densities)
        self.rows = torch.where(moved.unsqueeze(-1), proposed, self.rows)
        self._densities = torch.where(moved, densities, self._densities)
        return moved

    def finish(self) -> dict[str, Tensor]:
        """The new values.

        :raises ValueError: if rows that moved at the same time depend on each other.
        """
        values = {**self._values, self.name: self.value(self.rows)}
        if len(self.rows) > 1:
            error = self._prior(self.rows) + self._likelihood(self._run(values)) - self._densities
            if bool((error.abs() > ROUNDING * (1 + self._densities.abs())).any()):
                raise ValueError(
                    f"{self.name}: expected rows of its plates to be independent given all other sites, as plates say, "
                    f"got densities that change by {float(error.abs().max()):.2g} with other rows"
                )
        return values

    def _run(self, values: dict[str, Tensor]) -> Any:
        model: Any = poutine.trace(poutine.condition(self._model, data=values))
        return model.get_trace(*self._args, **self._kwargs)

    def _prior(self, rows: Tensor) -> Tensor:
        """Log-densities given earlier sites, by the distribution that is there already."""
        log_prob = log_weight(self._node["fn"], self.value(rows))
        return self._sum(scale_and_mask(log_prob, self._node["scale"], self._node["mask"]))

    def _likelihood(self, trace: Any) -> Tensor:
        """Log-densities of all later sites."""
        later = dict(later_sites(trace, self.name))
        trace.compute_log_prob(lambda name, _: name in later)
        found = torch.zeros(len(self.rows), dtype=torch.double, device=self.rows.device)
        return found + sum(self._sum(node["log_prob"]) for node in later.values())

    def _sum(self, log_probs: Tensor) -> Tensor:
        """Sums over all axes but those of rows, shape ``(rows,)``."""
        kept = [dim + log_probs.dim() for dim in self._dims]
        summed = [axis for axis in range(log_probs.dim()) if axis not in kept]
        exact = log_probs.double()
        return (exact.sum(summed) if summed else exact).reshape(-1)


def _plates(node: Any) -> set[tuple[str, int]]:
    return {(frame.name, frame.dim) for frame in node["cond_indep_stack"] if frame.vectorized}
