"""Fields of labels whose parameters depend on the picture."""

__all__ = ["SegmentationData", "SegmentationField"]

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import adaptive_avg_pool2d

from pyro_structured.fields.distributions.pattern_crf import PatternCRF
from pyro_structured.fields.structures.grid import Grid


class SegmentationData(NamedTuple):
    """Descriptions and masks of N pictures, all in single precision.

    :ivar Tensor odds: Log-odds of the pixels by themselves, shape ``(N, H, W)``.
    :ivar Tensor edges: Features of pairs of neighbours, at least 0, of which penalties are sums, shape ``(N, E, K)``.
    :ivar Tensor masks: Masks, zeros and ones of shape ``(N, H, W)``.
    """

    odds: Tensor
    edges: Tensor
    masks: Tensor

    def shifted(self, rows: Tensor, farthest: int) -> "SegmentationData":
        """Data of some pictures, each moved by random numbers of pixels down and across; pixels of the border are
        repeated.

        :param Tensor rows: Numbers of the pictures.
        :param int farthest: The largest number of pixels in each direction.
        """
        grid = Grid(*self.odds.shape[1:])
        down, across = torch.randint(-farthest, farthest + 1, (2, len(rows)))

        def moved(pictures: Tensor) -> Tensor:
            height, width = pictures.shape[1:3]
            y = (torch.arange(height) + down.unsqueeze(-1)).clamp(0, height - 1)
            x = (torch.arange(width) + across.unsqueeze(-1)).clamp(0, width - 1)
            return pictures[rows[:, None, None], y.unsqueeze(-1), x.unsqueeze(-2)]

        vertical, horizontal = (features.movedim(1, -1) for features in grid.split(self.edges.mT))
        edges = grid.pack(*(moved(features).movedim(-1, 1) for features in (vertical, horizontal)))
        return SegmentationData(moved(self.odds), edges.mT, moved(self.masks))


# Standard deviation of the first weights of patterns; share of the mean mask's log-odds, scale and shift of those of
# the pixels, and penalties to begin with.
FIRST_WEIGHT, FIRST_SHARE, FIRST_SCALE, FIRST_SHIFT, FIRST_PENALTY = 0.02, 0.5, 0.7, 0.7, 0.3


class SegmentationField(torch.nn.Module):
    r"""Module that maps descriptions of pictures to a :class:`PatternCRF`.

    .. math::
        u_i = s\, o_i + t + b_i, \qquad p_e = \sum_k e^{\lambda_k} g_{ek}, \qquad c = d - W m + V^\top (\phi -
        \bar\phi),

    with the pixels' own log-odds o, features g of pairs, and an overview :math:`\phi` of the picture: means of
    :math:`\tanh(o / 2)` over squares of 2 x 2 pixels. A pattern of no weight changes nothing: m is the mean mask, and
    what a pattern adds on average to the log-odds is subtracted from b.

    :param SegmentationData data: Pictures with masks, for the first parameters.
    :param int num_patterns: Number of patterns, J.
    :param str composition: ``"sum"``, ``"min"``, or ``"counts"``: a table that is learned, zeros to begin with.
    :param bool image_dependent: Whether biases c of patterns depend on the picture, through V.
    :param bool positioned: Whether pixels have biases b of their own.
    """

    mean_mask: Tensor
    mean_overview: Tensor

    def __init__(
        self, data: SegmentationData, num_patterns: int, composition: str, image_dependent: bool, positioned: bool
    ) -> None:
        super().__init__()
        self.grid, self.composition = Grid(*data.odds.shape[1:]), composition
        self.image_dependent, self.positioned = image_dependent, positioned
        num_masks, (height, width) = len(data.masks), data.masks.shape[1:]
        mean, dtype = (data.masks.sum(0) + 0.5) / (num_masks + 1), data.odds.dtype
        self.register_buffer("mean_mask", mean)
        self.scale = Parameter(torch.tensor(FIRST_SCALE, dtype=dtype))
        self.shift = Parameter(torch.tensor(FIRST_SHIFT, dtype=dtype))
        self.log_penalties = Parameter(torch.full(data.edges.shape[-1:], FIRST_PENALTY, dtype=dtype).log())
        if positioned:
            self.visible_logits = Parameter(FIRST_SHARE * mean.logit())
        self.weights = Parameter(FIRST_WEIGHT * torch.randn(num_patterns, height, width, dtype=dtype))
        self.pattern_logits = Parameter(torch.zeros(num_patterns, dtype=dtype))
        if composition == "counts":
            self.count_logits = Parameter(torch.zeros(num_patterns + 1, dtype=dtype))
        if image_dependent:
            overview = _overview(data.odds)
            self.register_buffer("mean_overview", overview.mean(0))
            self.gates = Parameter(torch.zeros(overview.shape[1], num_patterns, dtype=dtype))

    def forward(self, odds: Tensor, edges: Tensor) -> PatternCRF:
        """Fields of some pictures; arguments as in :class:`SegmentationData`."""
        unary: Tensor = self.scale * odds + self.shift
        biases: Tensor = self.pattern_logits
        if self.positioned:
            unary = unary + self.visible_logits
        if len(self.weights):
            share = 1 / len(self.weights) if self.composition == "min" else 0.5
            unary = unary - share * self.weights.sum(0)
            biases = biases - (self.weights * self.mean_mask).sum((-2, -1))
        if self.image_dependent:
            biases = biases + (_overview(odds) - self.mean_overview) @ self.gates
        penalties = edges @ self.log_penalties.exp()
        composition = self.count_logits if self.composition == "counts" else self.composition
        return PatternCRF(unary, penalties, self.weights, biases, self.grid, composition)


def _overview(odds: Tensor) -> Tensor:
    r"""Overview :math:`\phi` of each picture, shape ``(N, F)``."""
    height, width = odds.shape[1:]
    halves = ((height + 1) // 2, (width + 1) // 2)
    return adaptive_avg_pool2d((odds / 2).tanh().unsqueeze(1), halves).flatten(1)
