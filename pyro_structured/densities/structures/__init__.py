"""Densities that mix families: immutable descriptions."""
