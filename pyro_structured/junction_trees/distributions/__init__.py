"""Thin junction trees over categorical variables: Pyro distributions."""
