"""The number of changes from zero to one."""

__all__ = ["Transitions"]

import torch

from pyro_structured.exchangeable.structures.automaton_statistic import AutomatonStatistic
from pyro_structured.foundation.structures.argument_checks import check_size


class Transitions(AutomatonStatistic):
    r"""How often a 0 is followed by a 1 in a sequence of n binary variables: its runs of ones but a first one
    (Niepert and Domingos 2014, Example A.3).

    Without evidence :math:`|S_t| = \binom{n + 1}{2t + 1}`. Every query costs :math:`O(n^2)`. Which levels evidence
    allows is counted by the same dynamic program; the bounds printed in the paper's example leave out free variables
    before the first and behind the last observed one, and are too large for neighbours that are both observed.

    :param int num_variables: Number of variables n, at least 1. Levels are ``0, ..., n // 2``.
    :raises ValueError: if it is not an integer of at least 1.

    Example::

        >>> Transitions(8).value(torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]))
        tensor(4)
        >>> Transitions(3).log_sizes.exp().round()
        tensor([4., 4.], dtype=torch.float64)
    """

    def __init__(self, num_variables: int) -> None:
        check_size("num_variables", num_variables)
        # A state is twice the number of changes, plus one if the last value was a 0; the start is as after a 1.
        most = int(num_variables) // 2
        changes = torch.arange(most + 1)
        after_one = torch.stack([2 * changes + 1, 2 * changes], -1)
        after_zero = torch.stack([2 * changes + 1, 2 * (changes + 1).clamp(max=most)], -1)
        # The clamp only meets states that no sequence of this length reaches.
        table = torch.stack([after_one, after_zero], 1).flatten(0, 1)
        super().__init__(num_variables, table, changes.repeat_interleave(2))
