"""Converted files in a local folder, which an environment variable names."""

__all__ = ["VARIABLE", "damaged_archive", "local_file", "missing_archive", "read_archive"]

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pyro_structured.foundation.ops.data_file import ArrayKind, read_arrays

VARIABLE = "PYRO_STRUCTURED_DATA"


def local_file(path: str, source: object) -> Path | None:
    """A file in the local folder; None if the environment names no folder.

    :param str path: The file's place below the folder.
    :param source: Public source of the data, for the error: text if there is no download.
    :raises FileNotFoundError: if the folder lacks the file.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    file = Path(folder) / path
    if not file.is_file():
        raise missing_archive(path, source)
    return file


def read_archive(path: str, source: object, kinds: Mapping[str, ArrayKind]) -> dict[str, np.ndarray] | None:
    """The arrays of a :func:`local_file`, as :func:`read_arrays` checks them; None if there is no folder."""
    file = local_file(path, source)
    return None if file is None else read_arrays(file, kinds)


def damaged_archive(path: str, expected: str) -> ValueError:
    """The error for a file in the local folder whose numbers do not fit together."""
    return ValueError(f"{Path(os.environ[VARIABLE], path)}: expected {expected}, got others")


def missing_archive(path: str, source: object) -> FileNotFoundError:
    """The error for a file that the local folder has to hold."""
    remedy = (
        f"put it there, or export {VARIABLE}=<folder>"
        if isinstance(source, str)
        else f"unset {VARIABLE}, and it is downloaded"
    )
    return FileNotFoundError(
        f"{path}: expected in the folder that the environment variable {VARIABLE} names, which is "
        f"{os.environ.get(VARIABLE)!r}; public source of the data: {source}; {remedy}"
    )
