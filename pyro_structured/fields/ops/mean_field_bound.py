"""Lower bounds of partition functions of binary fields under patterns by structured mean-field approximations."""

__all__ = ["mean_field_bound"]

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.grid_strips import GridStrips, log_partition_of_units
from pyro_structured.fields.ops.hidden_states import log_worth, unit_powers
from pyro_structured.fields.ops.pattern_potential import pattern_slopes

# A row has converged when a round of updates gains less than this share of the bound.
TOLERANCE = 1e-9


def mean_field_bound(field: Field, strips: GridStrips, num_exact: int, num_rounds: int = 100) -> Tensor:
    r"""Computes :math:`\log Z \ge \mathbb{E}_q[s(y)] + H(q)` for the best q that coordinate ascent finds.

    Under q the strips are independent, each an exact field, and hidden units enter through means :math:`\mu`:

    .. math::
        f_T(a) = \max_\mu \; \mu^\top a + T H(\mu) \quad\text{is convex, so}\quad
        \mathbb{E}_q[f_T(W y + c)] \ge f_T(W \mathbb{E}_q[y] + c),

    at every temperature and with every composition. At T = 1 this is the mean-field bound of the joint distribution of
    y and h. Units with the largest weights are not approximated but summed exactly under q, where T is an integer,
    nothing is cut, and the composition is ``"sum"``; the bound is exact if these are all. Rounds never make it worse;
    the best of three starts is returned. Penalties of pairs between strips have to be finite.

    :param Field field: A field with any composition.
    :param GridStrips strips: Strips, within which q is exact.
    :param int num_exact: The largest number of states of the units that are summed exactly.
    :param int num_rounds: The largest number of rounds.
    :return: Shape ``(rows,)``, differentiable, with q held fixed. Cost of a round: that of a pass over the strips.

    **References**

    Li (2013), Section 4.2. Saul, Jordan (1996): Exploiting tractable substructures in intractable networks. NIPS 8.
    """
    number = _number_exact(field, strips, num_exact)
    order = field.weights.detach().abs().sum(-1).argsort(-1, descending=True)
    split = _Split(field, strips, *_divided(field, order, number))
    with torch.no_grad():
        rows = field.num_rows
        starts = _starts(split)
        repeated = field.detach().repeat(len(starts))
        places = order if len(order) == 1 else order.repeat_interleave(len(starts), 0)
        many = _Split(repeated, strips, *_divided(repeated, places, number))
        tilt = _ascend(many, torch.stack(starts, 1).flatten(0, 1), num_rounds)
        values = many.bound(tilt, many.means(tilt)[1]).reshape(rows, len(starts))
        tilt = tilt.reshape(rows, len(starts), -1)[torch.arange(rows), values.argmax(-1)]
        means = split.means(tilt)[1]
    return split.bound(tilt, means)


