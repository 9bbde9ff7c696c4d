"""Pieces of rows that are small enough to be read, converted or counted at once, and distinct rows."""

__all__ = ["distinct_rows", "row_pieces"]

from collections.abc import Iterable, Iterator

import numpy as np

# Largest number of rows in a piece: what is made of a column of one stays in the cache.
ROWS_AT_ONCE = 2**16
# Largest number of numbers that are held for a piece.
HELD_AT_ONCE = 2**22
# Largest number of different values of a word, in which several columns are compared at once.
MOST_WORDS = 2**62


def row_pieces(number: int, width: int = 1) -> Iterator[slice]:
    """Slices of ``number`` rows, one after the other; a single empty one of no rows.

    :param int width: How many numbers are held for each row of a piece.

    Example::

        >>> list(row_pieces(100_000))
        [slice(0, 65536, None), slice(65536, 100000, None)]
    """
    size = min(ROWS_AT_ONCE, max(1, HELD_AT_ONCE // max(width, 1)))
    for start in range(0, max(number, 1), size):
        yield slice(start, min(start + size, number))


def distinct_rows(columns: Iterable[tuple[np.ndarray, int, int]], number: int) -> tuple[np.ndarray, np.ndarray]:
    """Places where distinct rows occur first, in the order of the rows' values; and every row's place among these.

    Takes time O(N log N) and 8 bytes for every row and some 60 columns of two values.

    :param columns: For each column, its integers, shape ``(N,)``, the smallest that is possible, and how many are.
    :param int number: Number N of rows.

    Example::

        >>> first, place = distinct_rows([(np.array([1, 0, 1]), 0, 2), (np.array([5, 7, 5]), 5, 3)], 3)
        >>> first.tolist(), place.tolist()
        ([1, 0], [1, 0, 1])
    """
    words, values = [np.zeros(number, dtype=np.int64)], 1
    for column, least, size in columns:
        if values * size > MOST_WORDS:
            words.append(np.zeros(number, dtype=np.int64))
            values = 1
        word, values = words[-1], values * size
        word *= size
        np.add(word, column, out=word, casting="unsafe")
        word -= least
    # The last key counts most. Equal rows stay in their order.
    order = np.lexsort(words[::-1])
    changes = np.zeros(number, dtype=bool)
    changes[:1] = True
    for word in words:
        ordered = word[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    place = np.empty(number, dtype=np.int64)
    place[order] = np.cumsum(changes) - 1
    return order[changes], place
