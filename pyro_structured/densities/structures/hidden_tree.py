"""Trees of latent variables, each above one observed variable."""

__all__ = ["HiddenTree"]

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from pyro_structured.densities.ops.latent_tree_passes import LatentTreeLevels, tree_levels
from pyro_structured.foundation.structures.argument_checks import check_size, checked_indices
from pyro_structured.foundation.structures.representation import Represented


class HiddenTree(Represented):
    """Forest of latent variables, each of which has one observed variable as a further child.

    It is the structure of :class:`~pyro_structured.distributions.LatentTree`. Several roots make independent trees.
    Trees are immutable.

    :param parents: Parent of each latent variable, integers in ``range(n)``; roots are their own parents.
    :param num_states: Number of states of the latent variables, at least 1: an integer for all, or one for each.
    :param cardinalities: Number of states of the observed variables, at least 1: an integer for all, or one for each.
    :raises ValueError: if a variable is its own ancestor, or an argument is of another kind.

    **References**

    Liu, Van den Broeck (2021): Tractable regularization of probabilistic circuits. NeurIPS.

    Example::

        >>> tree = HiddenTree([0, 0, 1], num_states=4, cardinalities=[2, 3, 2])
        >>> tree.num_states, tree.depth
        ((4, 4, 4), 2)
        >>> HiddenTree.chain(3, num_states=4).parents  # a hidden Markov model
        (0, 0, 1)
    """

    def __init__(
        self, parents: Iterable[int], num_states: int | Iterable[int], cardinalities: int | Iterable[int] = 2
    ) -> None:
        self.parents = tuple(checked_indices("parents", parents))
        number = len(self.parents)
        if not number or not all(0 <= parent < number for parent in self.parents):
            raise ValueError(f"parents: expected integers in range({number}), at least one, got {list(self.parents)}")
        self.num_states = _checked_sizes("num_states", num_states, number)
        self.cardinalities = _checked_sizes("cardinalities", cardinalities, number)
        reached = self.levels.order.tolist()
        if len(reached) < number:
            rest = sorted(set(range(number)) - set(reached))
            raise ValueError(f"parents: expected no variable to be its own ancestor, but roots, got a cycle in {rest}")

    @classmethod
    def chain(
        cls, num_variables: int, num_states: int | Iterable[int], cardinalities: int | Iterable[int] = 2
    ) -> "HiddenTree":
        """Chain from the first variable to the last: the structure of a hidden Markov model.

        :param int num_variables: Number n of observed variables, at least 1.
        :param num_states: As for the class.
        :param cardinalities: As for the class.

        Example::

            >>> HiddenTree.chain(4, num_states=2).parents
            (0, 0, 1, 2)
        """
        check_size("num_variables", num_variables)
        return cls([max(d - 1, 0) for d in range(num_variables)], num_states, cardinalities)

    @property
    def num_variables(self) -> int:
        """Number n of observed variables."""
        return len(self.parents)

    @property
    def depth(self) -> int:
        """Largest distance of a latent variable from its root."""
        return len(self.levels.sizes) - 1

    @cached_property
    def levels(self) -> LatentTreeLevels:
        """Variables by their distances from the roots."""
        return tree_levels(self.parents)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HiddenTree) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[tuple[int, ...], ...]:
        return self.parents, self.num_states, self.cardinalities


def _checked_sizes(name: str, sizes: int | Iterable[int], number: int) -> tuple[int, ...]:
    """Sizes of ``number`` variables, or a ValueError with the argument's name."""
    single = isinstance(sizes, (int, np.integer)) and not isinstance(sizes, bool)
    given = [int(sizes)] * number if single else checked_indices(name, sizes)  # type: ignore[arg-type]
    if len(given) != number or min(given) < 1:
        raise ValueError(f"{name}: expected an integer of at least 1, or {number} of them, got {sizes!r}")
    return tuple(given)
