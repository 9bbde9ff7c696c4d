"""Maximum likelihood for models that observe optima, by Monte Carlo expectation maximisation."""

__all__ = ["MCEM"]

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.foundation.inference.gibbs import StepKernel
from pyro_structured.foundation.inference.live_model import LiveModel
from pyro_structured.foundation.inference.row_state import RowState, row_places
from pyro_structured.foundation.structures.argument_checks import check_choice, check_flag, check_size
from pyro_structured.optima.inference.constrained_slice import ConstrainedSlice
from pyro_structured.optima.inference.cost_density import cost_log_density
from pyro_structured.optima.inference.cost_learner import CostBatch, CostLearner
from pyro_structured.optima.inference.cost_start import feasible_costs
from pyro_structured.optima.inference.observed_optima import observed_optima


class _CostChains(RowState):
    """The present costs of every row that was seen so far, in double precision.

    A row whose observed optimum is another one than before starts anew, as costs have to be in its inverse set.
    """

    def read_costs(self, batch: CostBatch) -> dict[str, Tensor]:
        """Costs inside the inverse sets of the batch's rows: where they were last, or new ones.

        :raises ValueError: if an observed optimum is infeasible.
        """
        costs = {}
        for site in batch.sites:
            places, sizes = row_places(batch.trace.nodes[site.costs], batch.rows)
            observed = _observed(batch, site.costs)
            shape = batch.trace.nodes[site.costs]["value"].shape[len(sizes) :]
            last, started = self.read(site.costs, places, sizes, shape, observed)
            if last is not None and bool(started.all()):
                costs[site.costs] = last
                continue
            new = feasible_costs(site, batch.trace, places)
            if last is not None:
                rows = started.reshape(started.shape + (1,) * (new.dim() - started.dim()))
                new = torch.where(rows, last, new)
            costs[site.costs] = new
        return costs

    def write_costs(self, batch: CostBatch, costs: dict[str, Tensor]) -> None:
        """Keeps costs of the batch's rows."""
        for site in batch.sites:
            places, sizes = row_places(batch.trace.nodes[site.costs], batch.rows)
            self.write(site.costs, places, sizes, costs[site.costs], _observed(batch, site.costs))


def _observed(batch: CostBatch, costs: str) -> Tensor:
    """Observed optima of costs, one for every row of the costs, shape ``(..., *event_shape)``."""
    problem, value = observed_optima(batch.trace, costs)
    drawn = batch.trace.nodes[costs]["value"]
    rows = drawn.shape[: drawn.dim() - len(problem.cost_shape)]
    return value.expand(rows + value.shape[value.dim() - len(problem.event_shape) :])


OBJECTIVES = ("mean of logs", "log of mean")


