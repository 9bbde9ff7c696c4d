"""Foundation of all families of models: immutable descriptions."""
