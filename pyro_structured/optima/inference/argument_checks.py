"""Errors that name the argument, what was expected and what came."""

__all__ = ["check_groups"]

from pyro_structured.foundation.structures.argument_checks import check_size


def check_groups(num_particles: int, num_groups: int, least: int = 1) -> None:
    """Raises a ValueError unless particles can be divided into two or more groups of the same, sufficient size."""
    check_size("num_groups", num_groups, 2)
    check_size("num_particles", num_particles, least * num_groups)
    if num_particles % num_groups:
        raise ValueError(f"num_particles: expected a multiple of num_groups, {num_groups}, got {num_particles}")
