"""Foundation of all families of models: algorithms on tensors."""
