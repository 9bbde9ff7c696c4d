"""Work that stays on the processor, whatever device is set."""

__all__ = ["on_processor"]

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_processor() -> Iterator[None]:
    """Context, and decorator, in which new tensors are on the processor, where solvers are, also after
    ``torch.set_default_device``.

    Example::

        >>> with torch.device("meta"), on_processor():
        ...     torch.zeros(2).device
        device(type='cpu')
    """
    # Where a device is set, all operations are slower.
    if torch.get_default_device().type == "cpu":
        yield
        return
    with torch.device("cpu"):
        yield
