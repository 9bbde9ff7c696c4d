"""Would the tests notice a fault? A seeded sample of lines is changed, one at a time, by Cosmic Ray.

Each mutant meets the tests that execute its line, nearest first, until one fails. In a clean clone::

    pip install -e ".[test,mutation]"
    python tests/mutation/mutants.py record                      # which tests execute which lines: the suite, once
    cosmic-ray init tests/mutation/cosmic_ray.toml mutants.sqlite
    python tests/mutation/mutants.py sample mutants.sqlite --number 300 --seed 0
    cosmic-ray exec tests/mutation/cosmic_ray.toml mutants.sqlite    # in place; goes on where it was interrupted
    python tests/mutation/mutants.py report mutants.sqlite
"""

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coverage import CoverageData

ROOT = Path(__file__).parents[2]
COVERAGE, DURATIONS = ROOT / ".coverage", ROOT / ".durations.json"
# Of the recorded durations of the tests that one mutant meets; nearer tests come first.
MOST_SECONDS = 60.0
# Others change the type of what they compute, and any test that runs them fails.
KEPT_OPERATORS = re.compile(
    r"core/(NumberReplacer|AddNot|Replace(True|False|And|Or)With|ReplaceBreak|ReplaceContinue|ZeroIterationForLoop"
    r"|RemoveDecorator|ExceptionReplacer|ReplaceComparisonOperator|ReplaceUnaryOperator_Delete"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|Pow_Mul|FloorDiv_Mul|Mod_Mul|BitAnd_BitOr|BitOr_BitAnd))"
)


def record(arguments: list[str]) -> int:
    """Runs the whole suite once, and keeps which test executes which line, and how long it takes."""
    import pytest

    class Durations:
        def __init__(self) -> None:
            self.seconds: Counter[str] = Counter()

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            self.seconds[report.nodeid] += report.duration

    durations = Durations()
    options = ["-m", "", "--cov=pyro_structured", "--cov-context=test", "--cov-report=", "-q", *arguments]
    code = pytest.main(options, plugins=[durations])
    DURATIONS.write_text(json.dumps(durations.seconds))
    return int(code)


def sample(session: str, number: int, seed: int) -> None:
    """Keeps one mutant of each of some lines; all others are skipped."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(session) as db:
        pending = [item for item in db.pending_work_items if KEPT_OPERATORS.match(item.mutations[0].operator_name)]
        places = sorted((_place(item.mutations[0]), item.job_id) for item in pending)
        annotated = {path: annotation_lines(ROOT / path) for path in {place[0] for place, _ in places}}
        lines = [
            [job for _, job in group]
            for line, group in groupby(places, key=lambda pair: pair[0][:2])
            if line[1] not in annotated[line[0]]
        ]
        generator = random.Random(seed)
        chosen = {generator.choice(jobs) for jobs in generator.sample(lines, number)}
        rest = [item.job_id for item in db.pending_work_items if item.job_id not in chosen]
        db.set_multiple_results(rest, WorkResult(output="not in the sample", worker_outcome=WorkerOutcome.SKIPPED))


def _place(mutation) -> tuple[str, int, str, int]:
    return str(mutation.module_path), mutation.start_pos[0], mutation.operator_name, mutation.occurrence


def annotation_lines(path: Path) -> set[int]:
    """Lines of signatures, aliases of types and overloads, which are for type checkers."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # Defaults are values, but stand among annotations.
            found.update(range(node.lineno, node.body[0].lineno))
        elif isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Assign) and "TypeVar" in ast.unparse(node)):
            found.add(node.lineno)
    return found


def try_mutant() -> int:
    """Runs the tests that execute what differs from the last commit; 0 if all pass."""
    path, lines = changed_lines()
    tests = nearest_first(path, lines)
    if not tests:
        print("no test executes this line")
        return 0
    options = ["-m", "", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    if "ops.compiled import" not in (ROOT / path).read_text():
        return subprocess.run(command, cwd=ROOT).returncode
    # Functions compiled before do not see that a function of another file, which they call, has changed.
    with tempfile.TemporaryDirectory() as cache:
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "NUMBA_CACHE_DIR": cache}).returncode


