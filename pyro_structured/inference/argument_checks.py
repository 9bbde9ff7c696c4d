"""Errors that name the argument, what was expected and what came."""

__all__ = ["check_count", "check_groups"]


def check_count(name: str, number: object, least: int = 1) -> None:
    """Raises a ValueError, with the argument's name, unless it is an integer that is large enough."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ValueError(f"{name}: expected an integer of at least {least}, got {number!r}")


def check_groups(num_particles: int, num_groups: int, least: int = 1) -> None:
    """Raises a ValueError unless particles can be divided into two or more groups of the same, sufficient size."""
    check_count("num_groups", num_groups, 2)
    check_count("num_particles", num_particles, least * num_groups)
    if num_particles % num_groups:
        raise ValueError(f"num_particles: expected a multiple of num_groups, {num_groups}, got {num_particles}")
