"""Where the generators of random numbers are."""

__all__ = ["generator_states", "restore_generators"]

import random
from typing import Any

import numpy as np
import torch


def generator_states() -> dict[str, Any]:
    """States of the generators of torch, on all devices in use, of numpy and of Python, as plain data."""
    kind, keys, *rest = np.random.get_state()
    # A forked process may not look at devices that nobody uses.
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "torch": torch.get_rng_state(),
        "cuda": devices,
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
    }


def restore_generators(states: dict[str, Any]) -> None:
    """Goes back to the states that :func:`generator_states` returned."""
    torch.set_rng_state(states["torch"])
    torch.cuda.set_rng_state_all(states["cuda"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
