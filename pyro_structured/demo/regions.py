"""Smooth potentials on the counts of regions."""

__all__ = ["curvature_basis"]

import torch
from torch import Tensor

from pyro_structured.structures import NestedSubsets


def curvature_basis(regions: NestedSubsets, scale: float) -> Tensor:
    r"""Basis of tables by their curvature: a row for each second difference, a column for each entry.

    The table of a region of n pixels is zero at the counts 0 and n, which loses nothing, because the pixels' own
    log-odds and log Z absorb any straight line; at every count between, its second difference is ``2 * scale / n``
    times a number of its own. Standard normal numbers thus make smooth tables, whatever the size of the region.

    :param NestedSubsets regions: Subsets of at least two pixels.
    :param float scale: Standard deviation of the second difference in the table of a region of two pixels.
    :return: Shape ``(number of bends, regions.table_size)``.
    """
    blocks: list[Tensor] = []
    for size in regions.sizes:
        count = torch.arange(size + 1, dtype=torch.float64)
        bend = count[1:-1].unsqueeze(-1)
        inverse = -torch.minimum(count, bend) * (size - torch.maximum(count, bend)) / size
        blocks.append(2 * scale / size * inverse)
    basis: Tensor = torch.block_diag(*blocks)
    return basis
