"""Memory that functions free, kept for the next call."""

__all__ = ["keep_freed_memory"]

from functools import cache

import torch

# Bytes: just below the largest block that the C library of Linux takes into account.
LARGEST_BLOCK = 2**25 - 2**13


@cache
def keep_freed_memory() -> None:
    """Lets a pass reuse the memory that the pass before has freed.

    The C library of Linux returns freed memory to the system beyond twice the largest block freed so far, 32 MB at
    most. Small blocks alone would be returned after every pass, and a good part of the next one be spent on page
    faults.
    """
    torch.empty(LARGEST_BLOCK, dtype=torch.uint8, device="cpu")
