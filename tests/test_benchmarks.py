import multiprocessing
import os
import sys
import types
import warnings
from pathlib import Path

import pytest
import scipy.stats

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(p for p in (ROOT / "benchmarks").glob("*/*.py") if "__main__" in p.read_text())
# Most of a smoke run would be imports: where the system can, all are copies of one process that has made them.
METHODS = multiprocessing.get_all_start_methods()
CONTEXT = multiprocessing.get_context("forkserver" if "forkserver" in METHODS else "spawn")
PRELOADED = ["pyro_structured.datasets", "pyro_structured.inference", "pyro_structured.models", "pyro.infer.autoguide"]


def run_quickly(path, printed):
    """A smoke run in this process; what it prints, and its errors, go to a file."""
    with printed.open("w") as stream:
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(stream.fileno(), descriptor)
    sys.argv, sys.path[0] = [str(path), "--quick"], str(ROOT)
    warnings.simplefilter("error")
    # With so few particles estimates say little, and so few steps end too early.
    for usual in ("estimated logarithms", "no convergence"):
        warnings.filterwarnings("ignore", usual)
    warnings.filterwarnings("ignore", "Setting the shape on a NumPy array", module="pyagrum")
    # By torch 2.11, even where they are asked for.
    warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    # The second name is how processes of pools call it.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    exec(compile(path.read_text(), path, "exec"), vars(main))


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_benchmark_runs(path, tmp_path):
    """A smoke run at small sizes prints its tables; the claims themselves need the full run."""
    if path.stem == "poisson_binomial_mass" and not hasattr(scipy.stats, "poisson_binom"):
        pytest.skip("scipy before 1.15 lacks one of the peers")
    CONTEXT.set_forkserver_preload(PRELOADED)
    printed = tmp_path / "printed"
    run = CONTEXT.Process(target=run_quickly, args=(path, printed))
    run.start()
    run.join()
    text = printed.read_text()
    assert run.exitcode == 0, text
    assert f"Command: `python -m benchmarks.{path.parent.name}.{path.stem} --quick`" in text
    assert "| claim" in text


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_documentation_shows_the_tables(path):
    page = (ROOT / "docs" / "benchmarks" / f"{path.stem}.md").read_text()
    assert f"Command: `python -m benchmarks.{path.parent.name}.{path.stem}" in page
    assert f"benchmarks/{path.stem}\n" in (ROOT / "docs" / "benchmarks.md").read_text()
