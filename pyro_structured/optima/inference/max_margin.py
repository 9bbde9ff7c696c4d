"""Structured support vector machines for models that observe optima."""

__all__ = ["MaxMargin"]

from typing import Any

from torch import Tensor

from pyro_structured.optima.inference.linear_loss import LinearLoss


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
    :param guide: For all latent sites but the costs, with Delta sites only, as ``AutoDelta``.
    :param optim: A Pyro optimiser.
    :param str on_nonfinite: What a step does if the loss or a gradient is infinite or not a number: ``"raise"`` a
        ValueError that names the parameter, or ``"skip"`` it. Either way nothing is changed but random numbers.
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
        found = problem.incidence(problem.solve(base.mean + (-own if problem.maximize else own)))
        return found, (own * (own - found)).flatten(-len(problem.cost_shape)).sum(-1)
