"""Pages are complete, their examples print what they say, their links lead somewhere, and Sphinx builds them."""

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for path in sorted(DOCS.rglob("*.md")) if not {"_build", "generated", "tutorials"} & set(path.parts)),
]
EXAMPLE = re.compile(r"```python\n(.*?)```\n+prints\n+```text\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(path, *example, id=f"{path.relative_to(ROOT)}-{number}")
    for path in PAGES
    for number, example in enumerate(EXAMPLE.findall(path.read_text()))
]


def test_reference_is_complete():
    """Each public name stands on one page."""
    pages = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    described = re.findall(r"^   ~(\S+)$|^.. automodule:: (\S+)$", pages, re.M)
    layers = ("datasets", "distributions", "inference", "models", "ops", "plotting", "structures", "testing")
    names = {layer: import_module(f"pyro_structured.{layer}").__all__ for layer in layers}
    expected = [f"pyro_structured.{layer}.{name}" for layer in layers for name in names[layer]]
    assert sorted(map("".join, described)) == sorted(expected)


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("path, code, printed", EXAMPLES)
def test_examples_run(path, code, printed, capsys):
    """The examples are short, and print what stands below them."""
    assert len(code.splitlines()) <= 50
    exec(compile(code, str(path), "exec"), {})
    assert capsys.readouterr().out == printed


def test_guides_have_examples():
    assert len(EXAMPLES) >= 12
    for path in (DOCS / "guides").glob("*.md"):
        assert path.name == "index.md" or EXAMPLE.search(path.read_text()), path


def test_front_page():
    """Short, with an example soon, and nothing that is wider than a screen."""
    text = (ROOT / "README.md").read_text()
    before_code, before_install = text.partition("```python")[0], text.partition("pip install")[0]
    assert len(before_code.split()) <= 150 and len(before_install.split()) <= 60
    for table in re.findall(r"^\|[ -:|]+\|$", text, re.M):
        assert table.count("|") <= 5
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        assert max(map(len, code.splitlines())) <= 80


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_exist(path):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.skipif(find_spec("myst_nb") is None, reason="needs the extra docs")
def test_pages_are_built(tmp_path):
    """Without any warning, and without a network."""
    command = [sys.executable, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-b", "html", DOCS, tmp_path / "html"]
    found = subprocess.run([*command, "-d", tmp_path / "doctrees"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
