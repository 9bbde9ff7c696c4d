"""Optima of problems with random costs."""
