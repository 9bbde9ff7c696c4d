"""Learning fields from the probabilities of single labels given all others."""

__all__ = ["PseudoLikelihood"]

from torch import Tensor

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.inference.field_learner import FieldLearner


class PseudoLikelihood(FieldLearner):
    r"""Besag's pseudo-likelihood in place of the likelihood of observed fields; a learner with steps like those of
    ``SVI``.

    .. math::
        \text{minimise} \quad -\sum_n \sum_i \log p(y_{ni} \mid y_{n, -i}) - \log p(\text{other sites}),

    hidden units summed out. Nothing is sampled and log Z is not needed, at any size, temperature and composition, also
    with penalties of any sign. With more and more data it finds the right parameters; with few, it is less efficient
    than the likelihood, and it overestimates couplings where they are strong.

    :param model: A Pyro model with observed :class:`~pyro_structured.distributions.PatternCRF`,
        :class:`~pyro_structured.distributions.GridCRF`, :class:`~pyro_structured.distributions.RBM`,
        :class:`~pyro_structured.distributions.DeepPatternCRF` or
        :class:`~pyro_structured.distributions.CategoricalPatternCRF` sites, whose parameters may be anything that Pyro
        learns: ``pyro.param``, ``pyro.module``, latent sites.
    :param guide: A guide for all latent sites, with Delta sites only, as ``AutoDelta``.
    :param optim: A Pyro optimiser; or ``None``: a step minimises by L-BFGS, to convergence or 100 iterations.
    :param str on_nonfinite: Action of a step whose loss or gradient is infinite or not a number: ``"raise"`` a
        ValueError that names the parameter, or ``"skip"`` the step. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    :raises ValueError: if an argument is of another kind; in a step, if an observed value has no probability, with the
        number of its row.

    A step costs O(D·J) for each row.

    **References**

    Besag (1975): Statistical analysis of non-lattice data. The Statistician 24(3).

    Example::

        >>> import pyro, torch
        >>> from pyro_structured.distributions import GridCRF
        >>> from pyro_structured.structures import Grid
        >>> grid = Grid(8, 8)
        >>> def model(y):
        ...     penalty = pyro.param("penalty", torch.tensor(0.0))
        ...     field = GridCRF(torch.zeros(8, 8), penalty.expand(grid.num_edges), grid)
        ...     with pyro.plate("rows", len(y)):
        ...         pyro.sample("y", field, obs=y)
        >>> y = GridCRF(torch.zeros(8, 8), torch.full((grid.num_edges,), 0.5), grid).sample((500,))
        >>> pyro.clear_param_store()
        >>> loss = PseudoLikelihood(model, lambda y: None, None).step(y)
        >>> bool((pyro.param("penalty") - 0.5).abs() < 0.05)
        True
    """

    def _field_loss(self, field: FieldDistribution, value: Tensor, samples: Tensor | None) -> Tensor:
        return -field.pseudo_log_prob(value)
