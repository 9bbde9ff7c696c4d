"""Pyro distributions over structured discrete variables."""

__all__ = ["RecursiveCardinality"]

from pyro_structured.distributions.recursive_cardinality import RecursiveCardinality
