"""Thin junction trees over categorical variables."""
