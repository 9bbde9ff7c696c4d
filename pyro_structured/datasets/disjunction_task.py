"""Classification by a disjunction of attributes."""

__all__ = ["disjunction_task"]

from collections.abc import Sequence

import numpy as np

from pyro_structured.datasets.conjunction_task import conjunction_task


def disjunction_task(
    attributes: Sequence[int], num_rows: int, num_variables: int = 1000, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    r"""Generates binary rows that are in class 1 if at least one of the given attributes is one.

    It is :func:`conjunction_task` with zeros and ones, and the classes, exchanged: :math:`p(x \mid y)` is uniform on
    the rows of class y, and the classes are equally likely. Cost O(num_rows num_variables).

    :param attributes: Indices of the attributes, one or several different ones between 0 and ``num_variables - 1``.
    :param int num_rows: Number of rows, at least 1.
    :param int num_variables: Number of variables, at least 1.
    :param int seed: Seed of the generator, at least 0. Training and test rows need different seeds.
    :return: Rows, uint8, shape ``(num_rows, num_variables)``; and classes 0 or 1, int64, shape ``(num_rows,)``.
    :raises ValueError: if an index or a number is out of range, or an index comes twice.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Theorem 4.4, part 1.

    Example::

        >>> x, y = disjunction_task([0, 2], num_rows=5, num_variables=4, seed=0)
        >>> bool((y == x[:, [0, 2]].any(1)).all())
        True
    """
    rows, classes = conjunction_task(attributes, num_rows, num_variables, seed=seed)
    return 1 - rows, 1 - classes
