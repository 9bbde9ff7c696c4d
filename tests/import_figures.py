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
    upward = [error for error in forbidden_imports(ROOT)]
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
