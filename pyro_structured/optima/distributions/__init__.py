"""Optima of problems with random costs: Pyro distributions."""
