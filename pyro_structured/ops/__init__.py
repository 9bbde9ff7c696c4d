"""Algorithms on tensors; no Pyro, no state."""

__all__: list[str] = []
