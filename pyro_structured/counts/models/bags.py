"""Rows of a table in bags."""

__all__ = ["Bags"]

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_structured.foundation.models.argument_checks import plain_array
from pyro_structured.foundation.models.missing_values import find_missing

# Places, padding included, from which on bags of different sizes are worth calls of their own.
MANY_PLACES = 2**13


class Bags:
    """Which rows are together in a bag.

    :param groups: A label for each row, equal in a bag, shape ``(N,)``; ``None``: each row is a bag.
    :param int num_rows: Number of rows N.
    :ivar names: The labels in the order of ``np.unique``, shape ``(B,)``: the order of the bags.
    :ivar numbers: The place of each row's bag in this order, shape ``(N,)``.
    :ivar sizes: Numbers of rows, shape ``(B,)``.
    :raises ValueError: if there is another number of labels, or one is missing.
    """

    def __init__(self, groups: Any, num_rows: int) -> None:
        labels = np.arange(num_rows) if groups is None else np.asarray(plain_array(groups, "groups"))
        if labels.shape != (num_rows,):
            raise ValueError(f"groups: expected shape ({num_rows},), one label a row, got {labels.shape}")
        if find_missing(labels).any():
            raise ValueError("groups: expected labels, got missing ones")
        try:
            self.names, self.numbers = np.unique(labels, return_inverse=True)
        except TypeError:
            raise ValueError("groups: expected labels that can be sorted, got labels of several types") from None
        self.sizes = np.bincount(self.numbers)
        self._rows = np.argsort(self.numbers, kind="stable")
        self._starts = np.cumsum(self.sizes) - self.sizes

    def constant(self, values: np.ndarray, name: str) -> np.ndarray:
        """The value of each bag, shape ``(B,)``, or a ValueError that names a bag of which rows have several."""
        first: np.ndarray = values[self._rows[self._starts]]
        differs = values != first[self.numbers]
        if differs.any():
            bag = self.described(self.numbers[differs.argmax()])
            raise ValueError(f"{name}: expected one value for all rows of a bag, got several in {bag}")
        return first

    def described(self, number: int) -> str:
        """A bag by its label, for a message."""
        return f"the bag {self.names[number : number + 1].tolist()[0]!r}"

    def rows(self, bags: np.ndarray) -> Tensor:
        """Rows of some bags, one bag after the other."""
        return torch.from_numpy(np.concatenate([self._rows[self._starts[bag] :][: self.sizes[bag]] for bag in bags]))

    def places(self, bags: np.ndarray) -> Tensor:
        """Whether some bags have an instance at each place, shape ``(len(bags), largest size)``."""
        sizes = torch.from_numpy(self.sizes[bags])
        return torch.arange(int(sizes.max())) < sizes.unsqueeze(-1)

    def blocks(self) -> Iterator[np.ndarray]:
        """All bags, in blocks that are padded together: few bags at once, many by the binary logarithm of the size."""
        if len(self.sizes) * self.sizes.max() <= MANY_PLACES:
            yield np.arange(len(self.sizes))
            return
        kinds = np.frexp(self.sizes - 0.5)[1]
        for kind in np.unique(kinds):
            yield np.flatnonzero(kinds == kind)

    def batches(self, size: int, generator: np.random.RandomState) -> Iterator[np.ndarray]:
        """All bags in batches of bags of similar sizes, in random order.

        :param int size: Largest number of bags in a batch.
        """
        order = generator.permutation(len(self.sizes))
        order = order[np.argsort(self.sizes[order], kind="stable")]
        parts = np.split(order, range(size, len(order), size))
        yield from (parts[place] for place in generator.permutation(len(parts)))
