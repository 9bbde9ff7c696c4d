"""Inference with Pyro that several families of models use."""
