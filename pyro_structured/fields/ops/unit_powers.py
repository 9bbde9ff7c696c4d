"""Whole powers of what free hidden units add to the weights of a field."""

__all__ = ["log_worth", "unit_powers"]

import torch
from torch import Tensor


def unit_powers(number: int, power: int, like: Tensor) -> tuple[Tensor, Tensor]:
    r"""The terms of :math:`\prod_j (1 + e^{a_j / n})^n = \sum_s \exp(a^\top s) \prod_j \binom{n}{n s_j}`.

    :param int number: How many units there are, m.
    :param int power: n, at least 1.
    :param Tensor like: Says the dtype and the device.
    :return: Shares s, multiples of 1/n, shape ``((n + 1) ** m, m)``, and logarithms of the binomial coefficients, shape
        ``((n + 1) ** m,)``.

    Example::

        >>> shares, log_numbers = unit_powers(1, 2, torch.zeros(()))
        >>> shares.tolist(), log_numbers.exp().tolist()
        ([[0.0], [0.5], [1.0]], [1.0, 2.0, 1.0])
    """
    counts = torch.arange(power + 1, device=like.device)
    exact = counts.double()
    whole = torch.tensor(float(power), dtype=torch.double, device=like.device)
    logs = (whole + 1).lgamma() - (exact + 1).lgamma() - (whole - exact + 1).lgamma()
    place = torch.arange((power + 1) ** number, device=like.device)
    shares = torch.empty(len(place), number, dtype=like.dtype, device=like.device)
    total = torch.zeros(len(place), dtype=torch.double, device=like.device)
    # One unit after the other, because there may be millions of states.
    for unit in range(number - 1, -1, -1):
        digits, place = place % (power + 1), place // (power + 1)
        shares[:, unit] = digits.to(like.dtype) / power
        total += logs[digits]
    return shares, total.to(like.dtype)


def log_worth(biases: Tensor, shares: Tensor) -> Tensor:
    """What biases are worth in states of hidden units, -inf where one is on that never is, shape ``(rows, K)``.

    :param Tensor biases: Less than +inf, shape ``(rows, m)``, or with more axes before the last.
    :param Tensor shares: Shape ``(K, m)``.
    """
    never = biases == -torch.inf
    worth = biases.masked_fill(never, 0.0) @ shares.T
    return worth.masked_fill((never.unsqueeze(-2) & (shares > 0)).any(-1), -torch.inf)
