"""Algorithms on tensors that several families of models use."""
