"""Orders of the variables of a Bayesian network."""

__all__ = ["ancestral_order"]

from collections.abc import Sequence


def ancestral_order(parents: Sequence[Sequence[int]]) -> list[int]:
    """Order of the variables in which parents come first, without variables on cycles and their descendants.

    Example::

        >>> ancestral_order([[1], [], [3], [2]])
        [1, 0]
    """
    children: list[list[int]] = [[] for _ in parents]
    for d, above in enumerate(parents):
        for parent in set(above):
            children[parent].append(d)
    waiting = [len(set(above)) for above in parents]
    order: list[int] = []
    ready = [d for d, number in enumerate(waiting) if not number]
    while ready:
        order += ready
        freed = []
        for child in (child for d in ready for child in children[d]):
            waiting[child] -= 1
            if not waiting[child]:
                freed.append(child)
        ready = sorted(freed)
    return order
