"""Probabilities of orders of independent continuous variables."""

__all__ = ["log_chain", "log_plackett_luce", "log_separation"]

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import log_cumulative_sums
from pyro_structured.optima.ops.line_probability import LineRule, LineVariables, Terms, log_line_probability
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE, Panels


def log_separation(variables: LineVariables, low: Tensor, high: Tensor) -> Tensor:
    r"""Logarithm of the probability that some variables are all less than some others.

    .. math::
        P(\max_{i \in L} w_i < \min_{j \in H} w_j) = \int \sum_{i \in L} f_i(x) \prod_{l \in L \setminus i} F_l(x)
        \prod_{h \in H} (1 - F_h(x)) \, dx.

    :param LineVariables variables: Rows of n variables.
    :param Tensor low: Variables that belong to L, booleans of shape ``(rows, n)``.
    :param Tensor high: Variables that belong to H, booleans of the same shape; variables in neither do not matter.
    :return: Shape ``(rows,)``; relative error of the probability about 1e-10, differentiable; see
        :func:`log_line_probability`. O(n) a node, and a number of panels of 16 nodes that depends on how different
        scales and places are.
    :raises RuntimeError: if the integral does not converge.

    Example::

        >>> def terms(x, loc):
        ...     below, above = torch.nn.functional.logsigmoid(x - loc), torch.nn.functional.logsigmoid(loc - x)
        ...     return below + above, below, above
        >>> loc = torch.tensor([[0.0, 1.0]], dtype=torch.double)  # two logistic variables
        >>> points = torch.linspace(-40, 40, 17, dtype=torch.double).reshape(-1, 1, 1)
        >>> variables = LineVariables(terms, lambda loc: loc + points, lambda loc: (), (loc,))
        >>> low = torch.tensor([[True, False]])
        >>> log_separation(variables, low, ~low).exp()
        tensor([0.6613], dtype=torch.float64)
    """
    certain = ~(low.any(-1) & high.any(-1))
    return log_line_probability(SEPARATION, variables, low, high).masked_fill(certain, 0.0)


def _separation_densities(terms: Terms, low: Tensor, high: Tensor) -> Tensor:
    """Log-densities of the largest of L and of the smallest of H, jointly with the order, shape ``(Q, rows, 2)``."""
    density, below, above = terms
    factors = below.where(low, above.where(high, 0.0))
    joint = density + _sums_before(factors) + _sums_after(factors)
    return torch.stack([joint.where(side, IMPOSSIBLE).logsumexp(-1) for side in (low, high)], -1)


def _separation_integrals(panels: Panels, terms: Terms, low: Tensor, high: Tensor) -> Tensor:
    largest, smallest = _separation_densities(terms, low, high).unbind(-1)
    return torch.stack([panels.log_total(largest), panels.log_total(smallest)], -1)


