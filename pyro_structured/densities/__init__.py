"""Densities that mix families."""
