"""Classification by the number of ones."""

__all__ = ["symmetric_task"]

from collections.abc import Callable

import numpy as np
from tqdm import trange

from pyro_structured.datasets.argument_checks import check_name, seeded_generator
from pyro_structured.foundation.structures.argument_checks import check_size

RULES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "parity": lambda counts, num_variables: counts % 2 == 1,
    "counting": lambda counts, num_variables: counts % 5 == 3,
    "m_of_n": lambda counts, num_variables: counts >= 10,
    "exact": lambda counts, num_variables: 5 * counts % num_variables == 0,
}
CHUNK_ENTRIES = 2**24


def symmetric_task(name: str, num_rows: int, num_variables: int = 1000, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Generates binary rows whose class depends on their number of ones c only, among n variables.

    =============  ==========================================================
    name           class 1
    =============  ==========================================================
    ``parity``     :math:`c \bmod 2 = 1`
    ``counting``   :math:`c \bmod 5 = 3`
    ``m_of_n``     :math:`c \geq 10`
    ``exact``      :math:`c \in \{0, n/5, 2n/5, 3n/5, 4n/5, n\}`
    =============  ==========================================================

    The count is uniform on :math:`0, \ldots, n`, then the places of the ones are uniform:
    :math:`p(x) = 1 / \bigl((n + 1) \binom{n}{c}\bigr)`. (The paper speaks of uniform rows; then, for 1000 variables,
    nearly all rows of ``m_of_n`` and of ``exact`` would have one class, which its accuracies exclude.) Cost
    O(num_rows n).

    :param str name: One of the names above.
    :param int num_rows: Number of rows, at least 1; a million in the paper's training sets.
    :param int num_variables: Number of variables n, at least 1.
    :param int seed: Seed of the generator, at least 0. Training and test rows need different seeds.
    :return: Rows, uint8, shape ``(num_rows, num_variables)``; and classes 0 or 1, int64, shape ``(num_rows,)``.
    :raises ValueError: if the name is unknown, or a number is out of range.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Theorem 4.4, part 2; Section 5.1.

    Example::

        >>> x, y = symmetric_task("parity", num_rows=4, num_variables=3, seed=0)
        >>> bool((y == x.sum(1) % 2).all())
        True
    """
    check_name(name, RULES)
    check_size("num_rows", num_rows)
    check_size("num_variables", num_variables)
    generator = seeded_generator(seed)
    counts = generator.integers(num_variables + 1, size=num_rows)
    rows = np.empty((num_rows, num_variables), dtype=np.uint8)
    step = max(1, CHUNK_ENTRIES // num_variables)
    for start in trange(0, num_rows, step, desc=name, disable=num_rows <= step):
        chunk = rows[start : start + step]
        chunk[:] = np.arange(num_variables) < counts[start : start + step, None]
        generator.permuted(chunk, axis=1, out=chunk)
    return rows, RULES[name](counts, num_variables).astype(np.int64)
