"""Files in which Markov chains are kept."""

__all__ = ["chain_path", "chain_paths", "read_chain", "remove_unfinished", "write_chain"]

import glob
import io
import multiprocessing
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

# Format of the files; others are refused.
FORMAT = "pyro_structured.inference.Checkpoint 1"
KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("run", "data"), str),
    **dict.fromkeys(("every", "warmup_steps", "turn"), int),
    **dict.fromkeys(("names", "state"), list),
    **dict.fromkeys(("kernel", "parameters", "start", "params", "random", "shapes", "constrained", "sums"), dict),
    "given": (dict, type(None)),
    "draws": torch.Tensor,
}


def chain_path(path: Path, number: int) -> Path:
    """Path of the file of a chain: the path itself for the first one, with the number before the suffix for others."""
    return path if number == 0 else path.with_name(f"{path.stem}.{number}{path.suffix}")


def chain_paths(path: Path) -> list[Path]:
    """Paths of all files of chains, in the order of the chains; the first one need not exist."""
    pattern = re.compile(rf"{re.escape(path.stem)}\.([1-9]\d*){re.escape(path.suffix)}")
    matches = [pattern.fullmatch(file.name) for file in path.parent.iterdir()] if path.parent.is_dir() else []
    return [path, *(chain_path(path, number) for number in sorted(int(match[1]) for match in matches if match))]


def read_chain(path: Path) -> dict[str, Any]:
    """Content of the file of a chain.

    :raises FileNotFoundError: if there is no file.
    :raises ValueError: if it is not a file of a chain.
    """
    stored = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(stored)) as archive:
            # Torch does not look at checksums.
            damaged = archive.testzip()
        content = torch.load(io.BytesIO(stored), weights_only=True)
    # The errors of torch and zipfile for damaged files are not documented.
    except Exception as error:
        raise ValueError(f"path: expected a file that Checkpoint wrote, got {path}: {error}") from None
    if damaged is not None:
        raise ValueError(f"path: expected a file that Checkpoint wrote, got {path}, of which {damaged} is damaged")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"path: expected a file that Checkpoint wrote, got {path}, which holds something else")
    for name, kind in KINDS.items():
        if name not in content or not isinstance(content[name], kind):
            raise ValueError(f"path: expected a file that Checkpoint wrote, got {path}, which lacks {name!r}")
    return content


def remove_unfinished(path: Path) -> None:
    """Removes unfinished files of processes that were killed while they wrote a file."""
    for file in path.parent.glob(f"{glob.escape(path.name)}.*.unfinished"):
        file.unlink(missing_ok=True)


def write_chain(path: Path, content: dict[str, Any]) -> None:
    """Writes a file atomically: at any moment, it is the earlier one or the new one as a whole.

    :raises RuntimeError: if the process that started this one was killed: the chain may go on elsewhere.
    """
    if _is_orphan():
        raise RuntimeError(f"{path}: expected a process that waits for this chain, got none; it was killed")
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    with unfinished.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def _is_orphan() -> bool:
    """Whether the process that started this one has ended."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return False
    try:
        return not parent.is_alive()
    # Processes of joblib cannot ask; another process takes the place of one that has ended.
    except ValueError:
        return os.getppid() != parent.pid
