"""Sums and logarithms whose derivatives are finite where probabilities are zero."""

__all__ = ["logsumexp", "safe_log"]

import math

import torch
from torch import Tensor


def logsumexp(terms: Tensor, dim: int = -1) -> Tensor:
    r"""Logarithm of a sum of exponentials whose derivatives of every order are finite where all terms are -inf.

    :param Tensor terms: Any shape; entries below +inf, -inf included.
    :param int dim: The axis to sum over.
    :return: The input's shape without ``dim``; -inf where every term is.

    Example::

        >>> logsumexp(torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]])).tolist()
        [0.6931471824645996, -inf]
    """
    peak = terms.detach().amax(dim, keepdim=True)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    return safe_log((terms - peak).exp().sum(dim)) + peak.squeeze(dim)


def safe_log(tensor: Tensor) -> Tensor:
    """Logarithm of non-negative numbers whose derivatives are zero, not infinite, where it is -inf."""
    if not torch.is_grad_enabled():
        return tensor.log()
    zero = tensor == 0
    return tensor.masked_fill(zero, 1.0).log().masked_fill(zero, -math.inf)