class _Split(NamedTuple):
    """A field whose hidden units are in part summed exactly, in part approximated by means.

    :ivar Field field: The whole field.
    :ivar GridStrips strips: Strips, independent of each other under q.
    :ivar Field exact: The field with only the units that are summed.
    :ivar Field rest: The field with only the units that have means.
    """

    field: Field
    strips: GridStrips
    exact: Field
    rest: Field

    def log_partition(self, tilt: Tensor) -> Tensor:
        """Log Z of q, shape ``(rows,)``, whose log-odds are the field's plus ``tilt``."""
        replicas, number = max(1, int(self.field.temperature)), self.exact.num_patterns
        shares, log_numbers = unit_powers(number, replicas, tilt)
        rows = len(tilt)
        biases = self.exact.biases.expand(rows, -1)
        states = self.field.with_tilt(tilt).states
        weights = self.exact.weights.expand(rows, -1, -1)
        log_weights = log_worth(biases, shares) + log_numbers
        return log_partition_of_units(states, self.field.penalties, weights, log_weights, shares, self.strips)

    def means(self, tilt: Tensor) -> tuple[Tensor, Tensor]:
        """Log Z of q, shape ``(rows,)``, and its means of the indicators, shape ``(rows, n D)``."""
        with torch.enable_grad():
            point = tilt.detach().requires_grad_()
            log_z = self.log_partition(point)
            (means,) = torch.autograd.grad(log_z.sum(), point)
        return log_z.detach(), means.clamp(0, 1)

    def bound(self, tilt: Tensor, means: Tensor, log_z: Tensor | None = None) -> Tensor:
        """Lower bound of log Z at q, shape ``(rows,)``."""
        log_z = self.log_partition(tilt) if log_z is None else log_z
        patterns = self.rest.potential(self.rest.activations(means))
        return log_z - (tilt * means).sum(-1) + patterns - self.between(means).sum(-1)

    def between(self, means: Tensor) -> Tensor:
        """Expected penalties of pairs between strips, a column for each such pair."""
        if not self.field.is_paired or self.strips.whole:
            return means[:, :0]
        cut = ~self.strips.kept.to(means.device)
        return self.field.penalties[:, cut] * self.field.differing(means)[:, cut]

    def better_tilt(self, means: Tensor) -> Tensor:
        """Tilt that is best at given means: derivatives along them of the terms that q only approximates, the patterns'
        potential and the penalties between strips.
        """
        with torch.enable_grad():
            point = means.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(-self.between(point).sum() + 0 * point.sum(), point)
        if not self.rest.num_patterns:
            return gradient
        slopes = pattern_slopes(self.rest.activations(means), self.rest.composition, self.rest.temperature)
        return gradient + self.rest.tilt(slopes)


def _ascend(split: _Split, tilt: Tensor, num_rounds: int) -> Tensor:
    """Coordinate ascent: all strips of one colour are updated together, since none are neighbours."""
    colours = [None] if split.strips.whole or not split.field.is_paired else [0, 1]
    own = split.strips.colour.to(tilt.device).repeat(tilt.shape[-1] // split.field.num_pixels)
    value = torch.full_like(tilt[:, 0], -torch.inf)
    log_z, means = split.means(tilt)
    for _ in range(num_rounds):
        for colour in colours:
            better = split.better_tilt(means)
            tilt = better if colour is None else torch.where(own == colour, better, tilt)
            log_z, means = split.means(tilt)
        bound = split.bound(tilt, means, log_z)
        if not bool((bound > value + TOLERANCE * (1 + bound.abs())).any()):
            break
        value = bound
    return tilt


def _starts(split: _Split) -> list[Tensor]:
    """Tilts at labels drawn independently, and at labels that are all the same where this is possible."""
    field = split.field
    states = field.label_states.expand(field.num_rows, -1, -1)
    alone = states.softmax(1)
    if field.is_binary:
        ends = [states[:, 0] == -torch.inf, states[:, 1] > -torch.inf]
        return [split.better_tilt(means.to(states.dtype)) for means in (alone[:, 1], *ends)]
    alike = [torch.zeros_like(states) for _ in range(field.num_labels)]
    for label, means in enumerate(alike):
        means[:, label] = 1.0
    return [split.better_tilt(means.flatten(1)) for means in (alone, *alike)]


def _number_exact(field: Field, strips: GridStrips, num_exact: int) -> int:
    """Number of hidden units that are summed exactly under q."""
    replicas = int(field.temperature)
    if field.composition != "sum" or replicas != field.temperature or not replicas:
        return 0
    if field.is_paired and not strips.whole:
        return 0
    number = 0
    while number < field.num_patterns and (replicas + 1) ** (number + 1) <= num_exact:
        number += 1
    return number


def _divided(field: Field, order: Tensor, number: int) -> tuple[Field, Field]:
    """Field with only the first ``number`` patterns in an order, and field with only the others."""
    if not number:
        return field._replace(weights=field.weights[:, :0], biases=field.biases[:, :0], composition="sum"), field
    rows = max(len(field.weights), len(field.biases))
    weights = field.weights.expand(rows, -1, -1).gather(
        1, order.expand(rows, -1).unsqueeze(-1).expand_as(field.weights.expand(rows, -1, -1))
    )
    biases = field.biases.expand(rows, -1).gather(1, order.expand(rows, -1))
    return (
        field._replace(weights=weights[:, :number], biases=biases[:, :number]),
        field._replace(weights=weights[:, number:], biases=biases[:, number:]),
    )
