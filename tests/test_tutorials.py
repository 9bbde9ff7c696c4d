import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "tutorials"
NEED_DATA = {"alarm_queries", "exact_blocks", "horses", "house_landmarks"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_tutorial_runs(path, tmp_path):
    """Every cell runs; a tutorial asserts its headline numbers itself."""
    if path.stem in NEED_DATA and "PYRO_STRUCTURED_DATA" not in os.environ:
        pytest.skip("needs the data")
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
