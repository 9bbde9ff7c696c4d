"""Log-weights of binary fields under patterns, and what is most probable."""

__all__ = ["PatternWeights"]

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.distributions.argument_checks import check_entries
from pyro_structured.distributions.discrete_vector import DiscreteVector
from pyro_structured.distributions.field_optimum import FieldOptimum, maximize_field
from pyro_structured.ops.cardinality import require_support
from pyro_structured.ops.enumeration import enumerate_values, is_enumerable
from pyro_structured.ops.evidence import log_odds, no_evidence
from pyro_structured.ops.pattern_potential import pattern_potential, pattern_slopes
from pyro_structured.ops.rows import narrow_repeated
from pyro_structured.solvers.pattern_objective import PatternObjective

EMPTY_SUPPORT = (
    "expected at least one value of positive probability in every batch element, but penalties, clamps or hidden units "
    "leave none"
)


class PatternWeights(DiscreteVector):
    """Binary variables with log-odds of their own, penalties of neighbours that differ, and patterns."""

    composition: Tensor
    temperature: float
    # "sum", "min", or nothing where the composition is a table.
    _scheme: str | None
    _paired: bool
    _edges: Tensor

    def __init__(
        self, batch: torch.Size, event_shape: torch.Size, edges: Tensor, paired: bool, validate_args: bool | None
    ) -> None:
        self._paired, self._edges = paired, edges
        self._evidence, self._empty = no_evidence(event_shape.numel(), edges.device), EMPTY_SUPPORT
        super().__init__(batch, event_shape, validate_args=validate_args)

    @property
    @abstractmethod
    def _unary(self) -> Tensor:
        """Log-odds of the D single variables, shape ``(..., D)``, in double precision."""

    @property
    @abstractmethod
    def _penalties(self) -> Tensor:
        """Shape ``(..., E)``, in double precision."""

    @property
    @abstractmethod
    def _patterns(self) -> tuple[Tensor, Tensor]:
        """Weights of the patterns, ``(..., J D)``, and their biases, ``(..., J)``, in double precision."""

    @property
    def _upper_layer(self) -> tuple[Tensor, Tensor] | None:
        """Weights of hidden units over the hidden units, ``(..., K, J)``, and their biases, ``(..., K)``, in double
        precision, if there are any.
        """
        return None

    @property
    def _table(self) -> Tensor:
        return narrow_repeated(self._parameter("composition")).double()

    @property
    def _num_variables(self) -> int:
        return self.event_shape.numel()

    @property
    def _num_states(self) -> tuple[int, ...]:
        return (2,)

    @property
    def _num_patterns(self) -> int:
        return self.composition.shape[-1] - 1

    @property
    def _shape(self) -> tuple[int, int]:
        """Height and width."""
        return self.event_shape[0], self.event_shape.numel() // self.event_shape[0]

    @lazy_property
    def _states(self) -> tuple[Tensor, Tensor]:
        """Log-weights of 0 and of 1, the larger one being 0, and the sum of what was subtracted."""
        odds = self._unary
        level = odds.detach().clamp(min=0).masked_fill(odds == torch.inf, 0.0)
        off = -level.masked_fill(odds == torch.inf, torch.inf)
        on = odds.masked_fill(odds == torch.inf, 0.0) - level
        return torch.cat([off, on], -1), level.sum(-1)

    @property
    def _constant(self) -> Tensor:
        return self._states[1]

    @property
    def _known_states(self) -> Tensor:
        """Log-weights of 0 and of 1, -inf where the evidence excludes them."""
        value, observed, consistent = self._evidence
        states = self._states[0]
        possible = ~observed & consistent.unsqueeze(-1)
        allowed = [possible | (consistent.unsqueeze(-1) & (value == label)) for label in (0, 1)]
        return states.masked_fill(~torch.cat(allowed, -1), -torch.inf)

    @property
    def _supported_states(self) -> Tensor:
        """The same, or an error where a variable or the hidden units have no possible state."""
        states = self._known_states
        composition = self._table if self._scheme is None else self._scheme
        require_support(torch.maximum(*states.chunk(2, -1)).amin(-1), self._empty)
        require_support(pattern_potential(self._patterns[1], composition, self.temperature), self._empty)
        return states

    def _score(self, value: Tensor) -> Tensor:
        return self._score_with(value, self._potential)

    def _score_with(self, value: Tensor, potential: Callable[[Tensor], Tensor]) -> Tensor:
        """The same, with a function of the activations in place of what patterns add."""
        given, observed, consistent = self._evidence
        flat = value.flatten(-len(self.event_shape))
        inside = ((flat == 0) | (flat == 1)).all(-1)
        label = flat.masked_fill(~inside.unsqueeze(-1), 0).to(torch.double)
        off, on = self._states[0].split(self._num_variables, -1)
        score = torch.where(label == 1, on, off).sum(-1)
        if self._paired:
            ends = label[..., self._edges.to(label.device)]
            score = score - self._penalties.where(ends[..., 0] != ends[..., 1], 0.0).sum(-1)
        if self._num_patterns or self._scheme is None:
            score = score + potential(self._activations(label))
        agrees = (~observed | (label == given)).all(-1) & consistent & inside
        return score.masked_fill(~agrees, -torch.inf)

    def _potential(self, activations: Tensor, num_axes: int = 0) -> Tensor:
        """What patterns add, apart from the constant, shape ``(...)``.

        :param Tensor activations: Shape ``(..., J)``.
        :param int num_axes: How many of the axes before the last one are none of the batch.
        """
        composition: Tensor | str = self._scheme or self._table
        if isinstance(composition, Tensor):
            composition = composition.reshape(composition.shape[:-1] + (1,) * num_axes + composition.shape[-1:])
        return pattern_potential(activations, composition, self.temperature)

    def _is_possible(self, value: Tensor) -> Tensor:
        """Whether values have a positive weight."""
        return self.unnormalized_log_prob(value) > -torch.inf

    def _activations(self, label: Tensor) -> Tensor:
        """What it is worth to switch hidden units on, shape ``(..., J)``."""
        weights, biases = self._patterns
        each = weights.reshape(weights.shape[:-1] + (self._num_patterns, self._num_variables))
        # A product of matrices, in which axes that only one of them has are not repeated.
        return torch.einsum("...d,...jd->...j", label, each) + biases

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are at most ``2 ** 12`` values; more are never enumerated."""
        return is_enumerable(self._num_variables)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(number,) + batch_shape + event_shape``."""
        like = self._cast(torch.zeros((), device=self._evidence[0].device))
        values = enumerate_values(self._num_variables, 2, self.batch_shape, expand, like)
        return values.reshape(values.shape[:-1] + self.event_shape)

    def conditional_logits(self, value: Tensor) -> Tensor:
        """Log-odds of each variable given all others, hidden units summed out; NaN where neither value is possible.

        :param Tensor value: Zeros and ones, shape ``(...,) + batch_shape + event_shape``.
        :return: The same shape. Cost O(D J).
        """
        rank = len(self.event_shape)
        check_entries(self.batch_shape + self.event_shape, rank, value=value)
        if self._validate_args and value.numel():
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
            weights = self._patterns[0]
            each = weights.reshape(weights.shape[:-1] + (self._num_patterns, self._num_variables)).mT
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
        signed = (2 * value.to(torch.double) - 1) * self.conditional_logits(value).double()
        certain = ~signed.isfinite()
        logs = torch.nn.functional.logsigmoid(signed.masked_fill(certain, 0.0)).masked_fill(certain, 0.0)
        # Where neither label is possible, the value is not.
        impossible = (signed == -torch.inf) | signed.isnan()
        return self._cast(logs.masked_fill(impossible, -torch.inf).flatten(-len(self.event_shape)).sum(-1))

    def map(
        self, method: str = "em", start: Tensor | None = None, max_cuts: int = 10_000
    ) -> tuple[Tensor, FieldOptimum]:
        r"""Searches for a most probable value, at any size, by minimum cuts.

        Penalties have to be at least 0, or negative an even number of times in every cycle of the grid.

        - ``"em"``: from a start, as long as labels become better; at any temperature and with any table. A local
          optimum, without a bound.
        - ``"cut"``: one cut in which hidden units are nodes, if the signs of penalties and weights are balanced, as are
          those of patterns with weights of one sign each; with ``"min"``, a cut for each pattern, whatever the signs.
          Exact at T = 0, and within :math:`T J \log 2`, or :math:`T \log J`, of the best above.
        - ``"dual"``: a bound by dual decomposition, and labels on the way; for ``"sum"``.
        - ``"branch_and_bound"``: from those of ``"em"`` to the best, with a proof, or as far as ``max_cuts`` go, which
          for ``"min"`` at T > 0 is often no further than ``"cut"``; not for tables.

        :param str method: One of these.
        :param Tensor start: Where ``"em"`` and those after it begin, shape ``(...,) + batch_shape + event_shape``, the
            best of several; ``None``: the best labels without patterns, and with half of each.
        :param int max_cuts: The largest number of cuts for each element of the batch and start.
        :return: Values of shape ``batch_shape + event_shape``, and what is known of them.
        :raises NotImplementedError: if a method does not apply, with a cycle of wrong signs, for example.
        """
        labels, found = maximize_field(self._objective, method, self._starts(start), max_cuts)
        require_support(found.value, self._empty)
        shape = self.batch_shape + self.event_shape
        parts = (part.to(self._states[0].device) for part in found)
        value, bound, optimal, cuts = (self._unflatten(part) for part in parts)
        best = self._unflatten(labels.to(self._states[0].device)).reshape(shape)
        return self._cast(best), FieldOptimum(self._cast(value), self._cast(bound), optimal, cuts)

    def _starts(self, start: Tensor | None) -> Tensor | None:
        """As many rows as there are fields, and an axis of starts before them."""
        if start is None:
            return None
        check_entries(self.batch_shape + self.event_shape, len(self.event_shape), start=start)
        if not bool(((start == 0) | (start == 1)).all()):
            raise ValueError("start: expected zeros and ones, got other numbers")
        ours = self.batch_shape + self.event_shape
        shape = torch.Size(torch.broadcast_shapes(start.shape, ours))
        number = shape[: len(shape) - len(ours)].numel()
        if not number:
            raise ValueError(f"start: expected one or several, got shape {tuple(start.shape)}")
        return start.expand(shape).reshape(number, self.batch_shape.numel(), self._num_variables).double().cpu()

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
