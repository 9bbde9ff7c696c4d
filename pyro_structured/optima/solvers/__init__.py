"""Optima of problems with random costs: combinatorial solvers of other libraries."""
