"""Bethe approximations of partition functions of binary fields under patterns, by belief propagation."""

__all__ = ["bethe_log_partition"]

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.foundation.ops.evidence import log_odds

# Log-odds of variables whose value is known, larger than the messages to them.
CERTAIN = 1e6
DAMPING = 0.5


def bethe_log_partition(field: Field, num_rounds: int = 100) -> Tensor:
    r"""Computes minus the Bethe free energy of labels and hidden units.

    .. math::
        \max_\tau \; \mathbb{E}_\tau[s(y, h)] + \sum_i H(\tau_i) - \sum_{(i, j)} I(\tau_{ij}).

    The maximum is over probabilities :math:`\tau` of single variables and pairs that agree with each other; I is the
    information that the two variables of a pair have of each other. Damped belief propagation looks for it, from three
    starts, and the result is the largest value at probabilities that do agree, whether it has converged or not: the
    probabilities of pairs are the best for given single ones, in the closed form of Welling and Teh.

    It is exact without cycles. Where the signs of all couplings are balanced, every cycle having an even number of
    negative ones, it is a lower bound (Ruozzi, 2012); otherwise it is an approximation that may be on either side.

    :param Field field: A field with composition ``"sum"``, temperature 1, and finite penalties.
    :param int num_rounds: Number of updates of all messages.
    :return: Shape ``(rows,)``, differentiable, with the probabilities held fixed. Cost O(J·D + E) for each round.

    **References**

    Yedidia, Freeman, Weiss (2005): Constructing free-energy approximations and generalized belief propagation
    algorithms. IEEE Transactions on Information Theory 51. Welling, Teh (2001): Belief optimization for binary
    networks. UAI. Ruozzi (2012): The Bethe partition function of log-supermodular graphical models. NIPS.
    """
    rows = field.num_rows
    with torch.no_grad():
        fixed = field.detach()
        candidates = []
        for level in (0.0, -1.0, 1.0):
            beliefs = _propagate(fixed, level, num_rounds)
            candidates.append((_value(fixed, *beliefs), *beliefs))
        values, pixels, units = (torch.stack(column) for column in zip(*candidates, strict=True))
        best, order = values.argmax(0), torch.arange(rows, device=values.device)
    return _value(field, pixels[best, order], units[best, order])


class _Messages(NamedTuple):
    """Messages of belief propagation, as log-odds.

    :ivar Tensor up: Messages from pixels to units, shape ``(rows, J, D)``.
    :ivar Tensor down: Messages from units to pixels, shape ``(rows, J, D)``.
    :ivar Tensor side: Messages from the second to the first pixels of pairs, and then from the first to the second
        ones, shape ``(rows, 2 E)``.
    """

    up: Tensor
    down: Tensor
    side: Tensor


def _propagate(field: Field, level: float, num_rounds: int) -> tuple[Tensor, Tensor]:
    """Probabilities that pixels, ``(rows, D)``, and hidden units, ``(rows, J)``, are on.

    :param float level: Initial messages as a share, from -1 to 1, of the largest possible ones.
    """
    rows, number = field.num_rows, field.num_patterns
    odds = _odds(field).expand(rows, -1)
    weights = field.weights.expand(rows, -1, -1)
    penalties = field.penalties.expand(rows, -1)
    biases = field.biases.expand(rows, -1).clamp(min=-CERTAIN)
    targets = field.edges[: penalties.shape[-1]].T.flatten()
    both = penalties.repeat(1, 2)
    messages = _Messages(level * weights.abs(), level * weights.abs(), level * both.abs())
    for _ in range(num_rounds):
        into_pixels = (odds + messages.down.sum(1)).index_add(1, targets, messages.side)
        # Cavity log-odds of the receiver of each message, shape (rows, 2 E), and then of its sender.
        cavity = into_pixels[:, targets] - messages.side
        senders = torch.cat(cavity.chunk(2, -1)[::-1], -1)
        side = torch.logaddexp(senders, -both) - torch.logaddexp(senders - both, torch.zeros_like(both))
        up = _through(into_pixels.unsqueeze(1) - messages.down, weights)
        down = _through((biases + messages.up.sum(-1)).unsqueeze(-1) - messages.up, weights)
        messages = _Messages(*(old.lerp(new, DAMPING) for old, new in zip(messages, (up, down, side), strict=True)))
    pixels = (odds + messages.down.sum(1)).index_add(1, targets, messages.side)
    return pixels.sigmoid(), (biases + messages.up.sum(-1)).sigmoid().reshape(rows, number).expand(rows, number)


