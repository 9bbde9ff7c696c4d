"""Texts of errors for other processes."""

__all__ = ["error_text"]


def error_text(error: BaseException) -> str:
    """Text of an error, with the name of its class unless other processes raise it in the same class.

    Example::

        >>> error_text(ValueError("n: expected 1")), error_text(KeyError("n"))
        ('n: expected 1', "KeyError: 'n'")
    """
    own = isinstance(error, ValueError | NotImplementedError)
    return str(error) if own else f"{type(error).__name__}: {error}".removesuffix(": ")
