"""Objects that never change."""

__all__ = ["Immutable"]


class Immutable:
    """Base of descriptions that never change once they are made: what goes on from a file finds them as they were."""
