"""Every claim about speed or accuracy: ``python -m benchmarks.FAMILY.NAME``, from the root of the repository."""
