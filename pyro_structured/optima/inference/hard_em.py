"""Hard expectation maximisation for models that observe optima."""

__all__ = ["HardEM"]

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.foundation.inference.row_state import row_places
from pyro_structured.optima.inference.cost_batch import CostBatch
from pyro_structured.optima.inference.cost_density import cost_log_density
from pyro_structured.optima.inference.cost_learner import CostLearner
from pyro_structured.optima.inference.cost_start import check_feasible
from pyro_structured.optima.inference.likeliest_costs import likeliest_costs


class HardEM(CostLearner):
    r"""Hard EM with a margin: like :class:`MCEM`, with the likeliest costs in place of draws (Algorithm 1).

    .. math::
        w_n = \arg\max_{w,\, \xi \ge 0} \; \log p(w \mid \psi, x_n) + C \xi \quad \text{subject to} \quad
        f_w(y_n) \le f_w(y') - \xi \quad \text{for all } y' \ne y_n.

    Without a margin the likeliest costs lie on the boundary of the inverse set, and the next parameters put much mass
    outside. The paper has :math:`\lVert w - \hat w \rVert^2` in place of :math:`-\log p(w)`: for normal costs of one
    scale s, its C is :math:`2 s^2` times this one.

    The quadratic programs are solved by cutting planes, one row after the other, with the problem's
    ``second_best`` as separation oracle; the constraint of a margin is that f is linear. Costs must be independent
    normal or truncated normal, or jointly normal.

    :param model: A Pyro model with observed :class:`~pyro_structured.distributions.RandOM` or
        :class:`~pyro_structured.distributions.Argmin` sites.
    :param guide: For all latent sites but the costs, with Delta sites only, as ``AutoDelta``.
    :param optim: A Pyro optimiser, of which the M-step is one step; or ``None``: the M-step goes on to convergence,
        or 100 iterations of L-BFGS.
    :param float margin: C, finite and at least 0. It pushes costs without bounds away by up to C s standard deviations
        s, and locations follow. Learn no scale: it grows without end where C s is large, and shrinks to zero elsewhere.
    :param str on_nonfinite: What a step does if the loss or a gradient is infinite or not a number: ``"raise"`` a
        ValueError that names the parameter, or ``"skip"`` it. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    :raises ValueError: if an argument is of another kind; in a step, if an observed optimum is infeasible, with the
        number of its row, or if the margin pushes costs without bounds by more than 1000 standard deviations.
    :raises NotImplementedError: in a step, for costs and problems to which it does not apply, and for costs between
        ends that a parameter moves.
    :raises ImportError: in a step, without the package clarabel: ``pip install 'pyro-structured[learning]'``.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 4.2, Algorithm
    1, Equations 13 and 14, where the right-hand side of Equation 14 has to be :math:`f_w(y')`.

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
        >>> pyro.clear_param_store()
        >>> learner = HardEM(model, lambda y: None, None, margin=1.0)
        >>> losses = [learner.step(torch.eye(3)[[0, 0, 0, 0, 1, 1, 2]]) for _ in range(3)]
        >>> pyro.param("quality").argsort(descending=True)
        tensor([0, 1, 2])
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim | None,
        margin: float = 1.0,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, on_nonfinite)
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin < math.inf:
            raise ValueError(f"margin: expected a finite number of at least 0, got {margin!r}")
        self.margin = float(margin)

    @torch.no_grad()
    def _infer(self, batch: CostBatch) -> dict[str, Tensor]:
        found = {}
        for site in batch.sites:
            self._check_single(batch, site)
            check_feasible(site, batch.trace, row_places(batch.trace.nodes[site.costs], batch.rows)[0])
            base, optimum = batch.trace.nodes[site.costs]["fn"], batch.trace.nodes[site.optimum]
            shape = base.batch_shape
            value = optimum["value"].expand(shape + optimum["fn"].event_shape)
            found[site.costs] = likeliest_costs(base, optimum["fn"].problem.expand(shape), value, self.margin)
        return found

    def _cost_loss(self, costs: Any, optimum: Any, inferred: Tensor) -> Tensor:
        return -cost_log_density(costs, inferred)
