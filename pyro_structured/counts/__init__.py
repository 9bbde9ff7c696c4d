"""Counts in nested subsets of binary variables."""
