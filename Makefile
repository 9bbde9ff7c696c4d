# Needs only Python (3.10 or newer), pip and make. Everything is installed into $(VENV), once.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
WORKERS ?= 2
BIN := $(VENV)/bin

.PHONY: demo test fuzz docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed-demo
	$(BIN)/python -m pyro_structured.demo

# One thread for each of the parallel test workers, unless the environment says otherwise.
test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(WORKERS)

fuzz: $(VENV)/.installed-test
	$(BIN)/python tests/fuzz/mutated_files.py

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -E -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist docs/_build docs/tutorials demo_output *.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

# A stamp for each extra: a second run installs nothing.
$(VENV)/.installed-%: $(VENV)/.created pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e ".[$*]"
	touch $@
