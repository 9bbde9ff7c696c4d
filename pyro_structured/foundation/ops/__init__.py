"""What every family of models stands on: algorithms on tensors."""
