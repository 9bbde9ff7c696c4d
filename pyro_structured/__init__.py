"""Exact inference for structured discrete variables in Pyro.

Subpackages are imported on first use, so that ``import pyro_structured`` costs nothing. The idiom is::

    import pyro_structured.distributions as sdist
"""

__all__ = [
    "__version__",
    "datasets",
    "distributions",
    "inference",
    "models",
    "ops",
    "plotting",
    "structures",
    "testing",
]

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyro_structured import datasets, distributions, inference, models, ops, plotting, structures, testing

__version__ = "0.1.0"

# Modules in which families say what kernels do with their sites; the foundation, which knows no family, loads them.
SITE_HANDLERS = (
    "pyro_structured.counts.inference.site_handlers",
    "pyro_structured.fields.inference.site_handlers",
    "pyro_structured.optima.inference.site_handlers",
)


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
