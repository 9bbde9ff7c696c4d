"""Immutable descriptions of the structure of discrete variables, passed to distributions."""

__all__ = ["NestedSubsets"]

from pyro_structured.structures.nested_subsets import NestedSubsets
