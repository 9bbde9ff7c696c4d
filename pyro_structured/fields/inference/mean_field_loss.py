"""Learning fields through the mean-field approximation that predicts."""

__all__ = ["LOSSES", "MeanFieldLoss"]

from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.inference.field_learner import FieldLearner, LabelLoss, check_loss, checked_losses
from pyro_structured.fields.ops.label_losses import intersection_over_union_loss
from pyro_structured.foundation.structures.argument_checks import check_size

LOSSES = ("intersection_over_union", "logistic")


class MeanFieldLoss(FieldLearner):
    r"""Minimises a loss of the mean-field approximation of observed fields; a learner with steps like those of ``SVI``.

    .. math::
        L = \sum_n \ell(q_n, y^*_n) - \log p(\text{other sites}),

    where :math:`q_n` are the probabilities of :meth:`PatternCRF.mean_field_logits` after a few rounds of updates, and
    derivatives go through all rounds. Nothing is sampled, so that gradients have no noise, and few steps are needed.
    The learned parameters make these few rounds predict well; they are neither a maximum of the likelihood nor a
    minimum of the expected loss, and probabilities that are computed in other ways may fit worse than before.

    :param model: A Pyro model with observed :class:`~pyro_structured.distributions.PatternCRF`,
        :class:`~pyro_structured.distributions.DeepPatternCRF`, :class:`~pyro_structured.distributions.GridCRF` or
        :class:`~pyro_structured.distributions.RBM` sites, whose parameters may be anything that Pyro learns:
        ``pyro.param``, ``pyro.module``, latent sites.
    :param guide: A guide for all latent sites, with Delta sites only, as ``AutoDelta``.
    :param optim: A Pyro optimiser; or ``None``: a step minimises by L-BFGS, to convergence or 100 iterations.
    :param loss: ``"intersection_over_union"``: one minus :math:`\sum_i q_i y_i / \sum_i (q_i + y_i - q_i y_i)`, which
        has no gradient where all labels are 0; ``"logistic"``: minus the mean log-probability of the labels under q; or
        a differentiable function of probabilities and observed labels, both of shape ``batch_shape + event_shape``,
        that returns finite losses of shape ``batch_shape``.
    :param int num_rounds: Number of rounds of updates, at least 1.
    :param str on_nonfinite: Action of a step whose loss or gradient is infinite or not a number: ``"raise"`` a
        ValueError that names the parameter, or ``"skip"`` the step. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    :raises ValueError: if an argument is of another kind; in a step, if an observed value has no probability, with the
        number of its row, or if losses are not finite or of another shape.
    :raises NotImplementedError: in a step, if a penalty is +inf.

    A step costs O(num_rounds·J·D) for each row, and returns the sum of losses over rows.

    **References**

    Domke (2013): Learning graphical model parameters with approximate marginal inference. IEEE Transactions on Pattern
    Analysis and Machine Intelligence 35(10).

    Example::

        >>> import pyro, torch
        >>> from pyro_structured.distributions import GridCRF
        >>> from pyro_structured.structures import Grid
        >>> grid = Grid(6, 6)
        >>> truth = torch.zeros(20, 6, 6)
        >>> truth[:, 1:5, 1:5] = 1.0
        >>> pyro.set_rng_seed(0)
        >>> pixels = truth + 0.5 * torch.randn(20, 6, 6)
        >>> def model(x, y):
        ...     scale, bias = pyro.param("scale", torch.tensor(1.0)), pyro.param("bias", torch.tensor(0.0))
        ...     penalty = pyro.param("penalty", torch.tensor(0.1))
        ...     with pyro.plate("images", len(x)):
        ...         field = GridCRF(scale * (x - 0.5) + bias, penalty.expand(grid.num_edges), grid)
        ...         pyro.sample("y", field, obs=y)
        >>> pyro.clear_param_store()
        >>> learner = MeanFieldLoss(model, lambda x, y: None, pyro.optim.Adam({"lr": 0.1}))
        >>> losses = [learner.step(pixels, truth) for _ in range(100)]
        >>> losses[-1] < 0.5 * losses[0]
        True
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim | None,
        loss: str | LabelLoss = "intersection_over_union",
        num_rounds: int = 5,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, on_nonfinite)
        check_loss(loss, LOSSES)
        check_size("num_rounds", num_rounds)
        self.loss, self.num_rounds = loss, num_rounds

    def _field_loss(self, field: FieldDistribution, value: Tensor, samples: Tensor | None) -> Tensor:
        if not field.value_dtype.is_floating_point:
            raise NotImplementedError(
                "model: expected PatternCRF, GridCRF, RBM or DeepPatternCRF sites, as mean-field updates know two "
                f"labels only, got {type(field).__name__}; PseudoLikelihood, ContrastiveDivergence and ExpectedLoss "
                "take any number"
            )
        logits = field.mean_field_logits(self.num_rounds)
        if not isinstance(self.loss, str):
            losses = checked_losses(self.loss, logits.sigmoid(), value, field.batch_shape)
            if logits.requires_grad and not losses.requires_grad:
                raise ValueError("loss: expected a differentiable function of the probabilities, got another one")
            return losses
        if self.loss == "intersection_over_union":
            return intersection_over_union_loss(logits.sigmoid(), value, len(field.event_shape))
        known = logits.isinf()
        cross_entropies = torch.nn.functional.softplus((1 - 2 * value) * logits.masked_fill(known, 0.0))
        return cross_entropies.masked_fill(known, 0.0).flatten(len(field.batch_shape)).mean(-1)
