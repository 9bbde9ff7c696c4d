"""Prints how the package hangs together: ``python tests/import_figures.py``."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from test_layering import FAMILIES, MIXTURES, WINGS, forbidden_imports, imported_names

ROOT = Path(__file__).parents[1] / "pyro_structured"


def import_graph():
    """The modules of wings that each module of a wing imports, by dotted names without the package's."""
    files = [path for wing in sorted(WINGS) for path in (ROOT / wing).rglob("*.py") if path.stem != "__init__"]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    graph = {}
    for path in files:
        source = list(path.relative_to(ROOT).with_suffix("").parts)
        found = set()
        for _, name in imported_names(ast.parse(path.read_text()), ["pyro_structured", *source[:-1]]):
            parts = name.split(".")[1:]
            found |= {".".join(parts[:size]) for size in (3, 4) if ".".join(parts[:size]) in names}
        graph[".".join(source)] = found - {".".join(source)}
    return graph


def circles(graph):
    """Sets of modules that import each other, directly or not."""
    reach = {}
    for start in graph:
        seen, waiting = set(), list(graph[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(graph[name])
        reach[start] = seen
    return {frozenset(other for other in reach[name] if name in reach[other]) for name in graph if name in reach[name]}


def public_names():
    """Dotted names of the modules from which fronts, and what stands outside of the wings, import."""
    found = set()
    for path in ROOT.glob("*/*.py"):
        if path.parent.name not in WINGS:
            found |= {".".join(name.split(".")[1:4]) for _, name in imported_names(ast.parse(path.read_text()), [])}
    return found


def own_ancestors(kind):
    """Classes of this package that a class derives from."""
    return [each.__name__ for each in kind.__mro__[1:] if each.__module__.startswith("pyro_structured.")]


def private_reads():
    """Uses of private members of classes that another file defines, with file and line; those of torch and Pyro that
    have the same names stand in one file.
    """
    theirs = ROOT / "foundation" / "ops" / "private_members.py"
    trees = {path: ast.parse(path.read_text()) for path in ROOT.rglob("*.py") if path != theirs}
    defined = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            names = [node.name] if isinstance(node, ast.FunctionDef) else []
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names = [node.attr]
            for name in names:
                if name.startswith("_") and not name.startswith("__"):
                    defined.setdefault(name, set()).add(path)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in defined and path not in defined[node.attr]:
                owner = ast.unparse(node.value)
                if owner not in {"self", "cls"} and not owner.startswith("super("):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {owner}.{node.attr}"


def files_that_run(d, value):
    """Files of the package that an eager ``log_prob`` runs."""
    found = set()

    def see(frame, event, argument):
        found.add(frame.f_code.co_filename)

    sys.setprofile(see)
    try:
        d.log_prob(value)
    finally:
        sys.setprofile(None)
    return sorted(Path(name).relative_to(ROOT).as_posix() for name in found if name.startswith(str(ROOT)))


def samples():
    """Three distributions, freshly made, and values."""
    import torch

    import pyro_structured.distributions as sdist
    from pyro_structured.structures import CliqueTree, Grid

    tree, grid = CliqueTree([[0, 1], [1, 2]], [2, 3, 2]), Grid(3, 3)
    yield sdist.RecursiveCardinality(torch.zeros(4), torch.zeros(5)), torch.ones(4)
    yield sdist.JunctionTree(torch.zeros(tree.table_size), tree), torch.tensor([1, 2, 0])
    yield (
        sdist.PatternCRF(torch.zeros(3, 3), torch.zeros(grid.num_edges), torch.zeros(1, 3, 3), torch.zeros(1), grid),
        torch.ones(3, 3),
    )


if __name__ == "__main__":
    graph = import_graph()
    importers = defaultdict(set)
    for source, targets in graph.items():
        for target in targets:
            importers[target].add(source)
    between = [
        (source, target)
        for source, targets in sorted(graph.items())
        for target in sorted(targets)
        if source.split(".")[0] in FAMILIES and target.split(".")[0] in FAMILIES - {source.split(".")[0]}
    ]
    upward = forbidden_imports(ROOT)
    single = sorted(name for name in graph if len(importers[name]) == 1 and name not in public_names())
    folders = defaultdict(int)
    for name in graph:
        folders[name.rsplit(".", 1)[0]] += 1
    largest = max(folders, key=folders.get)
    print(f"files: {len(graph)} in {len(WINGS)} wings ({len(MIXTURES)} of which mix families)")
    print(f"imports upward, or of what is not allowed: {len(upward)}")
    print(f"circles: {[sorted(circle) for circle in circles(graph)]}")
    print(f"imports between families: {len(between)}")
    print(f"largest folder: {largest}, {folders[largest]} files")
    print(f"files with one importer, not public: {len(single)}")
    if "-v" in sys.argv:
        for name in single:
            print(f"    {name} <- {next(iter(importers[name]))}")
    import pyro_structured.distributions as sdist

    kinds = [kind for name in sdist.__all__ if isinstance(kind := getattr(sdist, name), type)]
    deepest = max(kinds, key=lambda kind: len(own_ancestors(kind)))
    print(f"own classes above a public distribution: at most {len(own_ancestors(deepest))} ({deepest.__name__})")
    reads = list(private_reads())
    print(f"private members of classes in other files: {len(reads)} uses")
    for d, value in samples():
        files = files_that_run(d, value)
        own = [name for name in files if not name.startswith("foundation/")]
        print(f"files that one log_prob of {type(d).__name__} runs: {len(own)}, with foundation {len(files)}")
        if "-v" in sys.argv:
            print("   ", *files)
    if "-v" in sys.argv:
        print(*reads, sep="\n    ")
