"""Seeds of estimators."""

__all__ = ["checked_generator", "torch_draws"]

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state


def checked_generator(random_state: Any) -> np.random.RandomState:
    """Random number generator that scikit-learn makes of a ``random_state``, or a ValueError."""
    try:
        generator: np.random.RandomState = check_random_state(random_state)
        return generator
    except ValueError:
        raise ValueError(
            f"random_state: expected None, an integer from 0 to 2^32 - 1, or a numpy.random.RandomState, got "
            f"{random_state!r}"
        ) from None


@contextmanager
def torch_draws(random_state: Any) -> Iterator[None]:
    """Context in which torch's generator on the CPU is seeded, and which leaves it as it was; ``None`` changes nothing.

    Example::

        >>> with torch_draws(0):
        ...     first = torch.rand(2)
        >>> with torch_draws(0):
        ...     bool((torch.rand(2) == first).all())
        True
    """
    if random_state is None:
        yield
        return
    seed = checked_generator(random_state).randint(2**31)
    with torch.random.fork_rng(devices=()):
        # ``torch.manual_seed`` would seed other devices too.
        torch.default_generator.manual_seed(seed)
        yield
