"""Argument checks whose errors name the argument, the expected and the actual value."""

__all__ = ["check_name", "check_noise", "check_number", "checked_labels", "seeded_generator"]

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from pyro_structured.foundation.structures.argument_checks import check_choice


def checked_labels(labels: Any) -> np.ndarray:
    """Label fields as an array; raises a ValueError unless they are zeros and ones."""
    try:
        found = np.asarray(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"labels: expected an array, got another: {error}") from None
    if found.dtype.kind not in "biuf" or not ((found == 0) | (found == 1)).all():
        raise ValueError("labels: expected zeros and ones, got others")
    return found


def check_name(name: str, known: Iterable[str]) -> None:
    """Raises a ValueError that lists the names unless an argument is one of them."""
    check_choice("name", name, known)


def check_number(name: str, number: object, highest: int) -> None:
    """Raises a ValueError, with the argument's name, unless it is an integer from 1 to a largest one."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or not 1 <= number <= highest:
        raise ValueError(f"{name}: expected an integer from 1 to {highest}, got {number!r}")


def check_noise(name: str, noise: object) -> None:
    """Raises a ValueError, with the argument's name, unless it is a finite number of at least 0."""
    if not isinstance(noise, (int, float, np.integer, np.floating)) or not 0 <= noise < math.inf:
        raise ValueError(f"{name}: expected a finite number of at least 0, got {noise!r}")


def seeded_generator(seed: int) -> np.random.Generator:
    """A random generator, or a ValueError unless the seed is an integer of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed: expected an integer of at least 0, got {seed!r}")
    return np.random.default_rng(seed)
