"""Approximate inference for variables in several families of counts."""