class MCEM(CostLearner):
    r"""Monte Carlo expectation maximisation: parameters of models whose random costs are known by their optima only.

    .. math::
        \psi^{(t+1)} = \arg\max_\psi \log p(\psi) + \sum_n \frac{1}{K} \sum_{k=1}^K \log p(w_{nk} \mid \psi, x_n),
        \qquad w_{nk} \sim p(w_n \mid \psi^{(t)}, x_n, F(w_n) = y_n).

    The E-step goes on with the Markov chain of each row where it was: K sweeps of the kernel inside the inverse set,
    which does not depend on the parameters. The M-step is one step of the optimiser, or of several; without an
    optimiser it goes on to convergence, as in classical EM. With one step of the optimiser, this is stochastic gradient
    ascent on :math:`\log p(\psi) + \sum_n \log P(y_n \mid \psi, x_n)` by Fisher's identity, which is
    :math:`\nabla \log P(y) = \mathbb{E}[\nabla \log p(w) \mid F(w) = y]`: the default, and usually the fastest.

    Most costs may have little to do with an optimum, as those of the edges far away from a path: they make the gradient
    noisy, but not better. With a control variate, it is

    .. math::
        \frac{1}{K} \sum_k \nabla \log p(w_{nk} \mid \psi, x_n) - \nabla \log p(w'_{nk} \mid \psi, x_n),
        \qquad w'_{nk} \sim p(w_n \mid \psi, x_n),

    where w' are draws without the condition, made of the same random numbers. Their gradient is zero in the mean, and
    costs that the optimum does not restrict are equal in both and cancel.

    Plates may be subsampled: chains are kept for all rows, and continue when a row is seen again; they start anew where
    its observed optimum is another one than before.

    :param model: A Pyro model with observed :class:`~pyro_structured.distributions.RandOM` or
        :class:`~pyro_structured.distributions.Argmin` sites.
    :param guide: A guide for all latent sites but the costs, with Delta sites only, as ``AutoDelta``: their posterior
        mode is found; or an empty function for models with parameters only.
    :param optim: A Pyro optimiser, or ``None``: the M-step goes on to convergence, or 100 iterations of L-BFGS.
    :param kernel: A kernel that moves costs, built on the same model; ``None``: ``ConstrainedSlice(model)``.
    :param int num_samples: Number of draws K of each E-step.
    :param int num_gradient_steps: Steps of the optimiser in each M-step.
    :param str objective: ``"mean of logs"``, as above; or ``"log of mean"``: Equation 12 of the paper, with
        :math:`\log \frac{1}{K} \sum_k p(w_{nk} \mid \psi)` in place of the mean of logarithms. Without importance
        weights, that is EM for K = 1 only, and worse for larger K.
    :param bool control_variate: Whether to use the control variate, for one gradient step of the standard objective
        with the standard kernel, and independent costs that no other sites depend on. The loss of a step is a
        difference then, which says nothing about the fit.
    :param str on_nonfinite: Reaction to a loss or a gradient that is infinite or not a number: ``"raise"`` a ValueError
        that names the parameter, or ``"skip"`` the step. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    :raises ValueError: if an argument is of another kind, or does not go with the control variate; in a step, if an
        observed optimum is infeasible, with the number of its row.
    :raises NotImplementedError: in a step, if the guide draws; if a parameter moves the ends of the costs' support,
        where Fisher's identity does not hold; for ``"log of mean"``, if sites other than the optima depend on the
        costs; or for costs that the control variate does not go with.

    **References**

    Wei, Tanner (1990): A Monte Carlo implementation of the EM algorithm and the poor man's data augmentation
    algorithms. JASA 85.

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 4.1, Equations
    11 and 12.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro_structured.distributions import RandOM
        >>> from pyro_structured.structures import TopK
        >>> def model(y):
        ...     quality = pyro.param("quality", torch.zeros(3))
        ...     with pyro.plate("rows", len(y)):
        ...         base = dist.Normal(quality, 1.0).to_event(1)
        ...         pyro.sample("y", RandOM(base, TopK(3, 1, maximize=True)), obs=y)
        >>> y = torch.eye(3)[[0, 0, 0, 0, 1, 1, 2]]
        >>> pyro.clear_param_store()
        >>> learner = MCEM(model, lambda y: None, pyro.optim.Adam({"lr": 0.1}))
        >>> losses = [learner.step(y) for _ in range(100)]
        >>> pyro.param("quality").argsort(descending=True)
        tensor([0, 1, 2])
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim | None,
        kernel: StepKernel | None = None,
        num_samples: int = 1,
        num_gradient_steps: int = 1,
        objective: str = "mean of logs",
        control_variate: bool = False,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, on_nonfinite)
        kernel = ConstrainedSlice(model) if kernel is None else kernel
        if not isinstance(kernel, StepKernel) or not kernel.moves_costs or kernel.model is not model:
            raise ValueError(f"kernel: expected one that moves costs, built on the same model, got {kernel!r}")
        check_size("num_samples", num_samples)
        check_size("num_gradient_steps", num_gradient_steps)
        check_choice("objective", objective, OBJECTIVES)
        check_flag("control_variate", control_variate)
        self.kernel, self.num_samples, self.num_gradient_steps = kernel, num_samples, num_gradient_steps
        self.objective, self.control_variate = objective, control_variate
        if control_variate:
            self._check_control_variate()
        self._chains: _CostChains = _CostChains()

    def _check_control_variate(self) -> None:
        first_order = self.optim is not None and self.num_gradient_steps == 1 and self.objective == OBJECTIVES[0]
        if not first_order or not isinstance(self.kernel, ConstrainedSlice):
            raise ValueError(
                "control_variate: expected an optimiser, num_gradient_steps=1, the objective 'mean of logs' and a "
                f"ConstrainedSlice with it, got {self.optim!r}, {self.num_gradient_steps}, {self.objective!r} and "
                f"{self.kernel!r}"
            )

    @torch.no_grad()
    def _infer(self, batch: CostBatch) -> dict[str, Tensor]:
        """Draws of the costs, shape ``(K, ..., *cost_shape)``; with a control variate, K more without the condition."""
        costs = self._chains.read_costs(batch)
        live = LiveModel(self._named, batch.others, smooth=False)
        self.kernel.prepare(live, list(costs), 0, batch.args, batch.kwargs)
        if self.control_variate and isinstance(self.kernel, ConstrainedSlice):
            draws, priors = self.kernel.steps_with_prior(costs, self.num_samples)
        else:
            draws, priors = self.kernel.steps(costs, self.num_samples), []
        self._chains.write_costs(batch, draws[-1])
        return {name: torch.stack([draw[name] for draw in draws + priors]) for name in costs}

    def _improve(self, batch: CostBatch, inferred: dict[str, Tensor]) -> float:
        if self.num_gradient_steps == 1:
            return super()._improve(batch, inferred)
        learned, optim = self._state.learned(), self._state.optim_state()
        try:
            losses = [super(MCEM, self)._improve(batch, inferred) for _ in range(self.num_gradient_steps)]
        except BaseException:
            self._state.put_back(learned)
            self._state.load_optim(optim)
            raise
        return losses[0]

    def _cost_loss(self, costs: Any, optimum: Any, inferred: Tensor) -> Tensor:
        log_density = cost_log_density(costs, inferred)
        if self.control_variate:
            given, prior = log_density.chunk(2)
            return (prior - given).mean(0)
        if self.objective == "mean of logs":
            return -log_density.mean(0)
        return math.log(len(log_density)) - log_density.logsumexp(0)

    def _completions(self, batch: CostBatch, inferred: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        if not batch.has_dependents or self.objective == "log of mean":
            return super()._completions(batch, inferred)
        dtypes = {name: batch.trace.nodes[name]["value"].dtype for name in inferred}
        return [{name: draws[k].to(dtypes[name]) for name, draws in inferred.items()} for k in range(self.num_samples)]
