"""Exchangeable variables, in groups."""
