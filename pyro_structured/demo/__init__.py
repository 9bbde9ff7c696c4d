"""The demonstration ``python -m pyro_structured.demo``: learning, sampling and completing images of digits."""
