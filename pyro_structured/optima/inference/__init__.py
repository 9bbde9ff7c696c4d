"""Optima of problems with random costs: inference with Pyro."""
