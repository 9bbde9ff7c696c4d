"""Numbers in log space: sums and logarithms with finite derivatives, tables without constants that swallow digits."""

__all__ = ["centre_tables", "log_cumulative_sums", "logsumexp", "safe_log"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_structured.foundation.ops.private_members import has_forward_derivatives

# Number of cells of a table from which tables are treated one after the other.
LARGE_TABLE = 2**10


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


def log_cumulative_sums(terms: Tensor) -> Tensor:
    """Logarithms of the cumulative sums of exponentials along the last axis, with derivatives in both modes.

    Forward derivatives of ``torch.logcumsumexp`` are wrong, as of torch 2.13, where a sum is small beside the largest
    term behind it; there, sums of 2, 4, 8, ... terms are added.

    :param Tensor terms: Shape ``(..., n)``; entries below +inf, -inf included.
    :return: The same shape; -inf where all terms so far are. Cost O(n), or O(n log n) in transforms of functions.

    Example::

        >>> log_cumulative_sums(torch.tensor([0.0, 0.0, -math.inf, math.log(2)])).exp()
        tensor([1., 2., 2., 4.])
    """
    if not has_forward_derivatives():
        return torch.logcumsumexp(terms, -1)
    step = 1
    while step < terms.shape[-1]:
        before = torch.nn.functional.pad(terms[..., :-step], (step, 0), value=-math.inf)
        terms = logsumexp(torch.stack([terms, before]), 0)
        step *= 2
    return terms


def safe_log(tensor: Tensor) -> Tensor:
    """Logarithm of non-negative numbers whose derivatives are zero, not infinite, where it is -inf."""
    if not torch.is_grad_enabled():
        return tensor.log()
    zero = tensor == 0
    tensor = tensor.masked_fill(zero, 1.0)
    # Squares of small numbers, by which second derivatives are divided, would underflow.
    unit = tensor.detach()
    return ((tensor / unit).log() + unit.log()).masked_fill(zero, -math.inf)


def centre_tables(count_logits: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Subtracts from each table its largest entry, a constant of differentiation: probabilities stay the same.

    :param Tensor count_logits: Log-potentials of all tables, shape ``(..., sum of the sizes plus one each)``.
    :param sizes: Sizes of the subsets.
    :return: ``(tables, levels)`` in double precision: the tables, and what was subtracted from each of them, shape
        ``(..., number of tables)``.

    Example::

        >>> centre_tables(torch.tensor([1e9, 1e9 + 64, 0.0, -math.inf]), [1, 1])[0].tolist()
        [-64.0, 0.0, 0.0, -inf]
    """
    tables = count_logits.double()
    if not sizes:
        return tables, tables.new_zeros(tables.shape[:-1] + (0,))
    if len(sizes) == 1:
        peak = _finite(tables.detach().amax(-1, keepdim=True))
        return tables - peak, peak
    if tables.shape[-1] > LARGE_TABLE * len(sizes):
        # Numbers of all cells' tables would take as much memory as the tables.
        parts = tables.split([size + 1 for size in sizes], -1)
        levels = [_finite(part.detach().amax(-1, keepdim=True)) for part in parts]
        return torch.cat([part - level for part, level in zip(parts, levels, strict=True)], -1), torch.cat(levels, -1)
    widths = torch.tensor(sizes, device=tables.device) + 1
    table_of_cell = torch.repeat_interleave(widths)
    peaks = tables.new_full(tables.shape[:-1] + (len(sizes),), -math.inf)
    peaks = _finite(peaks.scatter_reduce(-1, table_of_cell.expand(tables.shape), tables.detach(), "amax"))
    return tables - peaks[..., table_of_cell], peaks


def _finite(peaks: Tensor) -> Tensor:
    return peaks.masked_fill(peaks == -math.inf, 0.0)
