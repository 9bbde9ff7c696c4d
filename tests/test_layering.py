"""Imports inside the package point downward only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyro_structured

# From the bottom up. A module may import from its own subpackage and from the layers below it.
LAYERS = [
    {"ops", "solvers"},
    {"structures"},
    {"datasets"},
    {"distributions"},
    {"inference"},
    {"models"},
    {"testing"},
    {"demo"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def imported_names(tree: ast.Module, package: list[str]) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of all imports: nested ones and those for type checkers too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def used_attributes(tree: ast.Module, root: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of ``root.name``: lazy attributes are imports in disguise."""
    aliases = {
        alias.asname or root
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == root or (alias.name.startswith(f"{root}.") and not alias.asname)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield node.lineno, f"{root}.{node.attr}"


def upward_imports(folder: Path) -> list[str]:
    """Descriptions of the forbidden imports in a package, whose own ``__init__.py`` may import anything."""
    errors = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        source = parts[1]
        if source == "__init__":
            continue
        where = path.relative_to(folder)
        if source not in RANK:
            errors.append(f"{where}: {source} is in no layer")
            continue
        tree = ast.parse(path.read_text(), str(path))
        uses = [*imported_names(tree, list(parts[:-1])), *used_attributes(tree, folder.name)]
        for line, name in sorted(set(uses)):
            root, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if root != folder.name or target in {"", source, "__version__"}:
                continue
            if RANK.get(target, len(LAYERS)) >= RANK[source]:
                errors.append(f"{where}:{line}: {source} imports {name}")
    return errors


def test_package_is_layered():
    assert upward_imports(Path(pyro_structured.__file__).parent) == []


@pytest.mark.parametrize(
    "module, text",
    [
        ("ops/a.py", "from made_up.structures import B"),
        ("ops/a.py", "import made_up.distributions.b as b"),
        ("ops/a.py", "import made_up.ops.b\nmade_up.models"),
        ("ops/a.py", "import made_up as m\nm.models"),
        ("ops/a.py", "from made_up import models"),
        ("ops/a.py", "from .. import models"),
        ("ops/deep/a.py", "from ...models import b"),
        ("ops/__init__.py", "from ..solvers import b"),
        ("structures/a.py", "def f():\n    from ..distributions.b import C"),
        ("structures/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import made_up.models"),
        ("datasets/a.py", "from made_up.distributions import B"),
        ("models/a.py", "from made_up.testing import b"),
        ("testing/a.py", "from made_up import demo"),
        ("distributions/a.py", "from made_up import *"),
        ("distributions/a.py", "from made_up.nonsense import b"),
        ("nonsense/a.py", ""),
    ],
)
def test_upward_import_is_reported(tmp_path, module, text):
    path = tmp_path / "made_up" / module
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (error,) = upward_imports(tmp_path / "made_up")
    assert error.startswith(module)


@pytest.mark.parametrize(
    "module, text",
    [
        ("__init__.py", "from made_up import models, testing"),
        ("ops/a.py", "import torch.distributions\nfrom .b import c\nfrom . import d\nimport made_up.ops.e"),
        (
            "structures/a.py",
            "from made_up import __version__\nfrom ..solvers import b\nimport made_up.ops as ops",
        ),
        ("datasets/a.py", "from made_up.structures import B"),
        ("models/a.py", "from ..inference.b import C\nfrom made_up.datasets import d"),
        ("testing/a.py", "from made_up.testing.b import C\nimport made_up.models"),
        ("demo/__main__.py", "from made_up.testing import b\nfrom made_up import distributions"),
        ("demo.py", "from . import distributions"),
    ],
)
def test_downward_import_is_allowed(tmp_path, module, text):
    path = tmp_path / "made_up" / module
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert upward_imports(tmp_path / "made_up") == []
