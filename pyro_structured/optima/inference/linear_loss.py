"""Learning by losses that are linear in the costs' means."""

__all__ = ["LinearLoss"]

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.foundation.inference.row_state import row_places
from pyro_structured.optima.inference.cost_batch import CostBatch
from pyro_structured.optima.inference.cost_learner import CostLearner
from pyro_structured.optima.inference.cost_start import check_feasible


class LinearLoss(CostLearner):
    r"""Learners with the loss :math:`\langle \bar w, \rho(y) - r \rangle + c` for every row.

    :param model: A Pyro model.
    :param guide: For all latent sites but the costs.
    :param optim: A Pyro optimiser.
    :param str on_nonfinite: As for :class:`Learner`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, on_nonfinite)
        if optim is None:
            raise ValueError("optim: expected an optimiser of pyro.optim, got None: the loss is linear in each step")

    @abstractmethod
    def _moments(self, base: Any, problem: Any, value: Tensor) -> tuple[Tensor, Tensor]:
        """What takes the place of the incidence, r, shape ``(..., *cost_shape)``; and c, shape ``(...)``."""

    @torch.no_grad()
    def _infer(self, batch: CostBatch) -> dict[str, Tensor]:
        """For each row the difference, flattened, and, as the last number, what is added."""
        found = {}
        for site in batch.sites:
            self._check_single(batch, site)
            check_feasible(site, batch.trace, row_places(batch.trace.nodes[site.costs], batch.rows)[0])
            base, optimum = batch.trace.nodes[site.costs]["fn"], batch.trace.nodes[site.optimum]
            problem, value = optimum["fn"].problem, optimum["value"]
            if not problem.is_linear:
                raise NotImplementedError(
                    f"{site.optimum}: expected a problem with a linear objective for {type(self).__name__}, got "
                    f"{type(problem).__name__}; use MCEM"
                )
            moments, added = self._moments(base, problem, value)
            difference = (problem.incidence(value) - moments) * (-1 if problem.maximize else 1)
            flat = difference.flatten(-len(problem.cost_shape))
            found[site.costs] = torch.cat([flat, added.expand(flat.shape[:-1]).unsqueeze(-1)], -1)
        return found

    def _cost_loss(self, costs: Any, optimum: Any, inferred: Tensor) -> Tensor:
        mean: Tensor = costs["fn"].mean.flatten(-len(optimum["fn"].problem.cost_shape))
        return (mean * inferred[..., :-1]).sum(-1) + inferred[..., -1]
