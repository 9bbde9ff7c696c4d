"""Log-weights of binary fields under patterns, and what is most probable."""

__all__ = ["PatternWeights"]

from abc import abstractmethod

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.fields.distributions.field_optimum import maximize_field
from pyro_structured.fields.distributions.label_field import FieldOptimum, LabelField
from pyro_structured.fields.ops.pattern_potential import pattern_potential, pattern_slopes
from pyro_structured.fields.solvers.pattern_objective import PatternObjective
from pyro_structured.foundation.distributions.argument_checks import check_entries
from pyro_structured.foundation.ops.enumeration import enumerate_values
from pyro_structured.foundation.ops.evidence import log_odds


class PatternWeights(LabelField):
    """Binary variables with log-odds of their own, penalties of neighbours that differ, and patterns."""

    @property
    @abstractmethod
    def _unary(self) -> Tensor:
        """Log-odds of the D single variables, shape ``(..., D)``, in double precision."""

    @property
    def _upper_layer(self) -> tuple[Tensor, Tensor] | None:
        """Weights of hidden units over the hidden units, ``(..., K, J)``, and their biases, ``(..., K)``, in double
        precision, if there are any.
        """
        return None

    @lazy_property
    def _states(self) -> tuple[Tensor, Tensor]:
        """Log-weights of 0 and of 1, the larger one being 0, and the sum of what was subtracted."""
        odds = self._unary
        level = odds.detach().clamp(min=0).masked_fill(odds == torch.inf, 0.0)
        off = -level.masked_fill(odds == torch.inf, torch.inf)
        on = odds.masked_fill(odds == torch.inf, 0.0) - level
        return torch.cat([off, on], -1), level.sum(-1)

    def _indicators(self, labels: Tensor) -> Tensor:
        return labels

    def _as_values(self, labels: Tensor) -> Tensor:
        return self._cast(labels)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(number,) + batch_shape + event_shape``."""
        like = self._cast(torch.zeros((), device=self._evidence[0].device))
        values = enumerate_values(self._num_variables, 2, self.batch_shape, expand, like)
        return values.reshape(values.shape[:-1] + self.event_shape)

    def conditional_logits(self, value: Tensor) -> Tensor:
        """Log-odds of each variable given all others, hidden units summed out.

        NaN where what is known of the variable, its neighbours and the hidden units leave it neither value. What is
        impossible about the others by themselves is not looked at.

        :param Tensor value: Zeros and ones, shape ``(...,) + batch_shape + event_shape``.
        :return: The same shape. Cost O(D J).
        """
        rank = len(self.event_shape)
        check_entries(self.batch_shape + self.event_shape, rank, value=value)
        if self._validate_args:
            self._validate_sample(value)
        label = value.flatten(-rank).double()
        odds = log_odds(*self._known_states.chunk(2, -1))
        batch = torch.broadcast_shapes(label.shape[:-1], self.batch_shape)
        odds = odds.expand(batch + odds.shape[-1:])
        if self._paired:
            ends = 2 * label[..., self._edges] - 1
            pulls = (self._penalties.unsqueeze(-1) * ends.flip(-1)).expand(batch + ends.shape[-2:])
            odds = odds.index_add(-1, self._edges.flatten(), pulls.flatten(-2))
        if self._num_patterns:
            each = self._weights_by_pattern.mT
            on = self._activations(label).unsqueeze(-2) + (1 - label).unsqueeze(-1) * each
            potentials = (self._potential(a, 1) for a in (on, on - each))
            odds = odds + next(potentials) - next(potentials)
        return self._cast(odds.reshape(batch + self.event_shape))

    def pseudo_log_prob(self, value: Tensor) -> Tensor:
        r"""Besag's pseudo-likelihood, :math:`\sum_i \log p(y_i \mid y_{-i})`, which needs no log Z and is not the
        log-probability.

        :param Tensor value: As for :meth:`conditional_logits`.
        :return: Shape ``(...,) + batch_shape``.

        **References**

        Besag (1975): Statistical analysis of non-lattice data. The Statistician 24(3).
        """
        signed = self.conditional_logits(value).double() * (2 * value.to(torch.double) - 1)
        certain = ~signed.isfinite()
        logs = torch.nn.functional.logsigmoid(signed.masked_fill(certain, 0.0)).masked_fill(certain, 0.0)
        # Where neither label is possible, the value is not.
        impossible = (signed == -torch.inf) | signed.isnan()
        return self._cast(logs.masked_fill(impossible, -torch.inf).flatten(-len(self.event_shape)).sum(-1))

    def map(
        self,
        method: str = "em",
        start: Tensor | None = None,
        max_cuts: int = 10_000,
        num_switches: int | None = None,
    ) -> tuple[Tensor, FieldOptimum]:
        r"""Searches for a most probable value, at any size, by minimum cuts.

        Penalties have to be at least 0, or negative an even number of times in every cycle of the grid.

        - ``"em"``: from several starts, as long as labels become better; then from where single patterns are switched,
          as long as that helps; at any temperature and with any table. A local optimum, without a bound; the best of
          nearly all fields of 8 x 8 pixels and 8 patterns of normal weights. Nothing is drawn at random.
        - ``"cut"``: one cut in which hidden units are nodes, if the signs of penalties and weights are balanced, as are
          those of patterns with weights of one sign each; with ``"min"``, a cut for each pattern, whatever the signs.
          Exact at T = 0, and within :math:`T J \log 2`, or :math:`T \log J`, of the best above.
        - ``"dual"``: a bound by dual decomposition, and labels on the way; for ``"sum"``.
        - ``"branch_and_bound"``: from those of ``"em"`` to the best, with a proof, or as far as ``max_cuts`` go, with a
          bound of what is left; not for tables. Up to about 32 learned patterns are proved within seconds; for 64, or
          for ``"min"`` at T > 0, there is a bound only, as a rule. Each cut costs O(J·D) besides.

        :param str method: One of these.
        :param Tensor start: Where ``"em"`` and those after it begin, shape ``(...,) + batch_shape + event_shape``, the
            best of several; ``None``: the best labels without patterns, and with half of each.
        :param int max_cuts: The largest number of cuts for each element of the batch and start.
        :param int num_switches: How many patterns are switched in a round, one at a time, those that are nearest to it:
            that many further starts. 0 takes a fifth of the cuts, or less. ``None``: 8, or, from a given ``start``,
            none.
        :return: Values of shape ``batch_shape + event_shape``, and what is known of them.
        :raises NotImplementedError: if a method does not apply, with a cycle of wrong signs, for example.
        """
        starts = self._starts(start)
        starts = None if starts is None else starts.double()
        return self._optimum(*maximize_field(self._objective, method, starts, max_cuts, num_switches))

    @property
    def _objective(self) -> PatternObjective:
        """All fields of the batch, one after the other."""
        with torch.no_grad():
            number = self.batch_shape.numel()
            off, on = self._supported_states.chunk(2, -1)
            parts = {
                "odds": log_odds(off, on),
                "base": (torch.where(off == -torch.inf, on, off).sum(-1) + self._constant).unsqueeze(-1),
                "penalties": self._penalties if self._paired else off.new_zeros(len(self._edges)),
                "weights": self._patterns[0],
                "biases": self._patterns[1],
                "composition": self._table,
            }
            rows = {name: self._rows(part.detach()).cpu() for name, part in parts.items()}
        shape = (-1, self._num_patterns, self._num_variables)
        return PatternObjective(
            odds=rows["odds"].expand(number, -1),
            base=rows["base"].squeeze(-1).expand(number),
            penalties=rows["penalties"],
            weights=rows["weights"].reshape(shape) if self._num_patterns else rows["odds"].new_zeros(1, *shape[1:]),
            biases=rows["biases"],
            composition=self._scheme or rows["composition"],
            temperature=self.temperature,
            edges=self._edges.cpu().numpy(),
            potential=pattern_potential,
            slopes=pattern_slopes,
        )
