"""Thin junction trees over categorical variables: algorithms on tensors."""
