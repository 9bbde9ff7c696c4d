"""Log-weights of labelings of pixels under patterns."""

__all__ = ["LabelWeights"]

from abc import abstractmethod
from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from pyro_structured.fields.ops.pattern_potential import pattern_potential
from pyro_structured.foundation.distributions.discrete_vector import DiscreteVector
from pyro_structured.foundation.ops.enumeration import is_enumerable
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.requirements import require_support
from pyro_structured.foundation.ops.vmap_rows import narrow_repeated

EMPTY_SUPPORT = (
    "{}: expected at least one value of positive probability in every batch element, but penalties, clamps or hidden "
    "units leave none"
)


class LabelWeights(DiscreteVector):
    """Variables with K labels each, log-weights of their own, penalties of neighbours that differ, and patterns."""

    composition: Tensor
    temperature: float
    # "sum", "min", or nothing where the composition is a table.
    _scheme: str | None
    _paired: bool
    _edges: Tensor
    # The argument with the log-weights of labels.
    _labels_argument = "unary_logits"

    def __init__(
        self, batch: torch.Size, event_shape: torch.Size, edges: Tensor, paired: bool, validate_args: bool | None
    ) -> None:
        self._paired, self._edges = paired, edges
        self._evidence = no_evidence(event_shape.numel(), edges.device)
        self._empty = EMPTY_SUPPORT.format(self._labels_argument)
        super().__init__(batch, event_shape, validate_args=validate_args)

    @property
    @abstractmethod
    def _states(self) -> tuple[Tensor, Tensor]:
        """Log-weights of label 0 of the D variables, then of 1, and so on, the largest of each variable being 0, in
        double precision, shape ``(..., K D)``; and the sum of what was subtracted, shape ``(...)``.
        """

    @property
    @abstractmethod
    def _penalties(self) -> Tensor:
        """Shape ``(..., E)``, in double precision."""

    @property
    @abstractmethod
    def _patterns(self) -> tuple[Tensor, Tensor]:
        """Weights of the patterns for the indicators of a labelling, ``(..., J n D)``, and their biases, ``(..., J)``,
        in double precision.
        """

    @abstractmethod
    def _indicators(self, labels: Tensor) -> Tensor:
        """What patterns weigh: whether variables have each of the last n labels, shape ``(..., n D)``, as numbers."""

    @abstractmethod
    def _as_values(self, labels: Tensor) -> Tensor:
        """In the dtype of values."""

    @property
    def _num_labels(self) -> int:
        """K."""
        return 2

    @property
    def _num_indicators(self) -> int:
        """Number of columns n D."""
        return self._num_variables

    @property
    def _num_states(self) -> tuple[int, ...]:
        return (self._num_labels,)

    @property
    def _table(self) -> Tensor:
        return narrow_repeated(self._parameter("composition")).double()

    @property
    def _potential_composition(self) -> Tensor | str:
        """The cheapest form in which the composition can be said."""
        return self._table if self._scheme is None else self._scheme

    @property
    def _num_variables(self) -> int:
        return self.event_shape.numel()

    @property
    def _num_patterns(self) -> int:
        return self.composition.shape[-1] - 1

    @property
    def _shape(self) -> tuple[int, int]:
        """Height and width."""
        return self.event_shape[0], self.event_shape.numel() // self.event_shape[0]

    @property
    def _constant(self) -> Tensor:
        return self._states[1]

    @property
    def _known_states(self) -> Tensor:
        """Log-weights of the labels, -inf where the evidence excludes them."""
        value, observed, consistent = self._evidence
        states = self._states[0]
        possible = ~observed & consistent.unsqueeze(-1)
        allowed = [possible | (consistent.unsqueeze(-1) & (value == label)) for label in range(self._num_labels)]
        return states.masked_fill(~torch.cat(allowed, -1), -torch.inf)

    @property
    def _supported_states(self) -> Tensor:
        """The same, or an error where a variable or the hidden units have no possible state."""
        states = self._known_states
        require_support(reduce(torch.maximum, states.chunk(self._num_labels, -1)).amin(-1), self._empty)
        potential = pattern_potential(self._patterns[1], self._potential_composition, self.temperature)
        require_support(potential, self._empty)
        return states

    def _score(self, value: Tensor) -> Tensor:
        return self._score_with(value, self._potential)

    def _score_with(self, value: Tensor, potential: Callable[[Tensor], Tensor]) -> Tensor:
        """The same, with a function of the activations in place of what patterns add."""
        given, observed, consistent = self._evidence
        flat = value.flatten(-len(self.event_shape))
        inside = reduce(torch.logical_or, [flat == label for label in range(self._num_labels)]).all(-1)
        labels = flat.masked_fill(~inside.unsqueeze(-1), 0).to(torch.double)
        single, *others = self._states[0].chunk(self._num_labels, -1)
        for label, states in enumerate(others, 1):
            single = torch.where(labels == label, states, single)
        score = single.sum(-1)
        if self._paired:
            ends = labels[..., self._edges.to(labels.device)]
            score = score - self._penalties.where(ends[..., 0] != ends[..., 1], 0.0).sum(-1)
        if self._num_patterns or self._scheme is None:
            score = score + potential(self._activations(labels))
        agrees = (~observed | (labels == given)).all(-1) & consistent & inside
        return score.masked_fill(~agrees, -torch.inf)

    def _potential(self, activations: Tensor, num_axes: int = 0) -> Tensor:
        """What patterns add, apart from the constant, shape ``(...)``.

        :param Tensor activations: Shape ``(..., J)``.
        :param int num_axes: How many of the axes before the last one are none of the batch.
        """
        composition = self._potential_composition
        if isinstance(composition, Tensor):
            composition = composition.reshape(composition.shape[:-1] + (1,) * num_axes + composition.shape[-1:])
        return pattern_potential(activations, composition, self.temperature)

    def _is_possible(self, value: Tensor) -> Tensor:
        """Whether values have a positive weight."""
        return self.unnormalized_log_prob(value) > -torch.inf

    def _activations(self, labels: Tensor) -> Tensor:
        """What it is worth to switch hidden units on, shape ``(..., J)``."""
        # A product of matrices, in which axes that only one of them has are not repeated.
        return torch.einsum("...d,...jd->...j", self._indicators(labels), self._weights_by_pattern) + self._patterns[1]

    @property
    def _weights_by_pattern(self) -> Tensor:
        """Shape ``(..., J, n D)``."""
        weights = self._patterns[0]
        return weights.reshape(weights.shape[:-1] + (self._num_patterns, self._num_indicators))

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are at most ``2 ** 12`` values; more are never enumerated."""
        return is_enumerable(self._num_variables, self._num_labels)