def _through(odds: Tensor, weights: Tensor) -> Tensor:
    r"""Messages :math:`\log\frac{1 + e^{a + w}}{1 + e^a}` of variables with cavity log-odds a across weights w."""
    return torch.nn.functional.softplus(odds + weights, threshold=40) - torch.nn.functional.softplus(odds, threshold=40)


def _odds(field: Field) -> Tensor:
    return log_odds(*field.states.chunk(2, -1)).clamp(-CERTAIN, CERTAIN)


def _value(field: Field, pixels: Tensor, units: Tensor) -> Tensor:
    """Minus the Bethe free energy at marginals of the pixels, ``(rows, D)``, and hidden units, ``(rows, J)``; shape
    ``(rows,)``.
    """
    off, on = field.states.chunk(2, -1)
    never, always = on == -torch.inf, off == -torch.inf
    pixels = pixels.masked_fill(never, 0.0).masked_fill(always, 1.0)
    possible = field.biases > -torch.inf
    units = units.masked_fill(~possible, 0.0)
    worth = (off.masked_fill(always, 0.0) * (1 - pixels) + on.masked_fill(never, 0.0) * pixels).sum(-1)
    worth = worth + (field.biases.masked_fill(~possible, 0.0) * units).sum(-1)
    worth = worth + _entropy(torch.stack([pixels, 1 - pixels])).sum(-1)
    worth = worth + _entropy(torch.stack([units, 1 - units])).sum(-1)
    if field.num_patterns:
        together, information = _pairs(pixels.unsqueeze(1), units.unsqueeze(-1), field.weights.detach())
        worth = worth + (field.weights * together - information).sum((-1, -2))
    if field.is_paired:
        first, second = pixels[:, field.edges[:, 0]], pixels[:, field.edges[:, 1]]
        together, information = _pairs(first, second, 2 * field.penalties.detach())
        worth = worth - (field.penalties * (first + second - 2 * together) + information).sum(-1)
    return worth


def _pairs(first: Tensor, second: Tensor, couplings: Tensor) -> tuple[Tensor, Tensor]:
    """Best probabilities that both variables of a pair are on, given their marginals, and their mutual information.

    For a positive coupling, the smaller root of Welling and Teh's quadratic equation, times exp(-coupling); for a
    negative one, the same of one variable and the opposite of the other.
    """
    negative = couplings < 0
    flipped = torch.where(negative, 1 - second, second)
    small = (-couplings.abs()).exp()
    half = small + (1 - small) * (first + flipped)
    root = (half.square() - 4 * (1 - small) * first * flipped).clamp(min=0).sqrt()
    product = first * flipped
    together = 2 * product / (half + root).masked_fill(product == 0, 1.0)
    together = torch.minimum(torch.minimum(together, first), flipped).maximum((first + flipped - 1).clamp(min=0))
    together = torch.where(negative, first - together, together)
    cells = torch.stack([together, first - together, second - together, 1 - first - second + together]).clamp(min=0)
    singles = _entropy(torch.stack([first, 1 - first])) + _entropy(torch.stack([second, 1 - second]))
    return together, singles - _entropy(cells)


def _entropy(cells: Tensor) -> Tensor:
    """Entropies of distributions whose probabilities are along the first axis."""
    return -cells.xlogy(cells).sum(0)
