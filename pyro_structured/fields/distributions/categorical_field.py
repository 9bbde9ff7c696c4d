"""Fields of labels under patterns: queries of categories."""

__all__ = ["CategoricalField"]

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.fields.distributions.field_estimator import FieldEstimator
from pyro_structured.fields.distributions.field_optimum import maximize_labels
from pyro_structured.fields.distributions.label_field import FieldOptimum, LabelField
from pyro_structured.fields.distributions.units_of_field import joint_field
from pyro_structured.fields.ops.joint_labels import JointLabels
from pyro_structured.foundation.distributions.argument_checks import check_entries
from pyro_structured.foundation.ops.enumeration import MOST_PIXELS, enumerate_values, number_of_labelings
from pyro_structured.foundation.ops.log_space import logsumexp, safe_log


class CategoricalField(LabelField):
    """Queries of pixels with K labels, long integers."""

    _remedies = (
        "conditional_logits, pseudo_log_prob and unnormalized_log_prob have no limit, nor have map('em') with "
        "penalties of at least 0, and estimate_log_prob(value, AnnealedImportanceSampling()) and FieldGibbs at whole "
        "temperatures"
    )

    @property
    def _num_indicators(self) -> int:
        return self._num_labels * self._num_variables

    def _indicators(self, labels: Tensor) -> Tensor:
        return torch.cat([labels == label for label in range(self._num_labels)], -1).to(torch.double)

    def _as_values(self, labels: Tensor) -> Tensor:
        return labels.long()

    @constraints.dependent_property(is_discrete=True, event_dim=2)
    def support(self) -> constraints.Constraint:
        """Integers below K; also values of probability zero."""
        return constraints.independent(constraints.integer_interval(0, self._num_labels - 1), 2)

    def _by_pixel(self, tensor: Tensor) -> Tensor:
        """From one label after the other to shape ``(..., H, W, K)``."""
        pixels = tensor.unflatten(-1, (self._num_labels, self._num_variables)).transpose(-1, -2)
        by_pixel: Tensor = pixels.reshape(pixels.shape[:-2] + self.event_shape + pixels.shape[-1:])
        return by_pixel

    @property
    def marginals(self) -> Tensor:
        """Probabilities of the labels, shape ``batch_shape + (H, W, K)``."""
        return self._cast(self._by_pixel(self._supported_marginals()))

    @property
    def marginal_logits(self) -> Tensor:
        """Logarithms of :attr:`marginals`."""
        return self._cast(self._by_pixel(safe_log(self._supported_marginals())))

    @property
    def mean(self) -> Tensor:
        """Labels have none."""
        raise NotImplementedError("mean: labels have none; use marginals")

    @property
    def variance(self) -> Tensor:
        """Labels have none."""
        raise NotImplementedError("variance: labels have none; use marginals")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(number,) + batch_shape + (H, W)``."""
        like = torch.zeros((), dtype=torch.long, device=self._evidence[0].device)
        values = enumerate_values(self._num_variables, self._num_labels, self.batch_shape, expand, like)
        return values.reshape(values.shape[:-1] + self.event_shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Exact samples from sums, shape ``sample_shape + batch_shape + (H, W)``."""
        return self._exact_draws(torch.Size(sample_shape))

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + (H, W)``, by looking at all, up to 2^18; or by passes over the
        grid, without patterns or at T = 0.
        """
        if number_of_labelings(self._num_variables, self._num_labels) is not None:
            return self._best_labeling()
        if self._num_patterns and self.temperature:
            raise NotImplementedError(
                f"mode: expected at most 2^{MOST_PIXELS} labelings, no pattern, or temperature 0, got "
                f"{self._num_labels}^{self._num_variables}, {self._num_patterns} and {self.temperature}; map finds "
                "good labels"
            )
        return self.map("enumeration")[0]

    def conditional_logits(self, value: Tensor) -> Tensor:
        """Log-probabilities of the labels of each pixel given all others, hidden units summed out.

        NaN where what is known of the pixel, its neighbours and the hidden units leave it no label. What is impossible
        about the others by themselves is not looked at.

        :param Tensor value: Labels, shape ``(...,) + batch_shape + (H, W)``.
        :return: Shape ``(...,) + batch_shape + (H, W, K)``. Cost O(J·D·K).
        """
        rank = len(self.event_shape)
        check_entries(self.batch_shape + self.event_shape, rank, value=value)
        if self._validate_args:
            self._validate_sample(value)
        labels = value.flatten(-rank).double()
        batch = torch.Size(torch.broadcast_shapes(labels.shape[:-1], self.batch_shape))
        parts = zip(self._known_states.chunk(self._num_labels, -1), self._pulls(labels, batch), strict=True)
        weights = torch.stack([states + pull for states, pull in parts], -1)
        if self._num_patterns:
            weights = weights + self._potentials(labels)
        total = logsumexp(weights).unsqueeze(-1)
        never = total == -torch.inf
        logits = (weights - total.masked_fill(never, 0.0)).masked_fill(never, torch.nan)
        return self._cast(logits.expand(batch + logits.shape[-2:]).unflatten(-2, self.event_shape))

    def _pulls(self, labels: Tensor, batch: torch.Size) -> list[Tensor]:
        """What neighbours add to the log-weights of each label, of shape ``batch + (D,)``."""
        zero = labels.new_zeros(batch + labels.shape[-1:])
        if not self._paired:
            return [zero] * self._num_labels
        others, penalties = labels[..., self._edges].flip(-1), self._penalties.unsqueeze(-1)
        return [
            zero.index_add(
                -1,
                self._edges.flatten(),
                -penalties.where(others != label, 0.0).expand(batch + others.shape[-2:]).flatten(-2),
            )
            for label in range(self._num_labels)
        ]

    def _potentials(self, labels: Tensor) -> Tensor:
        """What patterns are worth if one pixel has another label, shape ``(..., D, K)``."""
        each = self._weights_by_pattern.unflatten(-1, (self._num_labels, self._num_variables)).movedim(-3, -1)
        present, *others = each.unbind(-3)
        for label, weights in enumerate(others, 1):
            present = torch.where((labels == label).unsqueeze(-1), weights, present)
        rest = self._activations(labels).unsqueeze(-2) - present
        return torch.stack([self._potential(rest + weights, 1) for weights in each.unbind(-3)], -1)

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

        :param str method: One of these.
        :param Tensor start: Where ``"em"`` begins, shape ``(...,) + batch_shape + (H, W)``, the best of several;
            impossible ones are replaced; ``None``: good labels without patterns, and with half of each.
        :param int max_cuts: The largest number of cuts for each element of the batch and start.
        :param int num_switches: As for ``PatternCRF.map``.
        :return: Values of shape ``batch_shape + (H, W)``, and what is known of them.
        :raises NotImplementedError: if a method does not apply.

        **References**

        Boykov, Veksler, Zabih (2001): Fast approximate energy minimization via graph cuts. IEEE Transactions on Pattern
        Analysis and Machine Intelligence 23(11).
        """
        return self._optimum(*maximize_labels(self, method, self._starts(start), max_cuts, num_switches))

    def _estimated_log_z(self, estimator: FieldEstimator) -> tuple[Tensor, Tensor]:
        field = joint_field(self)
        assert isinstance(field, JointLabels)
        return estimator.estimate_labels(field, lambda number: self._samples_of_rows(number, field.num_rows))
