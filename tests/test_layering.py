"""Imports inside the package point downward: from layer to layer in a family, and from families to the foundation."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyro_structured

# From the bottom up, in every family. A module may import from its own layer and from those below it.
LAYERS = [{"ops", "solvers"}, {"structures"}, {"distributions"}, {"inference"}, {"models"}]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FOUNDATION = "foundation"
FAMILIES = {"counts", "exchangeable", "junction_trees", "optima", "fields"}
# Families that stand on others.
MIXTURES = {"densities": {"exchangeable", "junction_trees"}}
WINGS = {FOUNDATION, *FAMILIES, *MIXTURES}
# Fronts, from which users import, and packages built on them; no wing imports any of these.
FRONTS = {"ops", "structures", "distributions", "inference", "models"}
OUTSIDE = {*FRONTS, "datasets", "testing", "plotting", "demo", "__main__"}
# Of those that are no fronts, each may import from the ones before it.
ORDER = ["datasets", "testing", "plotting", "demo"]
# Names of the package itself.
ROOT = {"__version__", "SITE_HANDLERS"}
# Modules that one family uses of another, with the reasons why they are not written twice.
REUSE = {
    ("exchangeable.ops.weighted_counts", "counts.ops.log_convolution"): "ones of weighted variables are counted",
    ("fields.ops.field_sweeps", "counts.ops.count_forest"): "units of a pattern are exchangeable",
    ("fields.ops.field_sweeps", "counts.ops.count_sampling"): "they are drawn given their number",
    ("fields.ops.pattern_potential", "counts.ops.certified_counts"): "their states are summed over",
    ("fields.ops.pattern_potential", "counts.ops.count_forest"): "a table weighs their number",
    ("fields.solvers.field_cut", "optima.solvers.minimum_cut"): "labels of smallest energy are a minimum cut",
}


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


def is_allowed(source: list[str], target: list[str]) -> bool:
    """Whether a module may import another one, or a name in it, both without the package's name."""
    wing, other = source[0], target[0]
    if other in ROOT or (wing == other and wing in OUTSIDE):
        return True
    if wing not in WINGS:
        # Fronts and what stands outside import from all wings, and from the fronts.
        return wing in OUTSIDE and (
            other in WINGS
            or (wing in ORDER and other in OUTSIDE - set(ORDER))
            or (wing in ORDER and other in ORDER[: ORDER.index(wing)])
        )
    if other not in WINGS or len(source) < 2 or source[1] not in RANK:
        return False
    if len(target) < 2 or RANK.get(target[1], len(LAYERS)) > RANK[source[1]]:
        return False
    if (".".join(source), ".".join(target[:3])) in REUSE:
        return True
    return other in {wing, FOUNDATION} | MIXTURES.get(wing, set())


def forbidden_imports(folder: Path) -> list[str]:
    """Descriptions of the forbidden imports in a package, whose own ``__init__.py`` may import anything."""
    errors = []
    for path in sorted(folder.rglob("*.py")):
        source = list(path.relative_to(folder).with_suffix("").parts)
        where = path.relative_to(folder)
        if source == ["__init__"]:
            continue
        if source[0] not in WINGS | OUTSIDE:
            errors.append(f"{where}: {source[0]} is no wing")
            continue
        if source[-1] == "__init__" and source[0] in WINGS:
            if len(ast.parse(path.read_text()).body) > 1:
                errors.append(f"{where}: expected nothing but a docstring")
            continue
        tree = ast.parse(path.read_text(), str(path))
        uses = [*imported_names(tree, [folder.name, *source[:-1]]), *used_attributes(tree, folder.name)]
        for line, name in sorted(set(uses)):
            root, _, rest = name.partition(".")
            if root == folder.name and rest and not is_allowed(source, rest.split(".")):
                errors.append(f"{where}:{line}: {'.'.join(source[:2])} imports {name}")
    return errors


def test_package_is_layered():
    assert forbidden_imports(Path(pyro_structured.__file__).parent) == []


def test_all_reuse_is_needed():
    folder = Path(pyro_structured.__file__).parent
    for source, target in REUSE:
        tree = ast.parse((folder / f"{source.replace('.', '/')}.py").read_text())
        assert any(name.startswith(f"pyro_structured.{target}.") for _, name in imported_names(tree, []))


