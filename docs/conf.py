"""Settings of the documentation; ``make docs`` builds it."""

import shutil
from pathlib import Path

import pyro_structured

HERE = Path(__file__).parent

project = "pyro-structured"
author = "The pyro-structured developers"
copyright = author
release = version = pyro_structured.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.viewcode", "myst_nb"]
exclude_patterns = ["_build"]
html_theme = "sphinx_rtd_theme"

# Docstrings name their types; signatures stay short enough to read.
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_inherit_docstrings = False

# The outputs that the notebooks are stored with are shown; the checks execute them.
nb_execution_mode = "off"
myst_enable_extensions = ["amsmath", "dollarmath"]

# Sphinx reads below its own folder only, and the notebooks lie beside it.
shutil.rmtree(HERE / "tutorials", ignore_errors=True)
if (HERE.parent / "tutorials").is_dir():
    shutil.copytree(HERE.parent / "tutorials", HERE / "tutorials")
