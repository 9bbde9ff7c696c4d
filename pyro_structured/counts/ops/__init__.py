"""Counts in nested subsets of binary variables: algorithms on tensors."""
