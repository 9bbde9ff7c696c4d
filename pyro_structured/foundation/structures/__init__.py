"""Immutable descriptions, and their argument checks, that several families of models use."""
