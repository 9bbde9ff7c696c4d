"""Errors that name the argument, what was expected and what came."""

__all__ = ["check_name", "seeded_generator"]

from collections.abc import Iterable

import numpy as np


def check_name(name: str, known: Iterable[str]) -> None:
    """Raises a ValueError that lists the names unless this is one of them."""
    names = tuple(known)
    if name not in names:
        raise ValueError(f"name: expected one of {names}, got {name!r}")


def seeded_generator(seed: int) -> np.random.Generator:
    """A random generator, or a ValueError unless the seed is an integer of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed: expected an integer of at least 0, got {seed!r}")
    return np.random.default_rng(seed)
