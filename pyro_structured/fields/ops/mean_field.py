"""Mean-field approximations of binary fields under patterns, after a few rounds of updates."""

__all__ = ["mean_field_logits"]

import torch
from torch import Tensor

from pyro_structured.fields.ops.field_rows import FieldRows
from pyro_structured.fields.ops.field_with_units import checkerboard, neighbour_pull
from pyro_structured.fields.ops.pattern_potential import pattern_slopes
from pyro_structured.foundation.ops.evidence import log_odds


def mean_field_logits(field: FieldRows, num_rounds: int) -> Tensor:
    r"""Log-odds of independent pixels that are updated in turn, so that a lower bound of log Z never falls.

    .. math::
        \log Z \ge \mathbb{E}_q\Bigl[\sum_i s_i(y_i) - \sum_{(i, j)} p_{ij} [y_i \ne y_j]\Bigr] + f_T(W q + c) + H(q).

    A round finds how far each hidden unit is on, the slopes of :math:`f_T` at the present means, and then updates the
    pixels of one colour of the checkerboard after the other, which is best for the tangent of :math:`f_T`. The first
    round begins where all hidden units are half on, or, with ``"min"``, equally far.

    :param FieldRows field: With finite penalties.
    :param int num_rounds: At least 1. Each costs O(J·D) a row.
    :return: Shape ``(rows, D)``, infinite where a label is known; derivatives go through all rounds.

    **References**

    Domke (2013): Learning graphical model parameters with approximate marginal inference. IEEE Transactions on Pattern
    Analysis and Machine Intelligence 35(10).
    """
    odds = log_odds(*field.states.chunk(2, -1)).expand(field.num_rows, -1)
    share = 1 / max(1, field.num_patterns) if field.composition == "min" else 0.5
    probs = (odds + field.tilt(torch.full_like(field.biases, share))).sigmoid()
    logits = odds
    for _ in range(num_rounds):
        level = odds
        if field.num_patterns:
            slopes = pattern_slopes(field.activations(probs), field.composition, field.temperature)
            level = odds + field.tilt(slopes)
        if not field.paired:
            logits, probs = level, level.sigmoid()
            continue
        for colour in checkerboard(field.shape, odds.device):
            logits = torch.where(colour, level + neighbour_pull(probs, field.penalties, field.shape), logits)
            probs = logits.sigmoid()
    return logits
