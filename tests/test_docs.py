import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["datasets", "distributions", "inference", "models", "ops", "structures", "testing"])
def test_reference_is_complete(name):
    """The page of a subpackage describes exactly what it exports, in alphabetical order."""
    package = importlib.import_module(f"pyro_structured.{name}")
    entry = rf"^\.\. auto\w+:: pyro_structured\.{name}\.(\w+)$"
    described = re.findall(entry, (DOCS / f"{name}.rst").read_text(), re.MULTILINE)
    assert described == sorted(package.__all__)
