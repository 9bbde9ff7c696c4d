"""Learning fields by contrastive divergence."""

__all__ = ["ContrastiveDivergence"]

from collections.abc import Callable
from typing import Any

from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.inference.chain_learner import ChainLearner


class ContrastiveDivergence(ChainLearner):
    r"""Maximum likelihood of observed fields of any size, with Markov chains for the gradient of log Z; a learner with
    steps like those of ``SVI``.

    .. math::
        \nabla \log p(y) = \nabla s(y) - \mathbb{E}_{y' \sim p}[\nabla s(y')] \approx \nabla s(y) - \frac{1}{C}
        \sum_{c=1}^C \nabla s(y'_c),

    where s is the unnormalised log-probability, hidden units summed out, and :math:`y'_c` are the labels of C chains.
    With k sweeps from the data in every step this is CD-k, which is biased; with ``persistent=True`` the chains go on
    where they were in the last step (PCD), and are nearly samples of the field as long as the parameters change slowly.
    Where log Z can be computed, ``SVI`` has the exact gradient.

    Chains belong to the rows of the plates, by the plates' indices, where their fields differ; a row with other
    observed labels than before, of other data, starts anew: in every step, if labels are moved at random. Where all
    rows have the same field, chains go on whichever rows come next.

    :param model: A Pyro model with observed :class:`~pyro_structured.distributions.PatternCRF`,
        :class:`~pyro_structured.distributions.GridCRF`, :class:`~pyro_structured.distributions.RBM`,
        :class:`~pyro_structured.distributions.DeepPatternCRF` or
        :class:`~pyro_structured.distributions.CategoricalPatternCRF` sites, whose parameters may be anything that Pyro
        learns: ``pyro.param``, ``pyro.module``, latent sites.
    :param guide: A guide for all latent sites, with Delta sites only, as ``AutoDelta``.
    :param PyroOptim optim: A Pyro optimiser. For restricted Boltzmann machines of many hidden units, plain steps of
        falling size (``pyro.optim.SGD``; the loss is a sum over all rows) have done better than Adam.
    :param bool persistent: Whether chains go on from step to step.
    :param int num_sweeps: Number of block Gibbs sweeps k in each step, at least 1.
    :param int num_chains: Number of chains C for each row, at least 1.
    :param str on_nonfinite: Action of a step whose loss or gradient is infinite or not a number: ``"raise"`` a
        ValueError that names the parameter, or ``"skip"`` the step. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    :raises ValueError: if an argument is of another kind; in a step, if an observed value has no probability, with the
        number of its row.
    :raises NotImplementedError: in a step, if the temperature of patterns is no positive integer, or a penalty is +inf.

    A step costs O(k·C·T·J·D) for each row. The loss that it returns is a difference of unnormalised log-probabilities,
    which says nothing about the fit.

    **References**

    Hinton (2002): Training products of experts by minimizing contrastive divergence. Neural Computation 14(8).
    Tieleman (2008): Training restricted Boltzmann machines using approximations to the likelihood gradient. ICML.

    Example::

        >>> import pyro, torch
        >>> from pyro_structured.distributions import RBM
        >>> def model(x):
        ...     weights = pyro.param("weights", lambda: 0.1 * torch.randn(2, 6))
        ...     visible, hidden = pyro.param("visible", torch.zeros(6)), pyro.param("hidden", torch.zeros(2))
        ...     with pyro.plate("rows", len(x)):
        ...         pyro.sample("x", RBM(weights, visible, hidden), obs=x)
        >>> pyro.set_rng_seed(0)
        >>> truth = RBM(torch.randn(2, 6), torch.zeros(6), torch.zeros(2))
        >>> x = truth.sample((500,))
        >>> pyro.clear_param_store()
        >>> learner = ContrastiveDivergence(model, lambda x: None, pyro.optim.Adam({"lr": 0.02}), persistent=True)
        >>> losses = [learner.step(x) for _ in range(300)]
        >>> fitted = RBM(pyro.param("weights"), pyro.param("visible"), pyro.param("hidden"))
        >>> bool(fitted.log_prob(x).mean() > truth.log_prob(x).mean() - 0.02)
        True
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim,
        persistent: bool = False,
        num_sweeps: int = 1,
        num_chains: int = 1,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, num_chains, num_sweeps, persistent, on_nonfinite)

    def _field_loss(self, field: FieldDistribution, value: Tensor, samples: Tensor | None) -> Tensor:
        assert samples is not None
        return field.unnormalized_log_prob(samples).mean(0) - field.unnormalized_log_prob(value)
