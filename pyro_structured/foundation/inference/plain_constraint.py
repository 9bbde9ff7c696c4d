"""Constraints of parameters as data."""

__all__ = ["plain_constraint", "rebuilt_constraint"]

from importlib import import_module
from typing import Any

from torch.distributions import constraints

from pyro_structured.foundation.inference.plain_data import plain_copy

# A file may name classes of these, and no others.
MODULES = (
    "torch.distributions.constraints",
    "pyro.distributions.constraints",
    "pyro_structured.optima.distributions.partial_interval",
)


def plain_constraint(constraint: Any, name: str) -> dict[str, Any]:
    """The class of a constraint by name, and its arguments.

    :param str name: Of the parameter.
    :raises ValueError: if the class is none of PyTorch's, Pyro's or ours.
    """
    kind = type(constraint)
    if kind.__module__ not in MODULES or getattr(import_module(kind.__module__), kind.__name__, None) is not kind:
        raise ValueError(
            f"{name}: expected a constraint of torch.distributions, pyro.distributions or pyro_structured, of which a "
            f"state keeps the name, got {kind.__module__}.{kind.__name__}; write the parameter as a function of one "
            "that has such a constraint"
        )
    arguments = {key: _plain_argument(value, f"{name}: {key}") for key, value in vars(constraint).items()}
    return {"module": kind.__module__, "class": kind.__name__, "arguments": arguments}


def _plain_argument(value: Any, name: str) -> Any:
    if isinstance(value, constraints.Constraint):
        return plain_constraint(value, name)
    if isinstance(value, (list, tuple)):
        return [_plain_argument(each, name) for each in value]
    return plain_copy(value, name)


def rebuilt_constraint(plain: dict[str, Any]) -> Any:
    """A constraint from what :func:`plain_constraint` returned.

    :raises ValueError: if it is not known here.
    """
    module, name = plain["module"], plain["class"]
    kind = getattr(import_module(module), name, None) if module in MODULES else None
    if not (isinstance(kind, type) and issubclass(kind, constraints.Constraint)):
        raise ValueError(f"state: expected constraints that PyTorch, Pyro or pyro_structured have, got {module}.{name}")
    found = kind.__new__(kind)
    vars(found).update({key: _rebuilt_argument(value) for key, value in plain["arguments"].items()})
    return found


def _rebuilt_argument(value: Any) -> Any:
    if isinstance(value, dict):
        return rebuilt_constraint(value)
    return [_rebuilt_argument(each) for each in value] if isinstance(value, list) else value
