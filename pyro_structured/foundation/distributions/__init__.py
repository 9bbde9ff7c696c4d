"""What every family of models stands on: Pyro distributions."""