def _separation_weights(panels: Panels, terms: Terms, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    densities = _separation_densities(terms, low, high) + panels.log_weight.flatten(0, 1).unsqueeze(-1)
    largest, smallest = densities.softmax(0).split(1, -1)
    return smallest.where(low, 0.0), largest.where(high, 0.0)


SEPARATION = LineRule(_separation_densities, _separation_integrals, _separation_weights)


def log_chain(variables: LineVariables) -> Tensor:
    r"""Logarithm of the probability that variables are in ascending order.

    .. math::
        P(w_1 < \dots < w_n) = G_1(-\infty), \qquad G_m(x) = \int_x^\infty f_m(t) G_{m+1}(t) \, dt, \qquad G_{n+1} = 1.

    :param LineVariables variables: Rows of n variables.
    :return: Shape ``(rows,)``; relative error of the probability about 1e-10, differentiable; see
        :func:`log_line_probability`. O(n) a node, and a number of panels of 16 nodes that depends on how different
        scales and places are.
    :raises RuntimeError: if the integrals do not converge.
    """
    return log_line_probability(CHAIN, variables)


def _chain_bounds(terms: Terms) -> Tensor:
    """Upper bounds of the log-densities of all variables, jointly with the order, at ascending numbers: variables
    between the same two numbers count as ordered.
    """
    density, below, above = terms
    behind = _log_behind(_log_sums, above.minimum(_later(below)), above)
    below, above = below.flip(0, -1), above.flip(0, -1)
    return density + behind + _log_behind(_log_sums, below.minimum(_later(above)), below).flip(0, -1)


def _later(terms: Tensor) -> Tensor:
    """Terms at the next number; 0 at the last."""
    return torch.nn.functional.pad(terms[1:], (0, 0, 0, 0, 0, 1))


def _log_sums(terms: Tensor) -> Tensor:
    return log_cumulative_sums(terms.flip(0).movedim(0, -1)).movedim(-1, 0).flip(0)


def _log_behind(log_above: Callable[[Tensor], Tensor], terms: Tensor, above: Tensor) -> Tensor:
    """Log-probabilities that the variables behind each are larger than a number and in order, of ``above``'s shape."""
    # Without the order of the variables behind, the probability is larger: a bound for panels that are too coarse.
    bounds = _sums_after(above).unbind(-1)
    tails = list(bounds[-1:])
    for now, bound in zip(reversed(terms.unbind(-1)[1:]), reversed(bounds[:-1]), strict=True):
        # Behind the last but one is the last alone, whose survival function is known.
        tails.append(bound if len(tails) == 1 else log_above(now + tails[-1]).minimum(bound))
    return torch.stack(tails[::-1], -1)


def _chain_integrals(panels: Panels, terms: Terms) -> Tensor:
    density, _, above = terms
    behind = _log_behind(panels.log_above, density, above)
    return panels.log_total((density + behind)[..., 0]).unsqueeze(-1)


def _chain_weights(panels: Panels, terms: Terms) -> tuple[Tensor, Tensor]:
    density, below, above = terms
    behind = _log_behind(panels.log_above, density, above)
    ahead = _log_behind(panels.mirrored().log_above, density.flip(0, -1), below.flip(0, -1)).flip(0, -1)
    total = panels.log_total((density + behind)[..., 0])
    scale = (panels.log_weight.flatten(0, 1) - total.where(total > IMPOSSIBLE / 2, 0.0)).unsqueeze(-1)
    next_one, one_before = density + behind + scale, density + ahead + scale
    pad = torch.nn.functional.pad
    # Of the probability that a variable is smaller and of that that it is larger, which change by opposite amounts, the
    # one that is the smaller: densities of the others alone, which need not be in order then, may be exp(1000) times
    # as large as all are together.
    smaller, is_low = torch.minimum(below, above), below < above
    first = pad((next_one[..., 1:] + (ahead + smaller)[..., :-1]).exp(), (0, 1))
    last = pad((one_before[..., :-1] + (behind + smaller)[..., 1:]).exp(), (1, 0))
    return (first - last).where(is_low, 0.0), (last - first).where(~is_low, 0.0)


CHAIN = LineRule(_chain_bounds, _chain_integrals, _chain_weights)


def _sums_before(terms: Tensor) -> Tensor:
    """Sums of all terms with smaller indices; nothing is subtracted."""
    return torch.nn.functional.pad(terms[..., :-1].cumsum(-1), (1, 0))


def _sums_after(terms: Tensor) -> Tensor:
    return _sums_before(terms.flip(-1)).flip(-1)


def log_plackett_luce(logits: Tensor) -> Tensor:
    r"""Logarithm of the probability that items are drawn in this order, without replacement.

    .. math::
        P(1, \dots, n) = \prod_{i=1}^n \frac{e^{l_i}}{\sum_{j \ge i} e^{l_j}}.

    :param Tensor logits: Logits l of the items in this order, shape ``(..., n)``.

    Example::

        >>> log_plackett_luce(torch.tensor([1.0, 1.0, 2.0]).log()).exp()
        tensor(0.0833)
    """
    rest = log_cumulative_sums(logits.flip(-1)).flip(-1)
    return (logits - rest).sum(-1)
