"""Binary fields under patterns and units over them, and how patterns are drawn given the labels."""

__all__ = ["DeepJointField"]

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_structured.fields.ops.deep_pattern_potential import deep_states
from pyro_structured.fields.ops.field_with_units import JointField
from pyro_structured.foundation.ops.draws import draw_log


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
