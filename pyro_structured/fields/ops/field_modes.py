"""Mean-field solutions of binary fields under patterns, one for each of the places where labels are probable."""

__all__ = ["FieldModes", "field_modes"]

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.field_rows import FieldRows
from pyro_structured.fields.ops.field_with_units import checkerboard, neighbour_pull
from pyro_structured.fields.ops.grid_passes import log_add
from pyro_structured.fields.ops.joint_units import times
from pyro_structured.fields.ops.pattern_potential import pattern_slopes
from pyro_structured.foundation.ops.evidence import log_odds

# Log-odds that stand for labels which are all alike, where they are not known.
CERTAIN = 1000.0
# Solutions are the same if labels drawn from them differ in less than one pixel more than they have to.
SAME = 1.0


class FieldModes(NamedTuple):
    """Independent pixels around each mode, the best first.

    :ivar Tensor tilts: What a mode adds to the log-odds of the pixels, finite, shape ``(rows, modes, D)``.
    :ivar Tensor bounds: Lower bounds of log Z that they prove, shape ``(rows, modes)``; -inf where a row has fewer.
    """

    tilts: Tensor
    bounds: Tensor


@torch.no_grad()
def field_modes(field: FieldRows, most: int, num_starts: int, num_rounds: int = 50) -> FieldModes:
    r"""Mean-field solutions from many starts, without those that are alike.

    .. math::
        \log Z \ge \mathbb{E}_q\Bigl[\sum_i s_i(y_i) - \sum_{(i, j)} p_{ij} [y_i \ne y_j]\Bigr] + f_T(W q + c) + H(q).

    The first start is that of :func:`mean_field_logits`; then come labels that are all 0, and all 1, and the labels for
    random states of the hidden units.

    :param FieldRows field: With finite penalties, and a positive temperature.
    :param int most: The largest number of modes.
    :param int num_starts: Number of starts, at least 1.
    :param int num_rounds: Rounds of updates. Each costs O(J·D) a start and row.
    """
    odds = log_odds(*field.states.chunk(2, -1)).expand(field.num_rows, -1).unsqueeze(1)
    if isinstance(field.composition, Tensor):
        field = field._replace(composition=field.composition.unsqueeze(1))
    logits = odds + _first_tilts(field, num_starts)
    probs, tilts = logits.sigmoid(), torch.zeros_like(logits)
    for _ in range(num_rounds):
        slopes = pattern_slopes(_activations(field, probs), field.composition, field.temperature)
        level = times(slopes, field.weights)
        if not field.paired:
            tilts, probs = level, (odds + level).sigmoid()
            continue
        for colour in checkerboard(field.shape, probs.device):
            pull = neighbour_pull(probs, field.penalties.unsqueeze(1), field.shape)
            tilts = torch.where(colour, level + pull, tilts)
            probs = (odds + tilts).sigmoid()
    return _apart(FieldModes(tilts, _bounds(field, tilts, probs)), probs, most)


def _first_tilts(field: FieldRows, number: int) -> Tensor:
    """Shape ``(rows, starts, D)``."""
    units, shape = field.num_patterns, (field.num_rows, number)
    noise = torch.rand(*shape, units, dtype=field.weights.dtype, device=field.weights.device)
    if field.composition == "min":
        shares = (noise == noise.amax(-1, keepdim=True)).to(noise.dtype)
        shares[:, 0] = 1 / max(1, units)
    else:
        shares = (noise < torch.rand_like(noise[..., :1])).to(noise.dtype)
        shares[:, 0] = 0.5
    tilts = times(shares, field.weights).expand(*shape, -1).clone()
    tilts[:, 1:2], tilts[:, 2:3] = -CERTAIN, CERTAIN
    return tilts


def _activations(field: FieldRows, probs: Tensor) -> Tensor:
    return times(probs, field.weights.mT) + field.biases.unsqueeze(1)


def _bounds(field: FieldRows, tilts: Tensor, probs: Tensor) -> Tensor:
    off, on = field.states.unsqueeze(1).chunk(2, -1)
    found = log_add(off, on + tilts).sum(-1) - (tilts * probs).sum(-1) + field.potential(_activations(field, probs))
    if field.paired:
        found = found - (field.penalties.unsqueeze(1) * field.differing(probs)).sum(-1)
    return found


def _apart(modes: FieldModes, probs: Tensor, most: int) -> FieldModes:
    """The best, the best of those unlike it, and so on."""
    left, rows = modes.bounds.clone(), torch.arange(len(probs), device=probs.device)
    tilts, bounds = [], []
    for _ in range(min(most, left.shape[-1])):
        best, place = left.max(-1)
        tilts.append(modes.tilts[rows, place])
        bounds.append(best)
        distance = (probs - probs[rows, place].unsqueeze(1)).abs().sum(-1)
        left = left.masked_fill(distance < SAME, -torch.inf)
    found = torch.stack(bounds, -1)
    used = int((found > -torch.inf).any(0).sum())
    return FieldModes(torch.stack(tilts[:used], 1), found[:, :used])
