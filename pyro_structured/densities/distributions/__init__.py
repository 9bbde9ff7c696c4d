"""Densities that mix families: Pyro distributions."""
