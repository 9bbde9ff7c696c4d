"""Foundation of all families of models: Pyro distributions."""
