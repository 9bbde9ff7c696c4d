"""Optima of problems with random costs: immutable descriptions."""
