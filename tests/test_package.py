import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import pyro_structured

ROOT = Path(__file__).parents[1]


def test_version():
    assert metadata.version("pyro-structured") == pyro_structured.__version__
    assert f"\nversion: {pyro_structured.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_import_is_lazy():
    script = "import sys, pyro_structured; assert not {'torch', 'numpy', 'pyro'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_subpackages_are_exposed():
    folders = {path.parent.name for path in (ROOT / "pyro_structured").glob("*/__init__.py")}
    public = set(pyro_structured.__all__) - {"__version__"}
    assert public == folders - {"demo", "solvers"}
    assert public <= set(dir(pyro_structured))
    for name in public:
        assert getattr(pyro_structured, name).__name__ == f"pyro_structured.{name}"


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="module 'pyro_structured' has no attribute 'nonsense'"):
        _ = pyro_structured.nonsense
