import multiprocessing
import os
import sys
import traceback
import warnings
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "tutorials"
NEED_DATA = {"alarm_queries", "exact_blocks", "horses", "house_landmarks"}
# As in test_benchmarks.py.
METHODS = multiprocessing.get_all_start_methods()
CONTEXT = multiprocessing.get_context("forkserver" if "forkserver" in METHODS else "spawn")
PRELOADED = ["IPython", "matplotlib.pyplot", "pyro_structured.datasets", "pyro_structured.inference"]
PRELOADED += ["pyro_structured.models", "pyro.infer.autoguide"]


def run_cells(path, folder, failed):
    """Runs the cells of a notebook by IPython in this process; the first error goes to a file."""
    import matplotlib
    import nbformat
    from IPython.core.interactiveshell import InteractiveShell

    os.chdir(folder)
    matplotlib.use("agg")
    warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
    shell = InteractiveShell.instance(history_length=0)
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        result = shell.run_cell(cell.source)
        matplotlib.pyplot.close("all")
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            failed.write_text("".join(traceback.format_exception(error)))
            sys.exit(1)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_tutorial_runs(path, tmp_path):
    """Every cell runs; a tutorial asserts its headline numbers itself."""
    if path.stem in NEED_DATA and "PYRO_STRUCTURED_DATA" not in os.environ:
        pytest.skip("needs the data")
    CONTEXT.set_forkserver_preload(PRELOADED)
    failed = tmp_path / "failed"
    run = CONTEXT.Process(target=run_cells, args=(path, tmp_path, failed))
    run.start()
    run.join()
    assert run.exitcode == 0, failed.read_text() if failed.exists() else run.exitcode
