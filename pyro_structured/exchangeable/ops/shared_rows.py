"""Distinct rows of all processes that learn together."""

__all__ = ["SharedRows"]

from hashlib import blake2b

import numpy as np

from pyro_structured.exchangeable.ops.binary_rows import BinaryRows, Matrix
from pyro_structured.foundation.ops.process_sums import each, gathered, is_shared, summed
from pyro_structured.foundation.ops.row_pieces import row_pieces

# Bytes of the digest by which rows of processes are compared: two of a billion rows have the same one with probability
# 1e-21.
DIGEST = 16


class SharedRows:
    """Distinct rows of all processes, numbered in the order in which they occur; without other processes, the rows at
    hand.

    While they are numbered, each process holds 24 bytes for every distinct row of every process.

    :param BinaryRows rows: Distinct rows of this process, some of which others may have, too.
    :param np.ndarray first: Where they occur first, increasing numbers among the rows of all processes, shape ``(R,)``.
    :ivar BinaryRows rows: The rows of this process.
    :ivar int number: Number of the distinct rows of all.
    :ivar np.ndarray place: Numbers of the rows of this process among these, shape ``(R,)``.
    :ivar bool has_gaps: Whether values are missing anywhere.
    """

    def __init__(self, rows: BinaryRows, first: np.ndarray) -> None:
        self.rows, self.number, self.place = rows, len(rows), np.arange(len(rows))
        self.has_gaps = bool(each(rows.gaps is not None).any())
        # Which rows this process gives to all, those that occur in it first; and which ones others have, too.
        self._given: np.ndarray = np.ones(len(rows), dtype=bool)
        self._common: np.ndarray = np.zeros(len(rows), dtype=bool)
        if is_shared():
            self._find_places(first)

    def _find_places(self, first: np.ndarray) -> None:
        own = _digests(self.rows)
        said = gathered((own, first))
        every = np.concatenate([digests for digests, _ in said])
        names, index, times = np.unique(every, return_inverse=True, return_counts=True)
        self.number = len(names)
        earliest = np.full(self.number, np.iinfo(np.int64).max)
        np.minimum.at(earliest, index, np.concatenate([firsts for _, firsts in said]))
        places: np.ndarray = np.empty(self.number, dtype=np.int64)
        places[earliest.argsort()] = np.arange(self.number)
        mine = np.searchsorted(names, own)
        self.place, self._given, self._common = places[mine], earliest[mine] == first, times[mine] > 1

    def weights(self, weights: np.ndarray) -> np.ndarray:
        """Sums over processes of the weights of distinct rows, shape ``(number,)``.

        :param np.ndarray weights: Weights of those of this process, shape ``(R,)``.
        """
        return summed(np.bincount(self.place, weights, self.number)) if is_shared() else weights

    def heavy(self, weights: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Numbers of the distinct rows that have more than a share of the mean weight, their sums of weights over
        processes, and the weight of all others.

        Only rows that may be heavy, or that several processes have, are exchanged.

        :param np.ndarray weights: Weights of those of this process, shape ``(R,)``.
        """
        least = share * each(float(weights.sum())).sum() / self.number
        asked = self._common | (weights > least)
        said = gathered((self.place[asked], weights[asked]))
        numbers, index = np.unique(np.concatenate([places for places, _ in said]), return_inverse=True)
        sums = np.bincount(index, np.concatenate([parts for _, parts in said]), len(numbers))
        is_heavy = sums > least
        rest = each(float(weights[~asked].sum())).sum() + sums[~is_heavy].sum()
        return numbers[is_heavy], sums[is_heavy], float(rest)

    def taken(self, numbers: np.ndarray) -> BinaryRows:
        """Some of the distinct rows, the same in all processes, with weights of 1.

        :param np.ndarray numbers: Increasing numbers, shape ``(M,)``.
        """
        places = np.searchsorted(numbers, self.place).clip(max=len(numbers) - 1)
        kept = np.flatnonzero(self._given & (numbers[places] == self.place))
        bits: np.ndarray = np.zeros((2, len(numbers), -(-self.rows.num_variables // 8)), dtype=np.uint8)
        for matrix, packed in zip((self.rows.ones, self.rows.gaps), bits, strict=True):
            if matrix is not None:
                packed[places[kept]] = _packed(matrix[kept])
        ones, gaps = np.unpackbits(summed(bits), axis=2, count=self.rows.num_variables)
        return BinaryRows.from_matrix(np.where(gaps, np.float16(np.nan), ones) if self.has_gaps else ones)


def _packed(matrix: Matrix) -> np.ndarray:
    """Rows of zeros and ones as bits, shape ``(R, bytes)``."""
    dense = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    return np.packbits(dense.astype(bool, copy=False), axis=1)


def _digests(rows: BinaryRows) -> np.ndarray:
    """Digests of rows, equal for equal ones, shape ``(R,)``."""
    found: list[bytes] = []
    nothing = np.zeros((1, -(-rows.num_variables // 8)), dtype=np.uint8)
    for piece in row_pieces(len(rows), rows.num_variables):
        ones = _packed(rows.ones[piece])
        gaps = nothing.repeat(len(ones), 0) if rows.gaps is None else _packed(rows.gaps[piece])
        found += (blake2b(row.tobytes(), digest_size=DIGEST).digest() for row in np.concatenate([ones, gaps], 1))
    return np.frombuffer(b"".join(found), dtype=f"V{DIGEST}")
