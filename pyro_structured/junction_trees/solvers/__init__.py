"""Thin junction trees over categorical variables: combinatorial solvers of other libraries."""
