"""What every family of models stands on: immutable descriptions."""
