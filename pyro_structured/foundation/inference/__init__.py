"""Foundation of all families of models: inference with Pyro."""