def changed_lines() -> tuple[str, set[int]]:
    """The changed file, and numbers of its changed lines before the change."""
    diff = subprocess.run(
        ["git", "diff", "-U0", "HEAD", "--", "pyro_structured"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
    (path,) = re.findall(r"^--- a/(.*)$", diff, re.M)
    hunks = re.findall(r"^@@ -(\d+)(?:,(\d+))? ", diff, re.M)
    return path, {int(first) + i for first, size in hunks for i in range(int(size or 1))}


def nearest_first(path: str, lines: set[int]) -> list[str]:
    """Tests that execute the lines, or else the file, those of the same name first, as many as fit the time."""
    from coverage import CoverageData

    data = CoverageData(basename=str(COVERAGE))
    data.read()
    contexts = data.contexts_by_lineno(str(ROOT / path))
    source = subprocess.run(
        ["git", "show", f"HEAD:{path}"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
    tests = _tests(contexts, statement_lines(source, lines)) or _tests_of_file(data, path)
    durations, words = json.loads(DURATIONS.read_text()), set(Path(path).stem.split("_"))

    def distance(test: str) -> tuple[int, float]:
        return -len(words & set(re.split(r"[_/.:]", test.split("[")[0]))), durations.get(test, 0.0)

    chosen, spent = [], 0.0
    for test in sorted(tests, key=distance):
        spent += durations.get(test, 0.0)
        if spent > MOST_SECONDS:
            break
        chosen.append(test)
    return chosen


def _tests(contexts: dict[int, list[str]], lines: Iterable[int]) -> set[str]:
    found = {context.split("|")[0] for line in lines for context in contexts.get(line, ())}
    return found - {""}


def _tests_of_file(data: "CoverageData", path: str) -> set[str]:
    """Those that execute any line of a file; if it is compiled, so that no line is seen, of files that import it."""
    contexts = data.contexts_by_lineno(str(ROOT / path))
    found = _tests(contexts, contexts)
    if found:
        return found
    wanted = f"from {path.removesuffix('.py').replace('/', '.')} import"
    importers = [file for file in (ROOT / "pyro_structured").rglob("*.py") if wanted in file.read_text()]
    return {test for file in importers for test in _tests_of_file(data, str(file.relative_to(ROOT)))}


def statement_lines(source: str, lines: set[int]) -> set[int]:
    """All lines of the innermost statements with these lines; of a function's, if they are in its head."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    found: set[int] = set()
    for line in lines:
        spans = [range(_first_line(node), node.end_lineno + 1) for node in nodes]
        found.update(min((span for span in spans if line in span), key=len, default=()))
    return found


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


def report(session: str) -> None:
    """Shares of mutants that were caught, and the changes that were not."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import TestOutcome, WorkerOutcome

    with use_db(session, WorkDB.Mode.open) as db:
        tried = [pair for pair in db.completed_work_items if pair[1].worker_outcome != WorkerOutcome.SKIPPED]
        survivors = [result for _, result in tried if result.test_outcome == TestOutcome.SURVIVED]
        for result in survivors:
            print(result.diff, result.output.strip().splitlines()[-1:], sep="\n", end="\n\n")
        waiting = len(db.pending_work_items)
        print(f"{len(tried)} mutants tried, {len(tried) - len(survivors)} caught, {waiting} to be tried")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="further arguments are pytest's")
    commands.add_parser("try")
    for name in ("sample", "report"):
        commands.add_parser(name).add_argument("session")
    commands.choices["sample"].add_argument("--number", type=int, default=300)
    commands.choices["sample"].add_argument("--seed", type=int, default=0)
    arguments, rest = parser.parse_known_args()
    if arguments.command == "record":
        return record(rest)
    if arguments.command == "try":
        return try_mutant()
    if arguments.command == "sample":
        sample(arguments.session, arguments.number, arguments.seed)
    else:
        report(arguments.session)
    return 0


if __name__ == "__main__":
    sys.exit(main())
