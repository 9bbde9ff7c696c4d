"""Binary fields under patterns together with their hidden units, and how one is drawn given the other."""

__all__ = ["DeepJointField", "JointField", "checkerboard", "edges_of", "neighbour_pull"]

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from pyro_structured.fields.ops.deep_pattern_potential import deep_states
from pyro_structured.fields.ops.joint_units import JointUnits, times
from pyro_structured.foundation.ops.draws import draw_log


@dataclass(frozen=True, kw_only=True)
class JointField(JointUnits):
    r"""Labels y and n replicas of the hidden units h, whose sum over h is a field under patterns at temperature n.

    .. math::
        p(y, h) \propto \exp\Bigl(\sum_i u_i y_i - \sum_{(i, j)} p_{ij} [y_i \ne y_j] + \frac{1}{n} \sum_{r=1}^n
        \bigl((c + W y)^\top h_r + g(\textstyle\sum_j h_{rj})\bigr)\Bigr)

    Weights have shape ``(rows, J, D)``.

    :ivar Tensor odds: Log-odds u, shape ``(rows, chains, D)``; infinite where a label is known.

    Example::

        >>> zero, pair = torch.zeros(1, 1, 2).double(), torch.full((1, 1, 1), 9.0).double()
        >>> units = {"weights": zero[:, :0], "biases": zero[..., :0], "composition": "sum", "replicas": 1}
        >>> field = JointField(odds=zero, penalties=pair, shape=(1, 2), **units)
        >>> labels = field.sweep(torch.zeros(1, 1000, 2).double(), 20)
        >>> bool((labels[..., 0] == labels[..., 1]).double().mean() > 0.99)
        True
    """

    odds: Tensor

    @property
    def _single(self) -> Tensor:
        return self.odds

    @property
    def num_labels(self) -> int:
        """Zeros and ones."""
        return 2

    def allows(self, labels: Tensor) -> Tensor:
        """Whether pixels can have these labels, shape ``(rows, chains, D)``."""
        return torch.where(labels == 1, self.odds > -torch.inf, self.odds < torch.inf)

    def reweighted(self, log_weights: Tensor) -> "JointField":
        """With weights of the labels in addition, shape ``(2, rows, chains, D)``."""
        odds = self.odds + log_weights[1] - log_weights[0]
        return replace(self, odds=torch.where(self.odds.isinf(), self.odds, odds))

    def sweep(self, labels: Tensor, number: int) -> Tensor:
        """Draws hidden units, and then the labels of one colour after the other, some times.

        :param Tensor labels: Zeros and ones, shape ``(rows, chains, D)``.
        :param int number: How many times. Each costs O(n·J·D), with a table O(n·J·(D + log J)).
        """
        for _ in range(number):
            labels = self.draw_labels(labels, self.draw_shares(labels), torch.rand_like(labels))
        return labels

    def draw_labels(self, labels: Tensor, shares: Tensor, noise: Tensor) -> Tensor:
        """Draws the labels of one colour after the other, given hidden units; 1 where a uniform number is small.

        :param Tensor labels: The present ones, shape ``(rows, chains, D)``.
        :param Tensor shares: From :meth:`draw_shares`.
        :param Tensor noise: Uniform numbers of the shape of ``labels``.
        """
        odds = self.odds + times(shares, self.weights) if self.num_units else self.odds
        needed = noise.logit()
        if not self.penalties.shape[-1]:
            return (needed < odds).to(labels.dtype)
        for colour in checkerboard(self.shape, labels.device):
            pull = neighbour_pull(labels, self.penalties, self.shape)
            labels = torch.where(colour, (needed < odds + pull).to(labels.dtype), labels)
        return labels

    def flipped(self, pixels: Tensor, units: Tensor) -> "JointField":
        """The field of labels and units some of which are exchanged, 0 for 1; for ``"sum"``.

        :param Tensor pixels: Zeros and ones, shape ``(rows, 1, D)``.
        :param Tensor units: Zeros and ones, shape ``(rows, 1, J)``.
        """
        pixel_signs, unit_signs = 1 - 2 * pixels, 1 - 2 * units
        ends = pixel_signs[..., edges_of(self.shape, pixels.device)]
        return JointField(
            odds=pixel_signs * (self.odds + units @ self.weights),
            penalties=self.penalties * ends[..., 0] * ends[..., 1] if self.penalties.shape[-1] else self.penalties,
            weights=unit_signs.mT * self.weights * pixel_signs,
            biases=unit_signs * (self.biases + pixels @ self.weights.mT),
            composition=self.composition,
            replicas=self.replicas,
            shape=self.shape,
        )


