"""Orders of the variables of a Bayesian network."""

__all__ = ["ancestral_order"]

from collections.abc import Sequence


def ancestral_order(parents: Sequence[Sequence[int]]) -> list[int]:
    """Variables after their parents; without those on cycles, and below them.

    Example::

        >>> ancestral_order([[1], [], [3], [2]])
        [1, 0]
    """
    order: list[int] = []
    rest = list(range(len(parents)))
    while ready := [d for d in rest if set(parents[d]) <= set(order)]:
        order += ready
        rest = [d for d in rest if d not in ready]
    return order
