"""Statistics that a finite automaton computes."""

__all__ = ["AutomatonStatistic", "NestedThreshold", "Transitions"]

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.automaton import Automaton
from pyro_structured.exchangeable.structures.statistic import Statistic
from pyro_structured.foundation.structures.argument_checks import (
    check_dense,
    check_levels,
    check_size,
    checked_indices,
    checked_partition,
)


class AutomatonStatistic(Statistic):
    r"""A statistic that is computed by reading the variables one after the other and remembering a state.

    Run lengths, changes, patterns, sums modulo m, thresholds: every statistic that few states compute is counted,
    completed and sampled by dynamic programs, at a cost of O(n · states · categories).

    :param int num_variables: Number of variables n, at least 1.
    :param Tensor transitions: Integers of shape ``(states, categories)``, the state after a variable's value in a
        state, or ``(n, states, categories)`` if it depends on the variable. The first state is 0.
    :param Tensor levels: Integers of shape ``(states,)``: the level that a last state means, at least 0.
    :param order: The variables in the order in which they are read; ``None`` for ``range(n)``.
    :raises ValueError: if shapes or numbers do not fit, or there are more than ``2 ** 22`` levels.

    Example::

        >>> after = torch.tensor([[1, 2], [3, 2], [1, 3], [3, 3]])  # start, after a 0, after a 1, two equal neighbours
        >>> repeats = AutomatonStatistic(3, after, levels=torch.tensor([0, 0, 0, 1]))
        >>> repeats.log_sizes.exp().round()  # 010 and 101 have no two equal neighbours
        tensor([2., 6.], dtype=torch.float64)
    """

    def __init__(
        self, num_variables: int, transitions: Tensor, levels: Tensor, order: Sequence[int] | None = None
    ) -> None:
        check_size("num_variables", num_variables)
        self.num_variables = int(num_variables)
        table = self._checked_table(transitions)
        _, states, self.num_categories = table.shape
        known = isinstance(levels, Tensor) and levels.shape == (states,) and levels.dtype == torch.long
        if isinstance(levels, Tensor):
            check_dense("levels", levels)
        if not known or levels.min() < 0:
            raise ValueError(f"levels: expected a tensor of {states} integers of at least 0, got {levels!r}")
        self.num_levels = int(levels.max()) + 1
        check_levels("levels", self.num_levels, "number them without gaps")
        read = list(range(self.num_variables)) if order is None else checked_indices("order", order)
        if sorted(read) != list(range(self.num_variables)):
            raise ValueError(f"order: expected all of range({num_variables}) once, got {order!r}")
        self._automaton = Automaton(self.num_variables, table.cpu(), levels.cpu(), self.num_levels, read)

    def _checked_table(self, transitions: Tensor) -> Tensor:
        table = transitions.unsqueeze(0) if isinstance(transitions, Tensor) and transitions.dim() == 2 else transitions
        if (
            not isinstance(table, Tensor)
            or table.dim() != 3
            or table.shape[0] not in (1, self.num_variables)
            or table.dtype != torch.long
            or not table.numel()
        ):
            came = f"{table.dtype} of shape {tuple(table.shape)}" if isinstance(table, Tensor) else repr(table)
            raise ValueError(
                "transitions: expected a tensor of integers of shape (states, categories) or "
                f"({self.num_variables}, states, categories), got {came}"
            )
        check_dense("transitions", table)
        if table.min() < 0 or table.max() >= table.shape[1]:
            raise ValueError(f"transitions: expected states in range({table.shape[1]}), got others")
        return table

    def value(self, x: Tensor) -> Tensor:
        """Levels, shape ``(...)``."""
        return self._automaton.read(x.long())

    def log_completions(self, value: Tensor, observed: Tensor) -> Tensor:
        """Logarithms of the numbers of completions, by sums over the states after each variable."""
        return self.log_mass(self._weights_of(value, observed))

    def sample(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Uniform draws from level sets, from the last variable to the first."""
        return self.weighted_sample(level, self._weights_of(value, observed))

    def complete(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """One member of each level set, found from the last variable to the first."""
        return self.weighted_mode(level, self._weights_of(value, observed))

    def log_marginals(self, log_weights: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Log-probabilities of the single variables' values, by a forward and a backward pass."""
        return self.weighted_log_marginals(log_weights, self._weights_of(value, observed))

    def _weights_of(self, value: Tensor, observed: Tensor) -> Tensor:
        """Log weights of all values: 0, or -inf for values that contradict the evidence."""
        wrong = observed.unsqueeze(-1) & (value.unsqueeze(-1) != torch.arange(self.num_categories, device=value.device))
        return torch.zeros(wrong.shape, dtype=torch.double, device=value.device).masked_fill(wrong, -torch.inf)


class NestedThreshold(AutomatonStatistic):
    r"""The number of groups in which more than a threshold of the binary variables are ones (Niepert and Domingos 2014,
    Example A.4): with a threshold of 0, the number of ones after max-pooling.

    Every query costs O(n · groups · threshold).

    :param groups: Variables of every group, a partition of ``range(n)``; for the squares of an image see the example.
    :param int threshold: Threshold, at least 0.
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
        self.groups, self.threshold = tuple(map(tuple, groups)), threshold
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


class Transitions(AutomatonStatistic):
    r"""The number of times that a 1 follows a 0 in a sequence of n binary variables: its runs of ones but a first one
    (Niepert and Domingos 2014, Example A.3).

    Without evidence :math:`|S_t| = \binom{n + 1}{2t + 1}`. Every query costs :math:`O(n^2)`. The levels that
    evidence allows are counted by the same dynamic program; the bounds printed in the paper's example leave out
    free variables before the first and behind the last observed one, and are too large for neighbours that are both
    observed.

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
