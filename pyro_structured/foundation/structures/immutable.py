"""Objects that never change."""

__all__ = ["Immutable"]


class Immutable:
    """Base class of descriptions that never change once they are made, so that checkpoints need not keep them."""
