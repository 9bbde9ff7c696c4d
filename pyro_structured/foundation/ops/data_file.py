"""Files whose content is checked before it is read into memory and used."""

__all__ = ["ArrayKind", "read_arrays", "read_content", "reading"]

import gzip
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

# Largest number of bytes, decompressed: eight times that of the largest of the files.
LARGEST_CONTENT = 2**26
# Names of numpy's kinds of dtypes, for errors.
KINDS = {"u": "unsigned integers", "iu": "integers", "f": "floating point numbers", "iuf": "numbers", "U": "strings"}


class ArrayKind(NamedTuple):
    """Requirements on an array.

    :ivar str kind: Letters of numpy's kinds, a key of ``KINDS``.
    :ivar tuple shape: Sizes of the axes; a name stands for any size of at least 1, the same in all arrays of a file.
    :ivar float least: The smallest number that is allowed.
    :ivar float most: The largest number that is allowed.
    :ivar bool optional: Whether the array may be missing.
    """

    kind: str
    shape: tuple[int | str, ...]
    least: float = -math.inf
    most: float = math.inf
    optional: bool = False


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turns any error inside into a ValueError that names the file: decoders of damaged files raise nearly everything.

    :param Path path: The file.
    :param str expected: Expected content of the file, for the message.

    Example::

        >>> with reading(Path("numbers.txt"), "a number"):
        ...     float("one")
        Traceback (most recent call last):
            ...
        ValueError: numbers.txt: expected a number, got other bytes (could not convert string to float: 'one')
    """
    try:
        yield
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path}: expected {expected}, got other bytes ({reason})") from error


def read_content(path: Path, largest: int = LARGEST_CONTENT) -> bytes:
    """All bytes, decompressed if the name ends in ``.gz``.

    :raises ValueError: if there are more than ``largest`` bytes, which are never read, or gzip did not write the file.
    """
    with path.open("rb") as file:
        if path.suffix != ".gz":
            content = file.read(largest + 1)
        else:
            with reading(path, "what gzip has compressed"), gzip.GzipFile(fileobj=file) as stream:
                content = stream.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"{path}: expected at most {largest} bytes, decompressed, got more")
    return content


def read_arrays(path: Path, kinds: Mapping[str, ArrayKind]) -> dict[str, np.ndarray]:
    """Arrays of a file in numpy's format ``.npz``.

    :param Path path: The file; arrays without an entry in ``kinds`` are not read.
    :param kinds: Requirements on the arrays, by name.
    :raises ValueError: if the file is damaged, or an array is missing or does not meet its requirements. Shapes and
        dtypes are checked before any number is read.
    """
    with path.open("rb") as file:
        with reading(path, "an archive of numpy's arrays (.npz)"):
            archive = zipfile.ZipFile(file)
        with archive:
            return _checked_arrays(path, archive, kinds)


def _checked_arrays(path: Path, archive: zipfile.ZipFile, kinds: Mapping[str, ArrayKind]) -> dict[str, np.ndarray]:
    present = set(archive.namelist())
    missing = [name for name in kinds if f"{name}.npy" not in present]
    needed = [name for name in missing if not kinds[name].optional]
    if needed:
        raise ValueError(f"{path}: expected the arrays {sorted(kinds)}, got none of the name {needed[0]!r}")
    kinds = {name: kind for name, kind in kinds.items() if name not in missing}
    sizes: dict[str, int] = {}
    total = 0
    for name, kind in kinds.items():
        with reading(path, f"an array in numpy's format in {name!r}"), archive.open(f"{name}.npy") as member:
            shape, dtype = _header(member)
        _check_kind(f"{path}: {name}", kind, shape, dtype, sizes)
        total += math.prod(shape) * dtype.itemsize
    if total > LARGEST_CONTENT:
        raise ValueError(f"{path}: expected at most {LARGEST_CONTENT} bytes in arrays, got {total}")
    return {name: _checked_array(path, archive, name, kind) for name, kind in kinds.items()}


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(member)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[version](member)
    return shape, dtype


def _check_kind(where: str, kind: ArrayKind, shape: tuple[int, ...], dtype: np.dtype, sizes: dict[str, int]) -> None:
    """Raises a ValueError unless an array is of a kind; adds sizes that have names to ``sizes``."""
    known = [sizes.get(size, size) if isinstance(size, str) else size for size in kind.shape]
    fits = len(shape) == len(known) and all(
        size == (wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size)) and size > 0
        for wanted, size in zip(known, shape, strict=True)
    )
    if not fits or dtype.kind not in kind.kind:
        expected = f"({', '.join(map(str, known))}{',' * (len(known) == 1)})"
        raise ValueError(f"{where}: expected {KINDS[kind.kind]} of shape {expected}, got {dtype} of shape {shape}")


def _checked_array(path: Path, archive: zipfile.ZipFile, name: str, kind: ArrayKind) -> np.ndarray:
    with reading(path, f"an array in numpy's format in {name!r}"), archive.open(f"{name}.npy") as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
    if kind.kind != "U" and not (np.isfinite(array) & (array >= kind.least) & (array <= kind.most)).all():
        raise ValueError(f"{path}: {name}: expected finite numbers from {kind.least} to {kind.most}, got others")
    return array
