"""Old spellings of arguments and methods, which go on working for some time, with a warning."""

__all__ = ["old_parameters", "old_spellings", "warn_of_old_name"]

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pyro_structured.foundation.ops.user_frame import frames_below_user

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=type)


def warn_of_old_name(old: str, new: str) -> None:
    """Issues a FutureWarning that something has another name now."""
    warnings.warn(f"{old} is now called {new}; the old name will go", FutureWarning, stacklevel=frames_below_user())


def old_spellings(
    *positional: str, **renamed: str
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorator of functions whose arguments had other names, or could be given by position; the signature that others
    see is the function's own.

    :param positional: Keyword-only arguments that could be given by position, behind those that still can, in order.
    :param renamed: New names of arguments by their old ones.

    Example::

        >>> @old_spellings("tol", epochs="max_iter")
        ... def fit(X, *, tol=1e-3, max_iter=10):
        ...     return tol, max_iter
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     settings = fit([], 0.1, epochs=3)
        >>> settings, str(caught[1].message)
        ((0.1, 3), 'epochs is now called max_iter; the old name will go')
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
        most = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            names = positional[: len(args) - most] if len(args) > most else ()
            # For arguments beyond these, Python raises an error itself.
            if len(args) <= most + len(positional):
                args, rest = args[:most], dict(zip(names, args[most:], strict=True))
                if rest:
                    warnings.warn(
                        f"arguments are expected by name, got {', '.join(names)} by position, which will be an error",
                        FutureWarning,
                        stacklevel=frames_below_user(),
                    )
                kwargs = _joined(kwargs, rest)
            for old in sorted(renamed.keys() & kwargs.keys()):
                warn_of_old_name(old, renamed[old])
                kwargs = _joined(kwargs, {renamed[old]: kwargs.pop(old)})
            return function(*args, **kwargs)

        return call

    return decorate


def _joined(kwargs: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    for name in more.keys() & kwargs.keys():
        raise TypeError(f"{name}: expected once, got two values")
    return kwargs | more


def old_parameters(*positional: str, **renamed: str) -> Callable[[Kind], Kind]:
    """Decorator of estimators with old spellings in the constructor, ``set_params`` and attributes; arguments as for
    :func:`old_spellings`.
    """

    def decorate(kind: Kind) -> Kind:
        described: Any = kind
        described.__init__ = old_spellings(*positional, **renamed)(described.__init__)
        if renamed:
            described.set_params = old_spellings(**renamed)(described.set_params)
        for old, new in renamed.items():
            setattr(kind, old, _old_attribute(old, new))
        return kind

    return decorate


def _old_attribute(old: str, new: str) -> property:
    def get(self: Any) -> Any:
        warn_of_old_name(old, new)
        return getattr(self, new)

    def put(self: Any, value: Any) -> None:
        warn_of_old_name(old, new)
        setattr(self, new, value)

    return property(get, put)
