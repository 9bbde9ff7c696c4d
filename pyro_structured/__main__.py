"""Says what is installed and where to go: ``python -m pyro_structured``."""

import platform
from importlib import metadata

from pyro_structured import __version__

# Distributions that each extra installs, by their names.
EXTRAS = {
    "arrow": "rows from tables and Parquet files of Arrow",
    "arviz": "results of MCMC for ArviZ",
    "demo": "pictures of the demo",
    "fast": "compiled samplers, with the same results",
    "learning": "quadratic programs, for HardEM",
    "plot": "pictures of structures, fields and chains",
}
PLACES = {
    "a demo": "python -m pyro_structured.demo",
    "models": "import pyro_structured.distributions as sdist",
    "tutorials": "the folder tutorials of the repository",
    "documentation": "make docs, in the repository",
}


def installed(name: str) -> str:
    """The version of a distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def required_names(requirements: list[str], extra: str | None) -> list[str]:
    """Names of the distributions that are required always, or by an extra.

    :param requirements: As the metadata of a distribution lists them.

    Example::

        >>> required_names(["torch>=2.8", 'numba; extra == "fast"'], "fast")
        ['numba']
    """
    found = []
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        wanted = f'extra == "{extra}"' in marker.replace("'", '"') if extra else "extra" not in marker
        if wanted:
            found.append("".join(c if c.isalnum() or c in "-_" else " " for c in name).split()[0])
    return found


def report() -> str:
    """Versions of Python, this package, what it needs and what it can use, one on each line."""
    requirements = metadata.requires("pyro-structured") or []
    lines = [f"pyro-structured {__version__}, Python {platform.python_version()}", "", "needs"]
    lines += [f"  {name:<14}{installed(name)}" for name in required_names(requirements, None)]
    lines += ["", 'can use: pip install ".[NAME]"']
    for extra, purpose in EXTRAS.items():
        names = ", ".join(f"{name} {installed(name)}" for name in required_names(requirements, extra))
        lines.append(f"  {extra:<14}{purpose}: {names}")
    lines += ["", "go on with", *(f"  {name:<14}{place}" for name, place in PLACES.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
