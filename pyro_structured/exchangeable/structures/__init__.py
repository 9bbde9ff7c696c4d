"""Exchangeable variables, in groups: immutable descriptions."""
