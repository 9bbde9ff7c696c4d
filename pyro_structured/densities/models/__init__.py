"""Densities that mix families: estimators."""
