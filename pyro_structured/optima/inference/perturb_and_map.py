"""Moment matching for models that observe optima."""

__all__ = ["PerturbAndMAP"]

from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.optima.inference.linear_loss import LinearLoss


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
    :param guide: For all latent sites but the costs, with Delta sites only, as ``AutoDelta``.
    :param optim: A Pyro optimiser.
    :param int num_samples: Number of draws K in each step; as many calls of the solver for every row.
    :param str on_nonfinite: What a step does if the loss or a gradient is infinite or not a number: ``"raise"`` a
        ValueError that names the parameter, or ``"skip"`` it. Either way nothing is changed but random numbers.
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
        found = problem.incidence(problem.solve(costs)).mean(0)
        return found, torch.zeros((), dtype=torch.double)
