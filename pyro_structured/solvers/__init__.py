"""Combinatorial solvers of other libraries, for batches of problems."""
