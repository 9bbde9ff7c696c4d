"""Exchangeable variables, in groups: estimators."""
