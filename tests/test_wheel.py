import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

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


def test_wheel(tmp_path):
    """The wheel is made from the source distribution, so both are complete; it is imported from elsewhere."""
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "-o", tmp_path, ROOT], check=True)
    (wheel,) = (zipfile.ZipFile(path) for path in tmp_path.glob("*.whl"))
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = {str(path.relative_to(ROOT)) for path in (ROOT / "pyro_structured").rglob("*.py")}
    assert packed == source | {"pyro_structured/py.typed"}
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        shipped = {name.partition("/")[2] for name in sources.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    # All that tests need, so that they can be run from the source distribution.
    assert {name for name in tracked if not name.startswith(".")} <= shipped | {"MANIFEST.in"}
    wheel.extractall(tmp_path / "site")
    subprocess.run([sys.executable, "-c", IMPORT_ALL, tmp_path / "site"], cwd=tmp_path, check=True)
