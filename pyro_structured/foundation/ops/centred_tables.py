"""Tables of log-potentials without large constants, next to which their digits would be lost."""

__all__ = ["centre_tables"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def centre_tables(count_logits: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Subtracts from each table its largest entry, a constant for differentiation: probabilities stay the same.

    :param Tensor count_logits: Log-potentials of all tables, shape ``(..., sum of the sizes plus one each)``.
    :param sizes: Sizes of the subsets.
    :return: ``(tables, levels)`` in double precision: the tables, and the entries that were subtracted, shape ``(...,
        number of tables)``.

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
    widths = torch.tensor(sizes, device=tables.device) + 1
    table_of_cell = torch.repeat_interleave(widths)
    peaks = tables.new_full(tables.shape[:-1] + (len(sizes),), -math.inf)
    peaks = _finite(peaks.scatter_reduce(-1, table_of_cell.expand(tables.shape), tables.detach(), "amax"))
    return tables - peaks[..., table_of_cell], peaks


def _finite(peaks: Tensor) -> Tensor:
    return peaks.masked_fill(peaks == -math.inf, 0.0)
