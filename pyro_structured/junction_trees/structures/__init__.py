"""Thin junction trees over categorical variables: immutable descriptions."""