@pytest.mark.parametrize(
    "module, text",
    [
        ("counts/ops/a.py", "from made_up.counts.structures.b import B"),
        ("counts/ops/a.py", "import made_up.counts.distributions.b as b"),
        ("counts/ops/a.py", "import made_up.counts.ops.b\nmade_up.models"),
        ("counts/ops/a.py", "import made_up as m\nm.models"),
        ("counts/models/a.py", "from made_up import models"),
        ("counts/models/a.py", "from made_up.models import B"),
        ("counts/models/a.py", "from ... import models"),
        ("counts/ops/deep/a.py", "from ...models import b"),
        ("counts/structures/a.py", "def f():\n    from ..distributions.b import C"),
        (
            "counts/structures/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import made_up.counts.models.a",
        ),
        ("counts/models/a.py", "from made_up.fields.ops.b import c"),
        ("counts/models/a.py", "from made_up.densities.ops.b import c"),
        ("fields/ops/a.py", "from made_up.counts.ops.count_forest import c"),
        ("foundation/models/a.py", "from made_up.counts.ops.b import c"),
        ("densities/models/a.py", "from made_up.fields.ops.b import c"),
        ("counts/models/a.py", "from made_up.datasets.b import c"),
        ("counts/models/a.py", "from made_up.testing import b"),
        ("counts/models/a.py", "from made_up import *"),
        ("counts/models/a.py", "from made_up.nonsense import b"),
        ("counts/nonsense/a.py", "from made_up.counts.ops.b import c"),
        ("counts/__init__.py", "'''Counts.'''\nfrom made_up.counts.ops.b import c"),
        ("datasets/a.py", "from made_up.testing import B"),
        ("testing/a.py", "from made_up import demo"),
        ("nonsense/a.py", ""),
    ],
)
def test_forbidden_import_is_reported(tmp_path, module, text):
    path = tmp_path / "made_up" / module
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (error,) = forbidden_imports(tmp_path / "made_up")
    assert error.startswith(module)


@pytest.mark.parametrize(
    "module, text",
    [
        ("__init__.py", "from made_up import models, testing"),
        ("counts/__init__.py", "'''Counts.'''"),
        (
            "counts/ops/a.py",
            "import torch.distributions\nfrom .b import c\nfrom . import d\nimport made_up.counts.ops.e",
        ),
        ("counts/ops/a.py", "from ..solvers import b"),
        ("counts/structures/a.py", "from made_up import __version__\nfrom ..solvers import b"),
        ("counts/structures/a.py", "from made_up.foundation.ops.b import c"),
        ("densities/models/a.py", "from made_up.exchangeable.models.b import c"),
        ("fields/solvers/field_cut.py", "from made_up.optima.solvers.minimum_cut import c"),
        ("distributions/__init__.py", "from made_up.counts.distributions.b import c"),
        ("datasets/a.py", "from made_up.structures import B"),
        ("testing/a.py", "from made_up.testing.b import C\nimport made_up.models"),
        ("demo/__main__.py", "from made_up.testing import b\nfrom made_up import distributions"),
        ("demo.py", "from . import distributions"),
    ],
)
def test_downward_import_is_allowed(tmp_path, module, text):
    path = tmp_path / "made_up" / module
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert forbidden_imports(tmp_path / "made_up") == []


# Of namedtuples, of Python, and what torch asks subclasses of its distributions for.
PROTOCOLS = {"_asdict", "_replace", "_getframe", "_event_shape", "_get_checked_instance", "_validate_args"}


def private_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names with an underscore that a module defines, and those that it imports from elsewhere or looks up."""
    defined, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute):
            (defined if isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("pyro_structured"):
            used |= {alias.name for alias in node.names}
    return defined, {name for name in used if name.startswith("_") and not name.startswith("__")}


def test_private_members_of_others_stand_in_one_file():
    folder = Path(pyro_structured.__file__).parent
    names = {path: private_names(ast.parse(path.read_text())) for path in folder.rglob("*.py")}
    known = PROTOCOLS.union(*(defined for defined, _ in names.values()))
    users = {path.relative_to(folder).as_posix() for path, (_, used) in names.items() if used - known}
    assert users == {"foundation/ops/private_members.py"}
