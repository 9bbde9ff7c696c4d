"""Binary fields on a grid under high-order patterns."""

__all__ = ["PatternCRF"]

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.distributions.field_estimator import FieldEstimator
from pyro_structured.fields.distributions.grid_parameters import (
    checked_grid,
    checked_temperature,
    composition_table,
    grid_batch,
)
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


class PatternCRF(FieldDistribution):
    r"""Zeros and ones on a grid, with log-odds of their own, penalties where neighbours differ, and patterns.

    .. math::
        p(y) = \frac{1}{Z} \exp\Bigl(\sum_i u_i y_i - \sum_{(i, j)} p_{ij} [y_i \ne y_j] + f_T(y)\Bigr), \qquad
        f_T(y) = T \log \sum_{h \in \{0,1\}^J} \exp\frac{1}{T}\Bigl(\sum_j (c_j + w_j^\top y) h_j + g(\sum_j
        h_j)\Bigr).

    Each hidden unit :math:`h_j` stands for a pattern: it favours the pixels with positive weights and no others. With
    ``composition="sum"`` patterns are used in any number; with ``"min"``, exactly one is; a table g weighs how many
    are. At T = 1 the hidden units are summed out, at T = 0 maximised. Values have shape ``(..., H, W)``, zeros and ones
    in the parameters' dtype. For more labels there is :class:`~pyro_structured.distributions.CategoricalPatternCRF`.

    **Exact**, in float64, as long as sums have at most 2^30 numbers for each element of the batch; otherwise a
    NotImplementedError names their cost. The cheapest is chosen of sums

    - over hidden units, if T is a positive integer of at most 16: the states are 2^J at T = 1, (T + 1)^J above, or J if
      exactly one is on; each takes H·W·2^min(H, W) numbers, or H·W with ``pairwise=None``;
    - over the 2^(H·W) labelings, at any temperature, if there are at most 18 pixels.

    **At any size**: :meth:`unnormalized_log_prob`, in O(H·W·J); :meth:`map` and, if branch and bound proves it,
    :attr:`mode`; rigorous bounds (:meth:`log_prob_bounds`, :meth:`log_partition_bounds`) and estimates
    (:meth:`estimate_log_prob`, :meth:`estimate_log_partition`); exact samples if couplings are balanced
    (:meth:`perfect_sample`), and approximate ones by :class:`~pyro_structured.inference.FieldGibbs`. :meth:`entropy`
    needs all labelings.

    :param Tensor unary_logits: Log-odds u, shape ``(..., H, W)``; an infinite one clamps its pixel, and has no weight
        of its own.
    :param Tensor pairwise: Penalties p of neighbours that differ, in the order of ``grid.edges``, shape ``(..., E)``;
        negative where they prefer to differ, +inf where they have to be alike; ``None``: there are none.
    :param Tensor weights: Weights w of the patterns, finite, shape ``(..., J, H, W)``.
    :param Tensor pattern_logits: Biases c of the patterns, shape ``(..., J)``, less than +inf.
    :param Grid grid: Height and width.
    :param composition: ``"sum"``, ``"min"``, or the table g, shape ``(..., J + 1)``, less than +inf; the attribute is a
        table in any case.
    :param float temperature: T, at least 0.
    :param FieldEstimator estimator: Estimator of log Z for :meth:`log_prob` where sums would take too long, and for
        :meth:`estimate_log_prob` anywhere: ``pyro_structured.inference.AnnealedImportanceSampling(1000, 100)``, for
        example, whose log Z is low rather than high, so that log-probabilities are optimistic; ``None``: there is none.
    :raises ValueError: if a shape or a number is out of range. Where no field has a positive probability, the first
        query raises.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Equations (4.1) and (4.6), Table 3.1.

    Example::

        >>> grid = Grid(2, 2)
        >>> diagonal = torch.tensor([[[3.0, -3.0], [-3.0, 3.0]]])
        >>> d = PatternCRF(torch.zeros(2, 2), None, diagonal, torch.tensor([-2.0]), grid)
        >>> d.marginals
        tensor([[0.8646, 0.1354],
                [0.1354, 0.8646]])
    """

    support = constraints.independent(constraints.boolean, 2)
    arg_constraints = {
        "unary_logits": constraints.independent(constraints.real, 2),
        "pairwise": constraints.independent(constraints.greater_than(-torch.inf), 1),
        "weights": constraints.independent(constraints.real, 3),
        "pattern_logits": constraints.independent(constraints.less_than(torch.inf), 1),
        "composition": constraints.independent(constraints.less_than(torch.inf), 1),
    }

    def __init__(
        self,
        unary_logits: Tensor,
        pairwise: Tensor | None,
        weights: Tensor,
        pattern_logits: Tensor,
        grid: Grid,
        composition: Tensor | str = "sum",
        temperature: float = 1.0,
        estimator: FieldEstimator | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.grid, self._paired = checked_grid(grid), pairwise is not None
        self.unary_logits, self.weights, self.pattern_logits = unary_logits, weights, pattern_logits
        self.pairwise = unary_logits.new_zeros(grid.num_edges) if pairwise is None else pairwise
        batch = grid_batch(unary_logits, self.pairwise, weights, pattern_logits, grid)
        self._scheme = composition if isinstance(composition, str) else None
        self.composition = composition_table(composition, pattern_logits)
        batch = joined_batch("composition", self.composition, [pattern_logits.shape[-1] + 1], batch)
        self.temperature = checked_temperature(temperature)
        super().__init__(batch, torch.Size([grid.height, grid.width]), unary_logits.device, estimator, validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        unary_logits: torch.Size,
        pairwise: torch.Size | None,
        weights: torch.Size,
        pattern_logits: torch.Size,
        grid: Grid,
        composition: torch.Size | str = "sum",
        temperature: float = 1.0,
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the tensors; other arguments are themselves."""
        parts = [unary_logits[:-2], weights[:-3], pattern_logits[:-1]]
        parts += [part[:-1] for part in (pairwise, composition) if part is not None and not isinstance(part, str)]
        return broadcast_shapes(*parts), torch.Size([grid.height, grid.width])
