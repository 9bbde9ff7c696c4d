"""States of all generators of random numbers."""

__all__ = ["load_random_state", "random_state", "same_random_state", "spread_random_state"]

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyro
import torch


def random_state() -> dict[str, Any]:
    """States of the generators of PyTorch, on the processor and on all CUDA devices in use, of Python and of NumPy, as
    plain data.
    """
    name, keys, *rest = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "random": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
    }
    # Asking for their states would start devices that nobody uses.
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def load_random_state(state: dict[str, Any]) -> None:
    """Restores the states of all generators; those of CUDA devices that this machine lacks are left out."""
    name, keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"].cpu())
    random.setstate(state["random"])
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))
    for device, device_state in enumerate(state.get("cuda", ())[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(device_state.cpu(), device)


def spread_random_state(rank: int) -> None:
    """Moves all generators, which are in the same state in several processes, to states that differ between processes;
    those of process 0 stay where they are.
    """
    if rank > 0:
        drawn = int(torch.randint(2**62, ()))
        digest = hashlib.sha256(f"{drawn} {rank}".encode()).digest()
        # NumPy takes 32 bits.
        pyro.set_rng_seed(int.from_bytes(digest[:4], "big"))


@contextmanager
def same_random_state() -> Iterator[None]:
    """Context that leaves the states of all generators as they were before."""
    state = random_state()
    try:
        yield
    finally:
        load_random_state(state)
