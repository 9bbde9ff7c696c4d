"""Numbers of ones in several blocks."""

__all__ = ["BlockCounts"]

import math
from collections.abc import Sequence

from pyro_structured.exchangeable.structures.count import Count
from pyro_structured.exchangeable.structures.product import INSTEAD, Product
from pyro_structured.foundation.structures.argument_checks import check_levels, checked_partition


class BlockCounts(Product):
    r"""The numbers of ones in the blocks of a partition (Niepert and Domingos 2014, Example A.2).

    :math:`|S_{t,e}| = \prod_b \binom{\text{free}_b}{t_b - \text{ones}_b}`. Unlike an
    :class:`~pyro_structured.distributions.ExchangeablePartition`, whose blocks are independent, this has a weight for
    every combination of counts, :math:`\prod_b (n_b + 1)` of them.

    :param blocks: Variables of every block, a partition of ``range(n)``.
    :raises ValueError: if blocks are empty or overlap, or leave a variable out, or there are more than ``2 ** 22``
        levels.

    Example::

        >>> BlockCounts([[0, 1], [2]]).log_sizes.exp().round().unflatten(-1, (3, 2))
        tensor([[1., 1.],
                [2., 2.],
                [1., 1.]], dtype=torch.float64)
    """

    def __init__(self, blocks: Sequence[Sequence[int]]) -> None:
        groups = checked_partition("blocks", blocks)
        check_levels("blocks", math.prod(len(group) + 1 for group in groups), INSTEAD)
        super().__init__([Count(len(group)) for group in groups], groups)
