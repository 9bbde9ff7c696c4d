"""Mean-field approximations of fields under patterns, after a few rounds of updates."""

__all__ = ["mean_field_log_probs", "mean_field_logits"]

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.field_sweeps import checkerboard, neighbour_pull


def mean_field_logits(field: Field, num_rounds: int) -> Tensor:
    r"""Log-odds of independent pixels that are updated in turn, so that a lower bound of log Z never falls.

    .. math::
        \log Z \ge \mathbb{E}_q\Bigl[\sum_i s_i(y_i) - \sum_{(i, j)} p_{ij} [y_i \ne y_j]\Bigr] + f_T(W q + c) + H(q).

    A round finds the means of the hidden units, the slopes of :math:`f_T` at the present means of the labels, and then
    updates the pixels of one colour of the checkerboard after the other, which is best for the tangent of :math:`f_T`.
    In the first round, all hidden units have the mean 1/2, or, with ``"min"``, 1/J.

    :param Field field: A field of zeros and ones, with finite penalties and one layer of hidden units.
    :param int num_rounds: Number of rounds, at least 1. Each costs O(J·D) a row.
    :return: Shape ``(rows, D)``, infinite where a label is known; derivatives go through all rounds.

    **References**

    Domke (2013): Learning graphical model parameters with approximate marginal inference. IEEE Transactions on Pattern
    Analysis and Machine Intelligence 35(10).
    """
    odds = field.odds.expand(field.num_rows, -1)
    share = 1 / max(1, field.num_patterns) if field.composition == "min" else 0.5
    probs = (odds + field.tilt(torch.full_like(field.biases, share))).sigmoid()
    logits = odds
    for _ in range(num_rounds):
        level = odds
        if field.num_patterns:
            level = odds + field.tilt(field.slopes(field.activations(probs)))
        if not field.is_paired:
            logits, probs = level, level.sigmoid()
            continue
        for colour in checkerboard(field.shape, odds.device):
            logits = torch.where(colour, level + neighbour_pull(probs, field.penalties, field.shape), logits)
            probs = logits.sigmoid()
    return logits


def mean_field_log_probs(field: Field, num_rounds: int) -> Tensor:
    """Log-probabilities of the labels of independent pixels, updated as by :func:`mean_field_logits`.

    :param Field field: A field with finite penalties and any number K of labels, all of which the patterns weigh.
    :param int num_rounds: Number of rounds, at least 1. Each costs O(J·K·D) a row.
    :return: Shape ``(rows, K, D)``; derivatives go through all rounds.
    """
    rows, size = field.num_rows, (field.num_labels, field.num_pixels)
    states = field.label_states.expand(rows, -1, -1)
    share = 1 / max(1, field.num_patterns) if field.composition == "min" else 0.5
    logits: Tensor = (states + field.tilt(torch.full_like(field.biases, share)).unflatten(-1, size)).log_softmax(-2)
    for _ in range(num_rounds):
        level = states
        if field.num_patterns:
            slopes = field.slopes(field.activations(logits.exp().flatten(1)))
            level = states + field.tilt(slopes).unflatten(-1, size)
        if not field.is_paired:
            logits = level.log_softmax(-2)
            continue
        for colour in checkerboard(field.shape, states.device):
            pull = neighbour_pull(logits.exp(), field.penalties.unsqueeze(1), field.shape) / 2
            logits = torch.where(colour, (level + pull).log_softmax(-2), logits)
    return logits
