"""Sources from which rows come in batches: loaders of torch, and tables, files and streams of Arrow."""

__all__ = ["RecordBatches", "joined_batches", "rows_of_source"]

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pyro_structured.foundation.models.argument_checks import plain_array
from pyro_structured.foundation.ops.row_pieces import row_pieces

# Largest integers up to which all are floating point numbers of a type.
EXACT: tuple[tuple[type[np.floating[Any]], int], ...] = ((np.float16, 2**11), (np.float32, 2**24), (np.float64, 2**53))
# More rows than a piece has; and how often the numbers of a piece are held as it is converted.
MOST_ROWS, COPIES = 2**31, 8
INTEGERS = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64)
# Batches of classes of pyarrow, which is not imported for them: of at most so many rows, where a source makes them when
# they are read. Few of them are read ahead.
ARROW: dict[str, Callable[[Any, int], Iterable[Any]]] = {
    "Table": lambda table, size: table.to_batches(),
    "RecordBatch": lambda batch, size: [batch],
    "RecordBatchReader": lambda reader, size: reader,
    "ParquetFile": lambda file, size: file.iter_batches(batch_size=size),
    "Dataset": lambda dataset, size: dataset.to_batches(batch_size=size, batch_readahead=1, fragment_readahead=1),
}


@dataclass(frozen=True, eq=False)
class RecordBatches:
    """Rows of a source of Arrow, which are read once.

    :ivar header: The columns without rows, a ``pyarrow.Table``, of which scikit-learn reads the names.
    :ivar pieces: ``pyarrow.RecordBatch``, one after the other, small enough to be converted at once.
    :ivar str name: Name of the argument, for messages.
    """

    header: Any
    pieces: Iterator[Any]
    name: str


def rows_of_source(values: Any, name: str = "X") -> Any:
    """Rows of a loader or a dataset of torch as an array, batches of a source of Arrow; other values as they are.

    Loaders are gone through once. The first element of a batch that is a tuple or a list are its rows. Whole numbers
    are kept in the smallest type that holds all of them, or in the smallest floating point type where some are NaN.

    :param values: ``torch.utils.data.DataLoader``, ``TensorDataset``, ``pyarrow.Table``, ``RecordBatch``,
        ``RecordBatchReader``, ``pyarrow.parquet.ParquetFile``, ``pyarrow.dataset.Dataset``, or anything else.
    :param str name: Name of the argument, for messages.
    :raises ValueError: for batches that are no rows of equal width, columns of one name, and paths of files.

    Example::

        >>> import torch
        >>> loader = DataLoader(TensorDataset(torch.eye(3), torch.arange(3)), batch_size=2)
        >>> rows_of_source(loader)
        array([[1, 0, 0],
               [0, 1, 0],
               [0, 0, 1]], dtype=uint8)
    """
    if isinstance(values, (str, bytes, PathLike)):
        raise ValueError(
            f"{name}: expected numbers or categories in rows and columns, got {values!r}; a file is given as "
            "pyarrow.parquet.ParquetFile(path), or pyarrow.dataset.dataset(path)"
        )
    if isinstance(values, DataLoader):
        return joined_batches(_loaded(values, name), name)
    if isinstance(values, TensorDataset):
        return plain_array(values.tensors[0], name)
    if isinstance(values, Dataset):
        raise ValueError(
            f"{name}: expected numbers or categories in rows and columns, got a {type(values).__name__}; a dataset of "
            "torch is given as torch.utils.data.DataLoader(dataset, batch_size)"
        )
    for kind in type(values).__mro__:
        if kind.__module__.partition(".")[0] == "pyarrow" and kind.__name__ in ARROW:
            return _record_batches(values, ARROW[kind.__name__], name)
    return values


def _record_batches(values: Any, read: Callable[[Any, int], Iterable[Any]], name: str) -> RecordBatches:
    # The schema of a file of Parquet is another one.
    schema = values.schema_arrow if hasattr(values, "schema_arrow") else values.schema
    held = COPIES * len(schema.names)
    if len(set(schema.names)) < len(schema.names):
        raise ValueError(f"{name}: expected columns with different names, got {schema.names}")
    pieces = (
        batch.slice(piece.start, piece.stop - piece.start)
        for batch in read(values, next(row_pieces(MOST_ROWS, held)).stop)
        for piece in row_pieces(batch.num_rows, held)
    )
    return RecordBatches(schema.empty_table(), pieces, name)