def neighbour_pull(values: Tensor, penalties: Tensor, shape: tuple[int, int]) -> Tensor:
    """What neighbours add to the log-odds of pixels.

    :param Tensor values: Labels, or probabilities of 1, shape ``(..., D)``.
    :param Tensor penalties: Finite, in the order of ``structures.Grid``, shape ``(..., E)``.
    :param shape: Height and width.
    """
    height, width = shape
    number = (height - 1) * width
    signs = (2 * values - 1).unflatten(-1, shape)
    vertical = penalties[..., :number].unflatten(-1, (height - 1, width))
    horizontal = penalties[..., number:].unflatten(-1, (height, width - 1))
    pull = torch.zeros_like(signs)
    pull[..., :-1, :] += vertical * signs[..., 1:, :]
    pull[..., 1:, :] += vertical * signs[..., :-1, :]
    pull[..., :-1] += horizontal * signs[..., 1:]
    pull[..., 1:] += horizontal * signs[..., :-1]
    return pull.flatten(-2)


@lru_cache(maxsize=64)
def edges_of(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Pairs of neighbours in the order of ``structures.Grid``, shape ``(E, 2)``."""
    pixels = torch.arange(shape[0] * shape[1], device=device).reshape(shape)
    down, right = torch.stack([pixels[:-1], pixels[1:]], -1), torch.stack([pixels[:, :-1], pixels[:, 1:]], -1)
    return torch.cat([down.reshape(-1, 2), right.reshape(-1, 2)])


@lru_cache(maxsize=64)
def checkerboard(shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Whether pixels have the one colour, or the other."""
    pixels = torch.arange(shape[0] * shape[1], device=device)
    odd = (pixels // shape[1] + pixels % shape[1]) % 2 == 1
    return ~odd, odd


@dataclass(frozen=True, kw_only=True)
class DeepJointField(JointField):
    r"""Labels y and hidden units h with another layer g of hidden units over them, which is never kept.

    .. math::
        p(y, h, g) \propto \exp\Bigl(\sum_i u_i y_i - \sum_{(i, j)} p_{ij} [y_i \ne y_j] + (c + W y)^\top h + (d + V
        h)^\top g\Bigr)

    All hidden units are drawn together, given the labels, so that labels and patterns alternate as if there were no
    other layer.

    :ivar Tensor upper_weights: V, shape ``(rows, 1, K, J)``.
    :ivar Tensor upper_logits: d, less than +inf, shape ``(rows, 1, K)``.
    """

    upper_weights: Tensor
    upper_logits: Tensor

    @property
    def num_rows(self) -> int:
        """Number of different fields."""
        return max(super().num_rows, len(self.upper_weights), len(self.upper_logits))

    def draw_shares(self, labels: Tensor) -> Tensor:
        """Which patterns are on, given the labels, shape ``(rows, chains, J)``; exact draws, for which the smaller
        layer's states are enumerated: O(2^min(J, K)·max(J, K)).
        """
        activations = self._activations(labels)
        states, log_weights = deep_states(activations, self.upper_weights, self.upper_logits)
        drawn = states[draw_log(log_weights)]
        if self.num_units <= self.upper_logits.shape[-1]:
            return drawn
        odds = activations + (drawn.unsqueeze(-2) @ self.upper_weights).squeeze(-2)
        return (torch.rand_like(odds) < odds.sigmoid()).to(labels.dtype)
