"""Densities that mix families: algorithms on tensors."""
