"""Log-weights that patterns add to a labelling, their hidden units summed or maximised out."""

__all__ = ["PatternTemplate", "pattern_from_template", "pattern_potential", "pattern_slopes", "template_of_pattern"]

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.certified_counts import log_partition
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.foundation.ops.log_space import logsumexp


def pattern_potential(activations: Tensor, composition: Tensor | str, temperature: float) -> Tensor:
    r"""Computes :math:`f_T(a) = T \log \sum_{h \in \{0,1\}^J} \exp\frac{1}{T}\bigl(a^\top h + g(\sum_j h_j)\bigr)`.

    This is minus Equation (4.1) of the thesis. For T = 0 it is the limit, :math:`\max_h a^\top h + g(\sum_j h_j)`. The
    four cases of Table 3.1 are ``"sum"`` and ``"min"`` at the temperatures 0 and 1.

    :param Tensor activations: Log-odds of the hidden units, :math:`a_j = c_j + w_j^\top y`, shape ``(..., J)``, less
        than +inf.
    :param composition: The table g, shape ``(..., J + 1)``, less than +inf; ``"sum"`` for zeros, ``"min"`` where
        exactly one unit is on, each in less time than with a table.
    :param float temperature: T, at least 0.
    :return: Shape ``(...)``. Cost O(J), with a table O(J log² J).

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Table 3.1, Equations (4.1) to (4.5).

    Example::

        >>> a = torch.tensor([1.0, -2.0])
        >>> pattern_potential(a, "sum", 0.0), pattern_potential(a, "min", 0.0), pattern_potential(a, "min", 1.0)
        (tensor(1.), tensor(1.), tensor(1.0486))
    """
    if isinstance(composition, str):
        if temperature == 0:
            return activations.clamp(min=0).sum(-1) if composition == "sum" else activations.amax(-1)
        scaled = activations / temperature
        return temperature * (_softplus(scaled).sum(-1) if composition == "sum" else logsumexp(scaled))
    if not activations.shape[-1]:
        return activations.sum(-1) + composition[..., 0]
    if temperature == 0:
        best = torch.nn.functional.pad(activations.sort(-1, descending=True)[0].cumsum(-1), (1, 0))
        return (best + composition).amax(-1)
    tables = (composition / temperature).double()
    log_z = log_partition((activations / temperature).double(), tables, _counts(activations.shape[-1]))
    return temperature * log_z.to(activations.dtype)


def pattern_slopes(activations: Tensor, composition: Tensor | str, temperature: float) -> Tensor:
    """Derivatives of :func:`pattern_potential`, the means of the hidden units; at temperature 0, a subgradient.

    They are differentiable where gradients are recorded.

    Example::

        >>> pattern_slopes(torch.tensor([0.0, -torch.inf, 1.0]), "sum", 1.0)
        tensor([0.5000, 0.0000, 0.7311])
    """
    if isinstance(composition, str):
        if temperature > 0:
            scaled = activations / temperature
            return scaled.sigmoid() if composition == "sum" else scaled.softmax(-1)
        on = activations >= (0 if composition == "sum" else activations.amax(-1, keepdim=True))
        shares = on.to(activations.dtype)
        return shares if composition == "sum" else shares / shares.sum(-1, keepdim=True)
    recorded = torch.is_grad_enabled() and (activations.requires_grad or composition.requires_grad)
    # Tensors of inference mode take no part in automatic differentiation, but their copies outside do.
    with torch.inference_mode(False), torch.enable_grad():
        activations = activations.clone() if activations.is_inference() else activations
        composition = composition.clone() if composition.is_inference() else composition
        point = activations if recorded and activations.requires_grad else activations.detach().requires_grad_()
        total = pattern_potential(point, composition, temperature).sum()
        (slopes,) = torch.autograd.grad(total, point, create_graph=recorded)
    return slopes


@lru_cache(maxsize=16)
def _counts(number: int) -> CountForest:
    return CountForest(number)


def _softplus(tensor: Tensor) -> Tensor:
    """Softplus that is exact for large numbers, too, with finite derivatives of all orders, at -inf as well."""
    # Beyond, it is the number itself; exponentials of numbers before do not overflow.
    largest = 600.0 if tensor.dtype == torch.double else 80.0
    return torch.nn.functional.softplus(tensor, threshold=largest)


class PatternTemplate(NamedTuple):
    """A pattern as a template with costs of leaving it, Equations (3.1) and (3.2).

    :ivar Tensor template: Labels of the template, zeros and ones, shape ``(..., D)``.
    :ivar Tensor weights: Costs of other labels, at least 0, shape ``(..., D)``.
    :ivar Tensor discount: The maximum less the base cost, the log-weight of the template's own labels, shape ``(...)``.
    """

    template: Tensor
    weights: Tensor
    discount: Tensor


def pattern_from_template(
    template: Tensor, weights: Tensor, base: Tensor | float = 0.0, maximum: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""Weights and bias of the hidden unit that stands for a template.

    .. math::
        \min\Bigl(\sum_i |w_i| [y_i \ne Y_i] + \theta_0, \theta_{\max}\Bigr) - \theta_{\max} = -\max(w^\top y + c, 0).

    :param Tensor template: Y, zeros and ones, shape ``(..., D)``.
    :param Tensor weights: Costs of a label that differs from the template's, at least 0, shape ``(..., D)``.
    :param base: The cost where all labels are the template's; shape ``(...)``.
    :param maximum: The largest cost.
    :return: ``(w, c)`` of shapes ``(..., D)`` and ``(...)``.

    **References**

    Li (2013), Equations (3.1) to (3.5).

    Example::

        >>> w, c = pattern_from_template(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0]), maximum=2.0)
        >>> w, c, pattern_potential((torch.tensor([1.0, 1.0]) @ w + c)[..., None], "sum", 0.0)
        (tensor([ 2., -1.]), tensor(0.), tensor(1.))
    """
    signed = torch.where(template > 0, weights, -weights)
    return signed, maximum - base - (weights * template).sum(-1)


def template_of_pattern(weights: Tensor, bias: Tensor) -> PatternTemplate:
    """Template of a pattern, the inverse of :func:`pattern_from_template`; of the maximum and the base cost, only the
    difference is determined.

    Example::

        >>> template_of_pattern(torch.tensor([2.0, -1.0]), torch.tensor(0.0))
        PatternTemplate(template=tensor([1., 0.]), weights=tensor([2., 1.]), discount=tensor(2.))
    """
    return PatternTemplate((weights > 0).to(weights.dtype), weights.abs(), bias + weights.clamp(min=0).sum(-1))
