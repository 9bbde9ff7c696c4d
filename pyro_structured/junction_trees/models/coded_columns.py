"""Tables of categories in which each value is the number of its kind."""

__all__ = ["CodedColumns"]

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import csc_matrix

from pyro_structured.foundation.models.missing_values import find_missing
from pyro_structured.foundation.models.row_sources import RecordBatches


class CodedColumns:
    """Table in which each value is the number of its kind, column by column, in memory for these numbers.

    :param codes: For each column, places of its values among the different ones, shape ``(N,)``; -1 where missing.
    :param different: For each column, the different values that it may have.

    Example::

        >>> table = CodedColumns.from_sparse(csc_matrix([[0.0, 2.0], [0.0, 0.0], [5.0, np.nan]]))
        >>> [column.tolist() for column in table.different], table.codes[1].tolist()
        ([[0.0, 5.0], [0.0, 2.0]], [1, 0, -1])
    """

    def __init__(self, codes: list[np.ndarray], different: list[np.ndarray], number: int) -> None:
        self.codes, self.different = codes, different
        self.shape = number, len(codes)

    @classmethod
    def from_sparse(cls, matrix: csc_matrix) -> "CodedColumns":
        """Table of a sparse matrix; entries that are not stored are zeros.

        :param csc_matrix matrix: Numbers, shape ``(N, n)``, NaN where one is missing.
        """
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        codes, different = [], []
        for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
            # The zero comes first, and then it is the first of its kind.
            stored = np.concatenate([np.zeros(1, dtype=matrix.dtype), matrix.data[start:stop]])
            kinds, places = np.unique(stored, return_inverse=True)
            places = np.where(find_missing(stored), -1, places.reshape(-1))
            kinds = kinds[~find_missing(kinds)]
            column = np.full(matrix.shape[0], places[0], dtype=_place_type(len(kinds)))
            column[matrix.indices[start:stop]] = places[1:]
            codes.append(column)
            different.append(kinds)
        return cls(codes, different, matrix.shape[0])

    @classmethod
    def from_records(cls, records: RecordBatches) -> "CodedColumns":
        """Table of batches of records; nulls are missing, and the values of dictionaries are those that they stand for.

        :raises ValueError: for columns of lists and other values that are no categories.
        """
        names = records.header.schema.names
        known: list[dict[Any, int]] = [{} for _ in names]
        parts: list[list[np.ndarray]] = [[] for _ in names]
        number = 0
        for batch in records.pieces:
            number += batch.num_rows
            for place, column in enumerate(batch.columns):
                try:
                    parts[place].append(_recorded_codes(column, known[place]))
                except (TypeError, ValueError) as error:
                    raise ValueError(
                        f"{records.name}: expected numbers, strings or other categories in column {names[place]!r}, "
                        f"got {column.type}: {error}"
                    ) from None
        codes = []
        for values, part in zip(known, parts, strict=True):
            codes.append(np.concatenate([np.empty(0, dtype=_place_type(len(values))), *part]))
            part.clear()
        return cls(codes, [_objects(values) for values in known], number)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> "CodedColumns":
        """Table of some rows, by their mask."""
        return CodedColumns([column[rows] for column in self.codes], self.different, int(np.count_nonzero(rows)))

    def present(self) -> Iterator[set[Any]]:
        """Different values of each column that occur in its rows."""
        for column, values in zip(self.codes, self.different, strict=True):
            occurs = np.zeros(len(values) + 1, dtype=bool)
            occurs[column] = True
            yield set(values[occurs[:-1]].tolist())

    def value(self, row: int, place: int) -> Any:
        """One value, which is not missing."""
        return self.different[place].tolist()[self.codes[place][row]]


def _recorded_codes(column: Any, known: dict[Any, int]) -> np.ndarray:
    """Numbers of a column's values, as they are known, in the smallest type; new values are numbered."""
    if not hasattr(column, "dictionary"):
        try:
            column = column.dictionary_encode()
        except NotImplementedError:
            # Of a few kinds of columns, there are no dictionaries.
            return _numbered(column.to_pylist(), known)
    gaps = column.indices.is_null().to_numpy(zero_copy_only=False)
    places = column.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    places[gaps] = -1
    # Not all values of a dictionary have to occur.
    occurs = np.zeros(len(column.dictionary) + 1, dtype=bool)
    occurs[places] = True
    used = occurs[:-1].nonzero()[0]
    numbers = _numbered(column.dictionary.take(used).to_pylist(), known)
    codes = np.full(len(occurs), -1, dtype=numbers.dtype)
    codes[used] = numbers
    found: np.ndarray = codes[places]
    return found


def _numbered(values: list[Any], known: dict[Any, int]) -> np.ndarray:
    """Numbers of values, -1 for missing ones."""
    missing = find_missing(_objects(values))
    numbers = [-1 if gap else known.setdefault(value, len(known)) for value, gap in zip(values, missing, strict=True)]
    return np.array(numbers, dtype=_place_type(len(known)))


def _place_type(number: int) -> np.dtype[Any]:
    """Smallest type of places among so many values, and of -1."""
    return np.min_scalar_type(-max(number, 1))


def _objects(values: Any) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column
