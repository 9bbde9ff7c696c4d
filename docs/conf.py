"""Settings of the documentation; ``make docs`` builds it, without a network."""

import base64
import json
import shutil
from pathlib import Path

import pyro_structured

HERE = Path(__file__).parent
NOTEBOOKS, COPIES = HERE.parent / "tutorials", HERE / "tutorials"

project = "pyro-structured"
author = "The pyro-structured developers"
copyright = author
release = version = pyro_structured.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",  # docstrings that are inherited from Pyro use its directive
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
html_title = project
html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False, "show_prev_next": False}
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_show_sourcelink = False

# Docstrings name their types; signatures stay short enough to read.
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_inherit_docstrings = False

# The outputs that the notebooks are stored with are shown; the checks execute them.
nb_execution_mode = "off"
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
copybutton_prompt_text = ">>> |\\.\\.\\. "
copybutton_prompt_is_regexp = True


def copy_notebooks():
    """Sphinx reads below its own folder only, and the notebooks lie beside it; their first pictures go along."""
    shutil.rmtree(COPIES, ignore_errors=True)
    COPIES.mkdir()
    for path in NOTEBOOKS.glob("*.ipynb"):
        text = path.read_text()
        (COPIES / path.name).write_text(text.replace("../docs/", "../"))
        outputs = (output for cell in json.loads(text)["cells"] for output in cell.get("outputs", []))
        pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
        if pictures:
            (COPIES / f"{path.stem}.png").write_bytes(base64.b64decode("".join(pictures[0])))


def link_copies(app, name, source):
    """Pages link to the notebooks where they lie in the repository."""
    source[0] = source[0].replace("../../tutorials/", "../tutorials/").replace("(../tutorials/", "(/tutorials/")


def skip_foreign(app, what, name, obj, skip, options):
    """Members that torch, Pyro and scikit-learn define stand in their own references."""
    function = getattr(obj, "fget", None) or getattr(obj, "wrapped", obj)
    module = getattr(function, "__module__", None) or ""
    return skip or module.split(".")[0] in {"torch", "pyro", "sklearn"}


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", link_copies)
    app.connect("autodoc-skip-member", skip_foreign)


copy_notebooks()
