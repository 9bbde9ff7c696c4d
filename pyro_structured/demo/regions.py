"""Nested regions of pixels, learned from data, and smooth potentials on their counts."""

__all__ = ["curvature_basis", "learn_linkage"]

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from pyro_structured.structures import NestedSubsets


def learn_linkage(covariance: Tensor, method: str, power: float) -> np.ndarray:
    """Clusters pixels hierarchically; the distance of two pixels is a power of one minus their correlation.

    :param Tensor covariance: Covariance matrix of the pixels. Constant pixels count as uncorrelated with all others.
    :param str method: A method of :func:`scipy.cluster.hierarchy.linkage`.
    :param float power: The larger, the more the most different pixels of two clusters keep them apart.
    :return: A linkage matrix, for :meth:`pyro_structured.structures.NestedSubsets.from_linkage`.
    """
    deviation = covariance.diagonal().clamp(min=1e-9).sqrt()
    distance = (1 - covariance / deviation / deviation.unsqueeze(-1)).fill_diagonal_(0.0)
    return np.asarray(linkage(squareform(distance.pow(power).numpy(), checks=False), method))


def curvature_basis(regions: NestedSubsets, scale: float) -> Tensor:
    r"""Makes tables from the numbers that say how much they bend: a row for each bend, a column for each entry.

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
