"""Learning by losses that are linear in the costs' means."""

__all__ = ["LinearLoss", "MaxMargin", "PerturbAndMAP"]

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.optima.inference.cost_learner import CostBatch, CostLearner


class LinearLoss(CostLearner):
    r"""Learners with the loss :math:`\langle \bar w, \rho(y) - r \rangle + c` for every row.

    :param model: A Pyro model.
    :param guide: A guide for all latent sites but the costs.
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
        """Rival r of the incidence, shape ``(..., *cost_shape)``, and constant c, shape ``(...)``, of the loss."""

    @torch.no_grad()
    def _infer(self, batch: CostBatch) -> dict[str, Tensor]:
        """For each row the signed difference of incidence and r, flattened, and, last, c; shape ``(..., P + 1)``."""
        coefficients = {}
        for site in batch.sites:
            self._check_single(batch, site)
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
            coefficients[site.costs] = torch.cat(
                [flat, added.to(flat.device).expand(flat.shape[:-1]).unsqueeze(-1)], -1
            )
        return coefficients

    def _cost_loss(self, costs: Any, optimum: Any, inferred: Tensor) -> Tensor:
        mean: Tensor = costs["fn"].mean.flatten(-len(optimum["fn"].problem.cost_shape))
        return (mean * inferred[..., :-1]).sum(-1) + inferred[..., -1]


class MaxMargin(LinearLoss):
    r"""A structured support vector machine on the costs' means: a baseline without probabilities.

    .. math::
        \sum_n \max_{y'} \bigl[\Delta(y_n, y') + \langle \bar w_n, \rho(y_n) - \rho(y') \rangle\bigr], \qquad
        \Delta(y, y') = \langle \rho(y), \rho(y) - \rho(y') \rangle,

    by subgradients; the priors of the latent sites are its regulariser. :math:`\Delta` is the number of parts of y that
    are not in y': for matchings, of rows that are wrong. It can be added to the costs, so the maximum is one call of
    the solver.

    :param model: A Pyro model with observed :class:`~pyro_structured.distributions.RandOM` or
        :class:`~pyro_structured.distributions.Argmin` sites, whose costs have a mean and whose objective is linear.
    :param guide: A guide for all latent sites but the costs, with Delta sites only, as ``AutoDelta``.
    :param optim: A Pyro optimiser.
    :param str on_nonfinite: Reaction to a loss or a gradient that is infinite or not a number: ``"raise"`` a ValueError
        that names the parameter, or ``"skip"`` the step. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    :raises ValueError: if an argument is of another kind; in a step, if an observed optimum is infeasible, or the
        solver cannot handle the means.
    :raises NotImplementedError: in a step, for objectives that are not linear.

    **References**

    Tsochantaridis, Joachims, Hofmann, Altun (2005): Large margin methods for structured and interdependent output
    variables. JMLR 6. Ratliff, Bagnell, Zinkevich (2006): Maximum margin planning. ICML.
    """

    def _moments(self, base: Any, problem: Any, value: Tensor) -> tuple[Tensor, Tensor]:
        own = problem.incidence(value)
        rival = problem.incidence(problem.solve(base.mean + (-own if problem.maximize else own)))
        return rival, (own * (own - rival)).flatten(-len(problem.cost_shape)).sum(-1)


class PerturbAndMAP(LinearLoss):
    r"""Moves the costs' means until predicted optima have the moments of the observed ones.

    .. math::
        \nabla_\psi = \sum_n \frac{\partial \bar w_n}{\partial \psi}
        \Bigl(\rho(y_n) - \frac{1}{K} \sum_{k=1}^K \rho(F(w_{nk}))\Bigr), \qquad
        w_{nk} \sim p(w_n \mid \psi, x_n), \quad \bar w_n = \mathbb{E}[w_n \mid \psi, x_n].

    It needs no costs given optima, only optima of costs; but it is not maximum likelihood. Parameters on which only the
    spread of the costs depends have no gradient; those that move the ends of a support have one by the means.

    :param model: A Pyro model with observed :class:`~pyro_structured.distributions.RandOM` or
        :class:`~pyro_structured.distributions.Argmin` sites, whose costs have a mean and whose objective is linear.
    :param guide: A guide for all latent sites but the costs, with Delta sites only, as ``AutoDelta``.
    :param optim: A Pyro optimiser.
    :param int num_samples: Number of draws K in each step; as many calls of the solver for every row.
    :param str on_nonfinite: Reaction to a loss or a gradient that is infinite or not a number: ``"raise"`` a ValueError
        that names the parameter, or ``"skip"`` the step. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    :raises ValueError: if an argument is of another kind; in a step, if an observed optimum is infeasible.
    :raises NotImplementedError: in a step, for objectives that are not linear.

    **References**

    Papandreou, Yuille (2011): Perturb-and-MAP random fields. ICCV.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim,
        num_samples: int = 50,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, on_nonfinite)
        check_size("num_samples", num_samples)
        self.num_samples = num_samples

    def _moments(self, base: Any, problem: Any, value: Tensor) -> tuple[Tensor, Tensor]:
        costs = base.sample((self.num_samples,))
        moments = problem.incidence(problem.solve(costs)).mean(0)
        return moments, torch.zeros((), dtype=torch.double)
