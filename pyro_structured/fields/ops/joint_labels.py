"""Fields of several labels under patterns together with their hidden units, and how one is drawn given the other."""

__all__ = ["JointLabels"]

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_structured.fields.ops.field_with_units import checkerboard, neighbour_pull
from pyro_structured.fields.ops.joint_units import JointUnits, times


@dataclass(frozen=True, kw_only=True)
class JointLabels(JointUnits):
    r"""Labels y below K and n replicas of the hidden units h, whose sum over h is a field under patterns at temperature
    n; as :class:`JointField`, with indicators of the labels in place of zeros and ones.

    Weights are those of the patterns for the labels, those of label 0 of all pixels first, shape ``(rows, J, K D)``.

    :ivar Tensor states: Log-weights of the labels, -inf where one is impossible, shape ``(rows, chains, K, D)``.

    Example::

        >>> zero, pair = torch.zeros(1, 1, 6).double(), torch.full((1, 1, 1), 9.0).double()
        >>> units = {"weights": zero[:, :0], "biases": zero[..., :0], "composition": "sum", "replicas": 1}
        >>> field = JointLabels(states=zero.reshape(1, 1, 3, 2), penalties=pair, shape=(1, 2), **units)
        >>> labels = field.sweep(torch.zeros(1, 1000, 2).double(), 20)
        >>> bool((labels[..., 0] == labels[..., 1]).double().mean() > 0.99), labels.unique().tolist()
        (True, [0.0, 1.0, 2.0])
    """

    states: Tensor

    @property
    def _single(self) -> Tensor:
        return self.states

    @property
    def num_labels(self) -> int:
        """K."""
        return self.states.shape[-2]

    def allows(self, labels: Tensor) -> Tensor:
        """Whether pixels can have these labels, shape ``(rows, chains, D)``."""
        return ((self.states > -torch.inf) & (self.indicators(labels) > 0)).any(-2)

    def reweighted(self, log_weights: Tensor) -> "JointLabels":
        """With weights of the labels in addition, shape ``(K, rows, chains, D)``."""
        never = self.states == -torch.inf
        return replace(self, states=(self.states + log_weights.movedim(0, -2)).masked_fill(never, -torch.inf))

    def sweep(self, labels: Tensor, number: int) -> Tensor:
        """Draws hidden units, and then the labels of one colour after the other, some times.

        :param Tensor labels: Integers below K in double precision, shape ``(rows, chains, D)``.
        :param int number: How many times. Each costs O(n·J·K·D), with a table O(n·J·(K·D + log J)).
        """
        for _ in range(number):
            labels = self.draw_labels(labels, self.draw_shares(self.indicators(labels).flatten(-2)))
        return labels

    def draw_labels(self, labels: Tensor, shares: Tensor) -> Tensor:
        """Draws the labels of one colour after the other, given hidden units.

        :param Tensor labels: The present ones, shape ``(rows, chains, D)``.
        :param Tensor shares: From :meth:`draw_shares`.
        """
        weights = self.states
        if self.num_units:
            weights = weights + times(shares, self.weights).unflatten(-1, self.states.shape[-2:])
        # The largest of log-weights with Gumbel noise is a draw.
        noise = torch.empty(labels.shape[:2] + self.states.shape[-2:], dtype=labels.dtype, device=labels.device)
        weights = weights - noise.exponential_().clamp_(min=1e-300).log_()
        if not self.penalties.shape[-1]:
            return weights.argmax(-2).to(labels.dtype)
        for colour in checkerboard(self.shape, labels.device):
            pull = neighbour_pull(self.indicators(labels), self.penalties.unsqueeze(-2), self.shape) / 2
            labels = torch.where(colour, (weights + pull).argmax(-2).to(labels.dtype), labels)
        return labels

    def indicators(self, labels: Tensor) -> Tensor:
        """Whether pixels have each label, shape ``(rows, chains, K, D)``."""
        return torch.stack([labels == label for label in range(self.num_labels)], -2).to(labels.dtype)
