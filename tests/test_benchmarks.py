import subprocess
import sys
from pathlib import Path

import pytest
import scipy.stats

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(p for p in (ROOT / "benchmarks").glob("*.py") if "__main__" in p.read_text())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_benchmark_runs(path):
    """A smoke run at small sizes prints its tables; the claims themselves need the full run."""
    if path.stem == "poisson_binomial_mass" and not hasattr(scipy.stats, "poisson_binom"):
        pytest.skip("scipy before 1.15 lacks one of the peers")
    # With so few particles estimates say little, and so few steps end too early.
    warnings = ["-W", "error", "-W", "ignore:estimated logarithms", "-W", "ignore:no convergence"]
    command = [sys.executable, *warnings, path, "--quick"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not finished.returncode, finished.stderr
    assert f"Command: `python benchmarks/{path.name} --quick`" in finished.stdout
    assert "| claim" in finished.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_documentation_shows_the_tables(path):
    page = (ROOT / "docs" / "benchmarks" / f"{path.stem}.md").read_text()
    assert f"Command: `python benchmarks/{path.name}" in page
    assert f"benchmarks/{path.stem}\n" in (ROOT / "docs" / "benchmarks.md").read_text()
