"""Optima of problems with random costs: algorithms on tensors."""
