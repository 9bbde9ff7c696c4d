"""Binary fields on a grid under high-order patterns, with a second layer of hidden units over the patterns."""

__all__ = ["DeepPatternCRF"]

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.distributions.field_estimator import FieldEstimator
from pyro_structured.fields.distributions.grid_parameters import checked_grid, grid_batch
from pyro_structured.fields.ops.field import UpperUnits
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


class DeepPatternCRF(FieldDistribution):
    r"""Zeros and ones on a grid, as in :class:`PatternCRF`, with a second layer of hidden units over the patterns.

    .. math::
        p(y) = \frac{1}{Z} \exp\Bigl(\sum_i u_i y_i - \sum_{(i, j)} p_{ij} [y_i \ne y_j]\Bigr) \sum_{h \in \{0,1\}^J}
        \sum_{g \in \{0,1\}^K} \exp\bigl((c + W y)^\top h + (d + V h)^\top g\bigr).

    Each hidden unit :math:`h_j` stands for a pattern, and each upper unit :math:`g_k` for patterns that go together:
    those with positive weights, without the others. Patterns are used in any number, at temperature 1. Without
    ``pairwise`` it is a deep Boltzmann machine with two hidden layers. Values have shape ``(..., H, W)``, zeros and
    ones in the parameters' dtype.

    **Exact**, in float64:

    - for given labels, all that needs no log Z, as long as the smaller layer has at most 2^16 states:
      :meth:`unnormalized_log_prob`, in O(2^min(J, K)·max(J, K) + H·W·J); :meth:`pseudo_log_prob`; the steps of
      ``map("em")``, whose labels never get worse; and those of :class:`~pyro_structured.inference.FieldGibbs`, which
      draws both layers together;
    - everything else, as long as sums have at most 2^30 numbers for each element of the batch: over the 2^J states of
      the patterns, each of which takes H·W·2^min(H, W) numbers, or H·W with ``pairwise=None``; or over the labelings of
      at most 18 pixels. :meth:`entropy` and :attr:`mode` need all labelings.

    Larger sums raise a NotImplementedError that names their cost.

    **At any size**, because pixels and upper units together are a :class:`PatternCRF` in which upper units are pixels
    without neighbours: rigorous bounds (:meth:`log_prob_bounds`, :meth:`log_partition_bounds`), estimates
    (:meth:`estimate_log_prob`, :meth:`estimate_log_partition`), :meth:`mean_field_logits`, and exact samples if
    couplings are balanced (:meth:`perfect_sample`).

    :param Tensor unary_logits: Log-odds u, shape ``(..., H, W)``; an infinite one clamps its pixel, and has no weight
        of its own.
    :param Tensor pairwise: Penalties p of neighbours that differ, in the order of ``grid.edges``, shape ``(..., E)``;
        negative where they prefer to differ, +inf where they have to be alike; ``None``: there are none.
    :param Tensor weights: Weights W of the patterns, finite, shape ``(..., J, H, W)``.
    :param Tensor pattern_logits: Biases c of the patterns, shape ``(..., J)``, less than +inf.
    :param Tensor upper_weights: Weights V of the upper units, finite, shape ``(..., K, J)``.
    :param Tensor upper_logits: Biases d of the upper units, shape ``(..., K)``, less than +inf.
    :param Grid grid: Height and width.
    :param FieldEstimator estimator: Estimator of log Z for :meth:`log_prob` where sums would take too long, and for
        :meth:`estimate_log_prob` anywhere: ``pyro_structured.inference.AnnealedImportanceSampling(1000, 100)``, for
        example, whose log Z is low rather than high, so that log-probabilities are optimistic; ``None``: there is none.
    :raises ValueError: if a shape or a number is out of range. Where no field has a positive probability, the first
        query raises.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Chapter 6. Salakhutdinov, Hinton (2009): Deep Boltzmann machines. AISTATS.

    Example::

        >>> left, right = torch.tensor([[[6.0, 0.0]]]), torch.tensor([[[0.0, 6.0]]])
        >>> weights, together = torch.cat([left, right]), torch.tensor([[4.0, 4.0]])
        >>> unary, biases = torch.full((1, 2), -3.0), torch.full((2,), -3.0)
        >>> d = DeepPatternCRF(unary, None, weights, biases, together, torch.tensor([-4.0]), Grid(1, 2))
        >>> d.log_prob(torch.tensor([[[1.0, 1.0]], [[0.0, 1.0]]])).exp()
        tensor([0.8353, 0.0722])
    """

    support = constraints.independent(constraints.boolean, 2)
    _remedies = (
        "log_prob_bounds, log_partition_bounds, log_prob with estimator=AnnealedImportanceSampling() and "
        "mean_field_logits have no limit"
    )
    _savings = "no pairwise terms, fewer patterns or a smaller grid"
    arg_constraints = {
        "unary_logits": constraints.independent(constraints.real, 2),
        "pairwise": constraints.independent(constraints.greater_than(-torch.inf), 1),
        "weights": constraints.independent(constraints.real, 3),
        "pattern_logits": constraints.independent(constraints.less_than(torch.inf), 1),
        "upper_weights": constraints.independent(constraints.real, 2),
        "upper_logits": constraints.independent(constraints.less_than(torch.inf), 1),
    }

    def __init__(
        self,
        unary_logits: Tensor,
        pairwise: Tensor | None,
        weights: Tensor,
        pattern_logits: Tensor,
        upper_weights: Tensor,
        upper_logits: Tensor,
        grid: Grid,
        estimator: FieldEstimator | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.grid, self._paired = checked_grid(grid), pairwise is not None
        self.unary_logits, self.weights, self.pattern_logits = unary_logits, weights, pattern_logits
        self.pairwise = unary_logits.new_zeros(grid.num_edges) if pairwise is None else pairwise
        batch = grid_batch(unary_logits, self.pairwise, weights, pattern_logits, grid)
        number = pattern_logits.shape[-1]
        upper = upper_logits.shape[-1] if isinstance(upper_logits, Tensor) and upper_logits.dim() else 0
        batch = joined_batch("upper_logits", upper_logits, [upper], batch)
        batch = joined_batch("upper_weights", upper_weights, [upper, number], batch)
        require(~upper_weights.isfinite(), "upper_weights: expected finite numbers, got others")
        self.upper_weights = upper_weights
        self.upper_logits = upper_logits
        self.composition, self.temperature, self._scheme = pattern_logits.new_zeros(number + 1), 1.0, "sum"
        super().__init__(batch, torch.Size([grid.height, grid.width]), unary_logits.device, estimator, validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        unary_logits: torch.Size,
        pairwise: torch.Size | None,
        weights: torch.Size,
        pattern_logits: torch.Size,
        upper_weights: torch.Size,
        upper_logits: torch.Size,
        grid: Grid,
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the tensors, and the grid itself."""
        parts = [unary_logits[:-2], weights[:-3], pattern_logits[:-1], upper_weights[:-2], upper_logits[:-1]]
        parts += [] if pairwise is None else [pairwise[:-1]]
        return broadcast_shapes(*parts), torch.Size([grid.height, grid.width])

    def _upper_units(self) -> UpperUnits:
        weights, logits = self._rows(self._double("upper_weights", 2)), self._rows(self._double("upper_logits", 1))
        return UpperUnits(weights.unflatten(-1, self.upper_weights.shape[-2:]), logits)
