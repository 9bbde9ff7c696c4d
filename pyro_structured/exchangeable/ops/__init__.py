"""Exchangeable variables, in groups: algorithms on tensors."""
