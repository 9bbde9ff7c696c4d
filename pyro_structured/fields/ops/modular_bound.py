"""Upper bounds of partition functions of binary fields under patterns, with sums over pixels in the patterns' place."""

__all__ = ["modular_bound"]

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.grid_strips import GridStrips
from pyro_structured.fields.ops.holder_bound import holder_bound
from pyro_structured.fields.ops.mean_field import mean_field_logits
from pyro_structured.fields.ops.pattern_potential import pattern_potential

# Orders of the pixels that are averaged, before patterns are chosen and after; rounds of a mean-field approximation
# between two of them.
FIRST_ORDERS, NUM_ORDERS, NUM_ROUNDS = 10, 30, 5


def modular_bound(field: Field, strips: list[GridStrips], num_states: int) -> Tensor:
    r"""Computes an upper bound of log Z from sums over pixels that are nowhere less than the patterns' potentials.

    With :math:`z_i = y_i` where a pattern's weight is positive, and :math:`1 - y_i` elsewhere, its potential
    :math:`f_T(c_j + w_j^\top y)` is a supermodular function of z. What each pixel adds to it, when pixels are switched
    on in some order, is a modular function that is nowhere less, so that

    .. math::
        \log Z \le b + \log \sum_y \exp\Bigl(\sum_i s_i(y_i) + \sum_i \lambda_i y_i - \sum_{(i, j)} p_{ij} [y_i \ne
        y_j]\Bigr)

    for every order, and for averages of :math:`b, \lambda` over several. The right side is convex in them, and its
    gradients are the marginals: pixels are sorted by approximate marginals, step by step (Frank and Wolfe). Patterns
    whose majorants are the loosest are kept, as many as :func:`holder_bound` has states for.

    The bound suits fields of many patterns, most of which are almost certain whatever the labels are.

    :param Field field: A field with composition ``"sum"`` and finite penalties.
    :param strips: As for :func:`holder_bound`.
    :param int num_states: The largest number of states of hidden units, all parts together.
    :return: Shape ``(rows,)``, differentiable, with the orders held fixed. Cost O(J·D) for each of 40 orders, and that
        of a bound of fewer patterns.

    **References**

    Lovász (1983): Submodular functions and convexity. Mathematical Programming: The State of the Art. Djolonga, Krause
    (2014): From MAP to marginals: variational inference in Bayesian submodular models. NIPS 27.
    """
    plain, number = field.detach(), _number_kept(field, strips, num_states)
    with torch.no_grad():
        every = plain._replace(weights=plain.weights[:, :0], biases=plain.biases[:, :0])
        _, probs = _descend(every, plain, FIRST_ORDERS)
        missed = _missed(plain, _order(probs), probs)
        places = missed.argsort(-1, descending=True)
        orders, _ = _descend(_chosen(plain, places[:, :number]), _chosen(plain, places[:, number:]), NUM_ORDERS)
    kept, rest = _chosen(field, places[:, :number]), _chosen(field, places[:, number:])
    sums = [_majorant(rest, order) for order in orders]
    tilt, base = (torch.stack(values).mean(0) for values in zip(*sums, strict=True))
    return base + holder_bound(_tilted(kept, tilt), strips, num_states)


def _number_kept(field: Field, strips: list[GridStrips], num_states: int) -> int:
    """Number of patterns that are kept, with a part of :func:`holder_bound` for each set of strips."""
    size = 0
    while len(strips) * 2 ** (size + 1) <= num_states:
        size += 1
    return min(size * len(strips), field.num_patterns)


def _chosen(field: Field, places: Tensor) -> Field:
    """Field with some of the patterns of each row."""
    rows, size = len(places), field.weights.shape[-1]
    weights = field.weights.expand(rows, -1, -1).gather(1, places.unsqueeze(-1).expand(-1, -1, size))
    return field._replace(weights=weights, biases=field.biases.expand(rows, -1).gather(1, places))


def _descend(kept: Field, rest: Field, number: int) -> tuple[list[Tensor], Tensor]:
    """Orders over which bounds are averaged, and marginals of the last approximation, shape ``(rows, D)``."""
    rows, size = kept.num_rows, kept.states.shape[-1] // 2
    tilt, orders = rest.tilt(torch.full_like(rest.biases, 0.5)).expand(max(rows, len(rest.weights)), size), []
    probs = mean_field_logits(_tilted(kept, tilt), NUM_ROUNDS).sigmoid()
    for step in range(number):
        orders.append(_order(probs))
        tilt = tilt + (_majorant(rest, orders[-1])[0] - tilt) / (step + 1)
        probs = mean_field_logits(_tilted(kept, tilt), NUM_ROUNDS).sigmoid()
    return orders, probs


def _order(probs: Tensor) -> Tensor:
    """Order of the labels y and of 1 - y, the largest means first, shape ``(rows, 2 D)``."""
    return torch.sort(torch.cat([probs, 1 - probs], -1), dim=-1, descending=True, stable=True)[1]


def _gains(field: Field, order: Tensor) -> tuple[Tensor, Tensor]:
    """Increments of the patterns' potentials when y and 1 - y are switched on in an order, ``(rows, J, 2 D)``, and the
    potentials before that, ``(rows, J)``.
    """
    number = field.num_patterns
    parts = torch.cat([field.weights.clamp(min=0), -field.weights.clamp(max=0)], -1).expand(len(order), -1, -1)
    places = order.unsqueeze(1).expand(-1, number, -1)
    least = field.biases + field.weights.clamp(max=0).sum(-1)
    passed = torch.nn.functional.pad(parts.gather(-1, places).cumsum(-1), (1, 0)) + least.unsqueeze(-1)
    values = pattern_potential(passed.unsqueeze(-1), "sum", field.temperature)
    return torch.zeros_like(parts).scatter(-1, places, values.diff(dim=-1)), values[..., 0]


def _majorant(field: Field, order: Tensor) -> tuple[Tensor, Tensor]:
    """Modular majorant of the patterns: log-odds added to the pixels, ``(rows, D)``, and value with all labels 0,
    ``(rows,)``.
    """
    gains, starts = _gains(field, order)
    on, off = gains.sum(1).chunk(2, -1)
    return on - off, starts.sum(-1) + off.sum(-1)


def _missed(field: Field, order: Tensor, probs: Tensor) -> Tensor:
    """Excess of the majorants over the potentials at some means of the labels, shape ``(rows, J)``."""
    gains, starts = _gains(field, order)
    sums = (gains @ torch.cat([probs, 1 - probs], -1).unsqueeze(-1)).squeeze(-1) + starts
    return sums - pattern_potential(field.activations(probs).unsqueeze(-1), "sum", field.temperature)


def _tilted(field: Field, tilt: Tensor) -> Field:
    """Field with ``tilt`` added to its log-odds."""
    return field._replace(states=field.states + torch.nn.functional.pad(tilt, (tilt.shape[-1], 0)))
