"""Layers that every family of models stands on."""
