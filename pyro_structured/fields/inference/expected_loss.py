"""Learning fields that predict with a small loss."""

__all__ = ["ExpectedLoss", "expected_loss"]

from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.inference.chain_learner import ChainLearner
from pyro_structured.fields.inference.field_learner import LabelLoss, check_loss, checked_losses
from pyro_structured.fields.inference.field_sites import random_labels
from pyro_structured.fields.ops.label_losses import hamming_loss, intersection_over_union_loss
from pyro_structured.foundation.structures.argument_checks import check_size


class ExpectedLoss(ChainLearner):
    r"""Minimises the expected loss of labels drawn from observed fields; a learner with steps like those of ``SVI``.

    .. math::
        L = \sum_n \mathbb{E}_{y \sim p(\cdot \mid x_n)}[\ell(y, y^*_n)] - \log p(\text{other sites}), \qquad
        \nabla \mathbb{E}[\ell] \approx \frac{1}{C - 1} \sum_{c=1}^C \Bigl(\ell(y_c, y^*) - \frac{1}{C} \sum_{c'}
        \ell(y_{c'}, y^*)\Bigr) \nabla s(y_c),

    where s is the unnormalised log-probability, hidden units summed out. The gradient of log Z, and of whatever is the
    same for all labels, cancels. It is unbiased if the C chains of each row are independent samples of its field;
    chains go on from step to step, and are nearly that as long as the parameters change slowly. Unlike likelihoods, the
    loss measures predictions, and labels far from the observed ones are learned from too.

    A field learned in another way is a good start, as the loss has many local optima. Steps that are too large ruin it:
    :class:`EarlyStopping` goes back to the best parameters on other data, and keeps the start if none are better.

    :param model: A Pyro model with observed :class:`~pyro_structured.distributions.PatternCRF`,
        :class:`~pyro_structured.distributions.GridCRF`, :class:`~pyro_structured.distributions.RBM`,
        :class:`~pyro_structured.distributions.DeepPatternCRF` or
        :class:`~pyro_structured.distributions.CategoricalPatternCRF` sites, whose parameters may be anything that Pyro
        learns: ``pyro.param``, ``pyro.module``, latent sites.
    :param guide: A guide for all latent sites, with Delta sites only, as ``AutoDelta``.
    :param PyroOptim optim: A Pyro optimiser.
    :param loss: ``"intersection_over_union"``: one minus the intersection of the ones of both labelings over their
        union, 0 if both are empty; ``"hamming"``: the share of labels that differ; or a function of labels, shape
        ``(C,) + batch_shape + event_shape``, and the observed ones, shape ``batch_shape + event_shape``, that returns
        finite losses, the smaller the better, of shape ``(C,) + batch_shape``.
    :param int num_chains: Number of chains C for each row, at least 2. They belong to the rows of the plates, by the
        plates' indices, unless all rows have the same field, and start at the labels of ``map("em")``, also where the
        observed labels of a row are not those that it had before; if they change in every step, as those of pictures
        that are moved at random, take more sweeps.
    :param int num_sweeps: Number of block Gibbs sweeps in each step, at least 1.
    :param str on_nonfinite: Action of a step whose loss or gradient is infinite or not a number: ``"raise"`` a
        ValueError that names the parameter, or ``"skip"`` the step. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    :raises ValueError: if an argument is of another kind; in a step, if an observed value has no probability, with the
        number of its row, or if losses are not finite or of another shape.
    :raises NotImplementedError: in a step, if the temperature of patterns is no positive integer, or a penalty is +inf.

    A step costs O(num_sweeps·C·T·J·D) for each row, and returns the mean loss of the chains, summed over rows.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Section 4.3, Equations (4.13) and (4.15).

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
        >>> learner = ExpectedLoss(model, lambda x, y: None, pyro.optim.Adam({"lr": 0.2}))
        >>> losses = [learner.step(pixels, truth) for _ in range(100)]
        >>> sum(losses[-20:]) < 0.7 * sum(losses[:20])
        True
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim,
        loss: str | LabelLoss = "intersection_over_union",
        num_chains: int = 2,
        num_sweeps: int = 1,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, num_chains, num_sweeps, True, on_nonfinite)
        check_size("num_chains", num_chains, 2)
        check_loss(loss, tuple(LOSSES))
        self.loss = loss

    def _start(self, field: FieldDistribution, value: Tensor) -> Tensor:
        """Labels at which chains start: predicted ones, since the field has no observed labels when it predicts."""
        try:
            return field.map("em", num_switches=0)[0]
        except NotImplementedError:
            return random_labels(field)

    def _field_loss(self, field: FieldDistribution, value: Tensor, samples: Tensor | None) -> Tensor:
        assert samples is not None
        with torch.no_grad():
            losses = self._losses(samples, value, field)
        return expected_loss(losses, field.unnormalized_log_prob(samples))

    def _losses(self, samples: Tensor, value: Tensor, field: FieldDistribution) -> Tensor:
        if self.loss == "intersection_over_union" and not field.value_dtype.is_floating_point:
            raise NotImplementedError(
                f"loss: expected 'hamming' or a function for the categories of a {type(field).__name__}, got "
                "'intersection_over_union', which is of zeros and ones"
            )
        if isinstance(self.loss, str):
            return LOSSES[self.loss](samples, value, len(field.event_shape))
        return checked_losses(self.loss, samples, value, samples.shape[:1] + field.batch_shape)


LOSSES = {"intersection_over_union": intersection_over_union_loss, "hamming": hamming_loss}


def expected_loss(losses: Tensor, log_weights: Tensor) -> Tensor:
    """Mean of the losses of samples, shape ``(...)``, with an unbiased gradient of the expected loss.

    :param Tensor losses: Losses of the samples, without a gradient, shape ``(C, ...)``.
    :param Tensor log_weights: Unnormalised log-probabilities of the samples, shape ``(C, ...)``.
    """
    mean = losses.mean(0)
    surrogate = ((losses - mean) * log_weights).sum(0) / (len(losses) - 1)
    return mean + surrogate - surrogate.detach()
