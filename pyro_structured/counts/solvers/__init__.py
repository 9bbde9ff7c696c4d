"""Potentials of counts: combinatorial solvers of other libraries."""
