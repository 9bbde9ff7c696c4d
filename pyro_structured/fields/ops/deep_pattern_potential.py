"""Log-weights that patterns add to a labelling under a second layer of hidden units, which couples the patterns."""

__all__ = ["deep_pattern_potential", "deep_pattern_slopes", "deep_states", "number_of_deep_states", "upper_worth"]

import math

import torch
from torch import Tensor

from pyro_structured.fields.ops.pattern_potential import pattern_potential
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

# Numbers that are computed together.
NUMBERS_AT_ONCE = 2**22


def deep_pattern_potential(activations: Tensor, upper_weights: Tensor, upper_logits: Tensor) -> Tensor:
    r"""Computes :math:`f(a) = \log \sum_{h \in \{0,1\}^J} \sum_{g \in \{0,1\}^K} \exp(a^\top h + (d + V h)^\top g)`.

    It is convex in the activations, and log Z of a restricted Boltzmann machine whose units are h and g. The sum is
    over the states of the layer that has fewer units, those of the other one are summed out:

    .. math::
        f(a) = \log \sum_h \exp\Bigl(a^\top h + \sum_k \log\bigl(1 + e^{d_k + V_k^\top h}\bigr)\Bigr) = \log \sum_g
        \exp\Bigl(d^\top g + \sum_j \log\bigl(1 + e^{a_j + V_{\cdot j}^\top g}\bigr)\Bigr).

    :param Tensor activations: Log-odds of the patterns' hidden units by themselves, :math:`a_j = c_j + w_j^\top y`,
        shape ``(..., J)``, less than +inf.
    :param Tensor upper_weights: V, finite, shape ``(..., K, J)``.
    :param Tensor upper_logits: d, shape ``(..., K)``, less than +inf.
    :return: Shape ``(...)``; differentiable any number of times. Cost O(2^min(J, K)·max(J, K)), and as many numbers are
        kept for derivatives.

    Example::

        >>> together = torch.tensor([[5.0, 5.0]])
        >>> deep_pattern_potential(torch.tensor([[-3.0, -3.0], [1.0, 1.0]]), together, torch.tensor([-5.0]))
        tensor([0.4550, 7.0174])
        >>> deep_pattern_potential(torch.tensor([1.0]), torch.zeros(0, 1), torch.zeros(0))
        tensor(1.3133)
    """
    states = _smaller(activations, upper_logits)
    rows = broadcast_shapes(activations.shape[:-1], upper_weights.shape[:-2], upper_logits.shape[:-1]).numel()
    wide = 1 if activations.shape[-1] <= upper_logits.shape[-1] else activations.shape[-1]
    parts = [
        logsumexp(_log_weights(activations, upper_weights, upper_logits, batch))
        for batch in states.split(max(1, NUMBERS_AT_ONCE // max(1, rows * wide)))
    ]
    return parts[0] if len(parts) == 1 else logsumexp(torch.stack(parts, -1))


def deep_states(activations: Tensor, upper_weights: Tensor, upper_logits: Tensor) -> tuple[Tensor, Tensor]:
    """The states of the smaller layer, h where both have as many units, shape ``(S, units)``, and their log-weights,
    the other layer summed out, shape ``(..., S)``; arguments as for :func:`deep_pattern_potential`.
    """
    states = _smaller(activations, upper_logits)
    return states, _log_weights(activations, upper_weights, upper_logits, states)


def upper_worth(states: Tensor, upper_weights: Tensor, upper_logits: Tensor) -> Tensor:
    """Log-weights that the upper units, summed out, add to states of the patterns, shape ``(..., S)``.

    :param Tensor states: Shape ``(S, J)``.
    """
    numbers = math.prod(upper_weights.shape[:-1])
    parts = [
        pattern_potential(batch @ upper_weights.mT + upper_logits.unsqueeze(-2), "sum", 1.0)
        for batch in states.split(max(1, NUMBERS_AT_ONCE // max(1, numbers)))
    ]
    return torch.cat(parts, -1)


def number_of_deep_states(number: int, upper: int) -> int:
    """Number of :func:`deep_states` for ``number`` patterns and ``upper`` units over them."""
    return int(2 ** min(number, upper))


def deep_pattern_slopes(activations: Tensor, upper_weights: Tensor, upper_logits: Tensor) -> Tensor:
    """Derivatives of :func:`deep_pattern_potential` along the activations: probabilities that patterns are on.

    Example::

        >>> deep_pattern_slopes(torch.zeros(2), torch.zeros(1, 2), torch.zeros(1))
        tensor([0.5000, 0.5000])
    """
    states, log_weights = deep_states(activations, upper_weights, upper_logits)
    probs = log_weights.softmax(-1)
    if activations.shape[-1] <= upper_logits.shape[-1]:
        return probs @ states
    on = (activations.unsqueeze(-2) + states @ upper_weights).sigmoid()
    return (probs.unsqueeze(-2) @ on).squeeze(-2)


def _smaller(activations: Tensor, upper_logits: Tensor) -> Tensor:
    """States of the layer that has fewer units."""
    return all_labelings(min(activations.shape[-1], upper_logits.shape[-1]), activations)


def _log_weights(activations: Tensor, upper_weights: Tensor, upper_logits: Tensor, states: Tensor) -> Tensor:
    """Log-weights of some states of the smaller layer, shape ``(..., S)``."""
    if activations.shape[-1] <= upper_logits.shape[-1]:
        return _worth(activations, states) + upper_worth(states, upper_weights, upper_logits)
    fields = activations.unsqueeze(-2) + states @ upper_weights
    return _worth(upper_logits, states) + pattern_potential(fields, "sum", 1.0)


def _worth(logits: Tensor, states: Tensor) -> Tensor:
    """Log-weights of states by the logits alone, shape ``(..., S)``; -inf where a unit of logit -inf is on."""
    never = logits == -torch.inf
    worth = logits.masked_fill(never, 0.0) @ states.T
    return worth.masked_fill(never.to(states.dtype) @ states.T > 0, -torch.inf)
