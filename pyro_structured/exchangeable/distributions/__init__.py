"""Exchangeable variables, in groups: Pyro distributions."""
