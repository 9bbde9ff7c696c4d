import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import pyro_structured
assert pyro_structured.__file__.startswith(sys.argv[1]), pyro_structured.__file__
for module in pkgutil.walk_packages(pyro_structured.__path__, "pyro_structured."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the source distribution, and the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "-o", folder, ROOT], check=True)
    return folder


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a source distribution does not know what it was made from")
def test_source_distribution(built):
    """It has all that tests need."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        shipped = {name.partition("/")[2] for name in sources.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name for name in tracked.splitlines() if not name.startswith(".")} <= shipped


def test_wheel(built, tmp_path):
    """It is complete, and is imported from elsewhere."""
    (wheel,) = (zipfile.ZipFile(path) for path in built.glob("*.whl"))
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = {str(path.relative_to(ROOT)) for path in (ROOT / "pyro_structured").rglob("*.py")}
    assert packed == source | {"pyro_structured/py.typed"}
    wheel.extractall(tmp_path / "site")
    subprocess.run([sys.executable, "-c", IMPORT_ALL, tmp_path / "site"], cwd=tmp_path, check=True)