def _loaded(loader: Iterable[Any], name: str) -> Iterator[np.ndarray]:
    """Rows of each batch of a loader."""
    for place, batch in enumerate(loader):
        rows = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        if not isinstance(rows, (Tensor, np.ndarray)):
            raise ValueError(
                f"{name}: expected batches that are tensors of rows, or tuples that begin with one, got a "
                f"{type(rows).__name__} in batch {place}"
            )
        if rows.ndim != 2:
            remedy = "; pictures are flattened, as by torch.flatten(batch, 1)" if rows.ndim > 2 else ""
            raise ValueError(
                f"{name}: expected batches of rows, of shape (number, columns), got {tuple(rows.shape)} in batch "
                f"{place}{remedy}"
            )
        yield np.asarray(plain_array(rows, name))


def joined_batches(batches: Iterable[np.ndarray], name: str = "X") -> np.ndarray:
    """All rows of batches in one array, with whole numbers in the smallest type that holds them, and NaN.

    Takes memory for the result twice, and for a batch as it comes.

    :param batches: Rows of each batch, shape ``(B, n)``, at least one.
    :param str name: Name of the argument, for messages.
    :raises ValueError: if there is no batch, or they have different widths.

    Example::

        >>> joined_batches([np.array([[0.0, 1.0]]), np.array([[3.0, np.nan]])])
        array([[ 0.,  1.],
               [ 3., nan]], dtype=float16)
    """
    kept: list[np.ndarray] = []
    kinds: list[np.dtype[Any]] = []
    ranges: list[tuple[int, int, bool] | None] = []
    for place, batch in enumerate(batches):
        if kept and batch.shape[1] != kept[0].shape[1]:
            raise ValueError(
                f"{name}: expected batches of {kept[0].shape[1]} columns, as the first one, got {batch.shape[1]} in "
                f"batch {place}"
            )
        found = _whole_range(batch)
        # A copy: loaders may use their memory again.
        kept.append(batch.astype(batch.dtype if found is None else _smallest(*found)))
        if len(batch):
            kinds.append(batch.dtype)
            ranges.append(found)
    if not kept:
        raise ValueError(f"{name}: expected at least one batch of rows, got none")
    whole = [found for found in ranges if found is not None]
    if kinds and len(whole) == len(ranges):
        lows, highs, gaps = zip(*whole, strict=True)
        dtype = _smallest(min(lows), max(highs), any(gaps))
    else:
        dtype = np.result_type(*kinds) if kinds else kept[0].dtype
    joined = np.empty((sum(map(len, kept)), kept[0].shape[1]), dtype=dtype)
    start = len(joined)
    while kept:
        part = kept.pop()
        joined[start - len(part) : start] = part
        start -= len(part)
    return joined


def _whole_range(values: np.ndarray) -> tuple[int, int, bool] | None:
    """Smallest and largest number, and whether some are NaN; ``None`` unless others are whole, and not too large."""
    if not values.size or values.dtype.kind not in "iuf":
        return None
    if values.dtype.kind != "f":
        low, high = int(values.min()), int(values.max())
        return (low, high, False) if high <= np.iinfo(INTEGERS[-1]).max else None
    missing = np.isnan(values)
    gaps = bool(missing.any())
    present = values[~missing] if gaps else values
    if not present.size:
        return 0, 0, True
    most = float(abs(present).max())
    if most > EXACT[-1][1] or (np.floor(present) != present).any():
        return None
    return int(present.min()), int(present.max()), gaps


def _smallest(low: int, high: int, gaps: bool) -> np.dtype[Any]:
    if gaps:
        most = max(-low, high)
        return np.dtype(next((kind for kind, exact in EXACT if most <= exact), np.float64))
    return np.dtype(next(kind for kind in INTEGERS if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max))
