"""Fields of several labels on a grid under high-order patterns."""

__all__ = ["CategoricalPatternCRF"]

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
from pyro_structured.fields.ops.label_conditionals import conditional_log_probs
from pyro_structured.fields.ops.mean_field import mean_field_log_probs
from pyro_structured.fields.solvers.field_optimum import FieldOptimum
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.foundation.distributions.argument_checks import check_entries, joined_batch
from pyro_structured.foundation.ops.enumeration import MOST_PIXELS, number_of_labelings
from pyro_structured.foundation.ops.log_space import safe_log
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


class CategoricalPatternCRF(FieldDistribution):
    r"""Labels on a grid, with log-weights of their own, penalties where neighbours differ, and patterns of labels.

    .. math::
        p(y) = \frac{1}{Z} \exp\Bigl(\sum_i u_i(y_i) - \sum_{(i, j)} p_{ij} [y_i \ne y_j] + f_T(a(y))\Bigr), \qquad
        a_j(y) = c_j + \sum_i w_j(i, y_i),

    .. math::
        f_T(a) = T \log \sum_{h \in \{0,1\}^J} \exp\frac{1}{T}\Bigl(a^\top h + g(\sum_j h_j)\Bigr).

    Each hidden unit :math:`h_j` stands for a pattern, which favours some labels in some places. A shape of one class is
    a pattern with weights for its label only. With ``composition="sum"`` patterns are used in any number; with
    ``"min"``, exactly one is; a table g weighs their number. At T = 1 the hidden units are summed out, at T = 0
    maximised. Values have shape ``(..., H, W)``, long integers below K; :meth:`log_prob` accepts any dtype. With two
    labels this is :class:`~pyro_structured.distributions.PatternCRF`, with differences of log-weights and weights.

    **Exact**, in float64, as long as sums have at most 2^30 numbers for each element of the batch; otherwise a
    NotImplementedError names their cost. The cheapest is chosen of sums

    - over hidden units, if T is a positive integer of at most 16: the states are 2^J at T = 1, (T + 1)^J above, or J if
      exactly one is on; each takes H·W·K^min(H, W) numbers, or H·W·K with ``pairwise=None``;
    - over the K^(H·W) labelings, at any temperature, if there are at most 2^18.

    :meth:`entropy` and :attr:`mode` need all labelings; without patterns they do not, nor does the mode at T = 0.

    **At any size**: :meth:`unnormalized_log_prob` and, given all other pixels, :meth:`conditional_logits`, in
    O(H·W·J·K); :meth:`pseudo_log_prob`; :meth:`map`, by expectation maximisation with expansion moves; rigorous bounds
    (:meth:`log_prob_bounds`, :meth:`log_partition_bounds`); :meth:`mean_field_logits`; with two labels,
    :attr:`mode`, if branch and bound proves it, and :meth:`perfect_sample`; at whole temperatures, estimates
    (:meth:`estimate_log_prob`, :meth:`estimate_log_partition`) and approximate samples by
    :class:`~pyro_structured.inference.FieldGibbs`.

    :param Tensor unary_logits: Log-weights u of the labels, shape ``(..., H, W, K)``, K at least 2; -inf excludes.
    :param Tensor pairwise: Penalties p of neighbours that differ, in the order of ``grid.edges``, shape ``(..., E)``;
        +inf where they have to be alike; ``None``: there are none.
    :param Tensor weights: Weights w of the patterns for the labels, finite, shape ``(..., J, H, W, K)``.
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
    of Toronto. Equations (4.1) and (4.6), Chapter 6. Potts (1952): Some generalized order-disorder transformations.
    Mathematical Proceedings of the Cambridge Philosophical Society 48.

    Example, with three labels and two shapes: label 1 on the left, and label 2 on the right::

        >>> grid = Grid(1, 4)
        >>> shapes = torch.zeros(2, 1, 4, 3)
        >>> shapes[0, 0, :2, 1], shapes[1, 0, 2:, 2] = 3.0, 3.0
        >>> d = CategoricalPatternCRF(torch.zeros(1, 4, 3), torch.ones(3), shapes, torch.tensor([-3.0, -3.0]), grid)
        >>> d.mode
        tensor([[1, 1, 2, 2]])
        >>> seen = d.condition(torch.tensor([[1, 0, 0, 0]]), torch.tensor([[True, False, False, False]]))
        >>> seen.marginals[0, 1]
        tensor([0.0314, 0.9012, 0.0674])
    """

    _remedies = (
        "conditional_logits, pseudo_log_prob, mean_field_logits, log_prob_bounds and unnormalized_log_prob have no "
        "limit, nor have map('em') with penalties of at least 0, and log_prob with "
        "estimator=AnnealedImportanceSampling() and FieldGibbs at whole temperatures"
    )
    arg_constraints = {
        "unary_logits": constraints.independent(constraints.less_than(torch.inf), 3),
        "pairwise": constraints.independent(constraints.greater_than(-torch.inf), 1),
        "weights": constraints.independent(constraints.real, 4),
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
        number = unary_logits.shape[-1] if isinstance(unary_logits, Tensor) and unary_logits.dim() else 2
        if number < 2:
            raise ValueError(
                f"unary_logits: expected a last axis of at least two labels, got shape {tuple(unary_logits.shape)}"
            )
        pairwise = unary_logits.new_zeros(grid.num_edges) if pairwise is None else pairwise
        batch = grid_batch(unary_logits, pairwise, weights, pattern_logits, grid, number)
        self.unary_logits, self.pairwise = unary_logits, pairwise
        self.weights, self.pattern_logits = weights, pattern_logits
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
        parts = [unary_logits[:-3], weights[:-4], pattern_logits[:-1]]
        parts += [part[:-1] for part in (pairwise, composition) if part is not None and not isinstance(part, str)]
        return broadcast_shapes(*parts), torch.Size([grid.height, grid.width])

    @property
    def _num_labels(self) -> int:
        return self.unary_logits.shape[-1]

    @property
    def _num_indicators(self) -> int:
        return self._num_labels * self.event_shape.numel()

    def _states(self) -> tuple[Tensor, Tensor]:
        by_label = self._by_label(self._double("unary_logits", 3))
        level = by_label.detach().amax(-2)
        level = level.masked_fill(level == -torch.inf, 0.0)
        return (by_label - level.unsqueeze(-2)).flatten(-2), level.sum(-1)

    def _patterns(self) -> tuple[Tensor, Tensor]:
        weights, biases = self._double("weights", 4), self._double("pattern_logits", 1)
        by_pattern = weights.unflatten(-1, (biases.shape[-1], self._num_indicators))
        return self._by_label(by_pattern).flatten(-3), biases

    def _by_label(self, tensor: Tensor) -> Tensor:
        """Values ordered by pixel, shape ``(..., D K)``, reshaped to ``(..., K, D)``."""
        by_pixel: Tensor = tensor.unflatten(-1, (self.event_shape.numel(), self._num_labels))
        return by_pixel.transpose(-1, -2)

    def reweight(self, log_weights: Tensor) -> "CategoricalPatternCRF":  # type: ignore[override]
        """Multiplies in independent evidence about every label: the posterior, up to its constant.

        :param Tensor log_weights: Log-likelihoods of the evidence for each label, less than +inf, a shape that
            broadcasts to ``(..., H, W, K)``; -inf where the evidence excludes a label.
        :return: The distribution given the evidence, whose partition function keeps the evidence's weight. Queries
            raise where the evidence is impossible.
        :raises ValueError: if the shape does not broadcast, or there is a NaN or +inf.
        """
        shape = self.batch_shape + self.event_shape + (self._num_labels,)
        check_entries(shape, 3, log_weights=log_weights)
        self._check_evidence(log_weights=log_weights)
        logits = self._parameter("unary_logits") + log_weights
        return self._given_labels(logits, torch.ones((), dtype=torch.bool, device=logits.device))

    def log_evidence(self, log_weights: Tensor) -> Tensor:  # type: ignore[override]
        """Log-probability of independent evidence, the labels summed out; arguments are those of :meth:`reweight`.

        :return: Change of log Z, shape ``batch_shape`` broadcast with the leading axes of the evidence; -inf for
            impossible evidence.
        """
        return self._change(self.reweight(log_weights))

    @property
    def value_dtype(self) -> torch.dtype:
        """Dtype of values: long."""
        return torch.long

    @constraints.dependent_property(is_discrete=True, event_dim=2)
    def support(self) -> constraints.Constraint:
        """Integers below K; also values of probability zero."""
        return constraints.independent(constraints.integer_interval(0, self._num_labels - 1), 2)

    def _by_pixel(self, tensor: Tensor) -> Tensor:
        """Values ordered by label, shape ``(..., K D)``, reshaped to ``(..., H, W, K)``, in the dtype of results."""
        by_pixel = tensor.unflatten(-1, (self._num_labels, self.event_shape.numel())).transpose(-1, -2)
        return self._cast(by_pixel.unflatten(-2, self.event_shape))

    @property
    def marginals(self) -> Tensor:
        """Probabilities of the labels, shape ``batch_shape + (H, W, K)``."""
        return self._by_pixel(self._single_marginals())

    @property
    def marginal_logits(self) -> Tensor:
        """Logarithms of :attr:`marginals`, shape ``batch_shape + (H, W, K)``."""
        return self._by_pixel(safe_log(self._single_marginals()))

    @property
    def mean(self) -> Tensor:
        """Not defined for labels; raises NotImplementedError."""
        raise NotImplementedError("mean: labels have none; use marginals")

    @property
    def variance(self) -> Tensor:
        """Not defined for labels; raises NotImplementedError."""
        raise NotImplementedError("variance: labels have none; use marginals")

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + (H, W)``: by enumeration of at most 2^18 labelings; by passes
        over the grid, without patterns or at T = 0; or, of two labels, by branch and bound, as :attr:`PatternCRF.mode`.
        """
        size, number = self.event_shape.numel(), self._field.num_patterns
        if number_of_labelings(size, self._num_labels) is not None:
            return self._best_labeling()
        if not number or not self.temperature:
            try:
                return self.map("enumeration")[0]
            except NotImplementedError:
                if self._num_labels > 2:
                    raise
        elif self._num_labels > 2:
            raise NotImplementedError(
                f"mode: expected at most 2^{MOST_PIXELS} labelings, two labels, no pattern, or temperature 0, got "
                f"{self._num_labels}^{size}, {number} patterns and {self.temperature}; map finds good labels"
            )
        return self._proved_mode()

    def conditional_logits(self, value: Tensor) -> Tensor:
        """Log-probabilities of the labels of each pixel given all others, hidden units summed out.

        NaN where the evidence on the pixel, its neighbours and the hidden units leave no label possible. Whether the
        other pixels are possible by themselves is not checked.

        :param Tensor value: Labels, shape ``(...,) + batch_shape + (H, W)``.
        :return: Shape ``(...,) + batch_shape + (H, W, K)``. Cost O(J·D·K).
        """
        labels, batch = self._checked_by_row(value)
        logits = conditional_log_probs(self._field, labels)
        logits = logits.reshape(batch + logits.shape[-2:]).expand(self._full(batch) + logits.shape[-2:])
        return self._cast(logits.unflatten(-2, self.event_shape))

    def pseudo_log_prob(self, value: Tensor) -> Tensor:
        r"""Besag's pseudo-likelihood, :math:`\sum_i \log p(y_i \mid y_{-i})`, which needs no log Z and is not the
        log-probability.

        :param Tensor value: As for :meth:`conditional_logits`.
        :return: Shape ``(...,) + batch_shape``.

        **References**

        Besag (1975): Statistical analysis of non-lattice data. The Statistician 24(3).
        """
        logits = self.conditional_logits(value).double()
        labels = value.long().expand(logits.shape[:-1])
        inside = (labels >= 0) & (labels < self._num_labels) & (labels == value)
        own = logits.gather(-1, labels.where(inside, 0).unsqueeze(-1)).squeeze(-1)
        impossible = ~inside | own.isnan()
        return self._cast(own.masked_fill(impossible, -torch.inf).flatten(-len(self.event_shape)).sum(-1))

    def map(
        self,
        method: str = "em",
        start: Tensor | None = None,
        max_cuts: int = 10_000,
        num_switches: int | None = None,
    ) -> tuple[Tensor, FieldOptimum]:
        r"""Searches for a most probable value, at any size, by minimum cuts.

        - ``"em"``: from several starts, as long as labels become better, at any temperature and with any table:
          expectation maximisation whose M-steps let one label after the other take over pixels (expansion moves), each
          the best of its kind by a cut; then from where single patterns are switched, as long as that helps. A local
          optimum, without a bound. Penalties have to be at least 0.
        - ``"enumeration"``: the best labels for each state of the hidden units, as many as for the sums at T = 1 and
          within the same limits, with penalties of any sign; then as ``"em"``. Exact at T = 0, or without patterns, and
          within :math:`T \log` of the number of states of the best above, which is the bound.
        - With two labels, an M-step is one cut for all pixels, and all methods of ``PatternCRF.map`` can be used,
          with their bounds and conditions.

        :param str method: ``"em"`` or ``"enumeration"``; with two labels, also a method of ``PatternCRF.map``.
        :param Tensor start: Labels with which ``"em"`` begins, shape ``(...,) + batch_shape + (H, W)``, of which the
            best result counts; impossible ones are replaced; ``None``: good labels without patterns, and with half of
            each.
        :param int max_cuts: The largest number of cuts for each element of the batch and start.
        :param int num_switches: As for ``PatternCRF.map``.
        :return: Values of shape ``batch_shape + (H, W)``, and their certificate.
        :raises NotImplementedError: if a method does not apply.

        **References**

        Boykov, Veksler, Zabih (2001): Fast approximate energy minimization via graph cuts. IEEE Transactions on Pattern
        Analysis and Machine Intelligence 23(11).
        """
        return super().map(method, start, max_cuts, num_switches)

    def mean_field_logits(self, num_rounds: int = 20) -> Tensor:
        """Log-probabilities of the labels of independent pixels that approximate the field, as
        :meth:`PatternCRF.mean_field_logits`.

        :param int num_rounds: Number of rounds, at least 1; each costs O(J·K·D) for each element of the batch.
        :return: Shape ``batch_shape + (H, W, K)``; differentiable through all rounds.
        :raises NotImplementedError: for infinite penalties.
        """
        logits = mean_field_log_probs(self._finite_field(num_rounds), num_rounds)
        return self._by_pixel(self._unflatten(logits.flatten(1)))
