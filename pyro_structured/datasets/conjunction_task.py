"""Classification by a conjunction of attributes."""

__all__ = ["conjunction_task"]

from collections.abc import Sequence

import numpy as np

from pyro_structured.datasets.argument_checks import seeded_generator
from pyro_structured.foundation.structures.argument_checks import check_size, checked_indices


def conjunction_task(
    attributes: Sequence[int], num_rows: int, num_variables: int = 1000, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    r"""Generates binary rows that are in class 1 if all of the given attributes are one.

    :math:`p(x \mid y)` is uniform on the rows of class y, as in the proof of Theorem 4.4. But the classes are equally
    likely, where the proof has :math:`p(y = 1) = 2^{-k}` for k attributes. Cost O(num_rows num_variables).

    :param attributes: Indices of the attributes, one or several different ones between 0 and ``num_variables - 1``.
    :param int num_rows: Number of rows, at least 1.
    :param int num_variables: Number of variables, at least 1.
    :param int seed: Seed of the generator, at least 0. Training and test rows need different seeds.
    :return: Rows, uint8, shape ``(num_rows, num_variables)``; and classes 0 or 1, int64, shape ``(num_rows,)``.
    :raises ValueError: if an index or a number is out of range, or an index comes twice.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Theorem 4.4, part 1, and its proof.

    Example::

        >>> x, y = conjunction_task([0, 2], num_rows=5, num_variables=4, seed=0)
        >>> bool((y == x[:, [0, 2]].all(1)).all())
        True
    """
    check_size("num_rows", num_rows)
    check_size("num_variables", num_variables)
    chosen = checked_indices("attributes", attributes)
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(num_variables)):
        raise ValueError(
            f"attributes: expected one or several different indices below {num_variables}, got {attributes!r}"
        )
    generator = seeded_generator(seed)
    classes = generator.integers(2, size=num_rows)
    rows = generator.integers(2, size=(num_rows, num_variables), dtype=np.uint8)
    values = rows[:, chosen]
    # Rejection is exact, and ends soon: at least every second row is accepted.
    while len(rejected := np.flatnonzero((classes == 0) & values.all(1))):
        values[rejected] = generator.integers(2, size=(len(rejected), len(chosen)), dtype=np.uint8)
    values[classes == 1] = 1
    rows[:, chosen] = values
    return rows, classes
