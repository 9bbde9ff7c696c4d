"""The number of groups with many ones."""

__all__ = ["NestedThreshold"]

from collections.abc import Sequence

import torch

from pyro_structured.exchangeable.structures.automaton_statistic import AutomatonStatistic
from pyro_structured.foundation.structures.argument_checks import check_size, checked_partition


class NestedThreshold(AutomatonStatistic):
    r"""In how many groups more than a threshold of the binary variables are ones (Niepert and Domingos 2014, Example
    A.4): with a threshold of 0, the number of ones after max-pooling.

    Every query costs O(n · groups · threshold).

    :param groups: Variables of every group, a partition of ``range(n)``; for the squares of an image see the example.
    :param int threshold: At least 0.
    :raises ValueError: if groups overlap or leave a variable out, or the threshold is negative.

    Example::

        >>> pixel = torch.arange(16).reshape(4, 4)
        >>> squares = pixel.unfold(0, 2, 2).unfold(1, 2, 2).reshape(4, 4).tolist()
        >>> squares[0]
        [0, 1, 4, 5]
        >>> NestedThreshold(squares, threshold=0).value(torch.eye(4, dtype=torch.long).flatten())
        tensor(2)
    """

    def __init__(self, groups: Sequence[Sequence[int]], threshold: int) -> None:
        check_size("threshold", threshold, 0)
        groups = checked_partition("groups", groups)
        # Counts are cut off above.
        threshold = min(threshold, max(map(len, groups)))
        # A state is the number of groups above the threshold so far, and the count of the present one, cut off above.
        width = threshold + 2
        count = torch.arange(width)
        groups_above = torch.arange(len(groups) + 1).unsqueeze(-1)
        next_count = (count.unsqueeze(-1) + torch.arange(2)).clamp(max=threshold + 1)
        inside = (groups_above.unsqueeze(-1) * width + next_count).flatten(0, 1)
        closed = (groups_above.unsqueeze(-1) + (next_count > threshold)).clamp(max=len(groups)) * width
        last = torch.tensor([i == len(group) - 1 for group in groups for i in range(len(group))])
        table = torch.where(last[:, None, None], closed.flatten(0, 1), inside)
        order = [d for group in groups for d in group]
        super().__init__(len(order), table, groups_above.expand(-1, width).flatten(), order)
