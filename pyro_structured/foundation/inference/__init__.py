"""What every family of models stands on: inference with Pyro."""
