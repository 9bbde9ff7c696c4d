"""Bases of Pyro distributions that several families of models use."""
