# Needs only Python (3.10 or newer), pip and make. Everything is installed into $(VENV), once.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
WORKERS ?= 2
BIN := $(VENV)/bin

.PHONY: demo test test-all seeds mutants fuzz docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed-demo
	$(BIN)/python -m pyro_structured.demo

# All checks, and all tests but what is marked slow; with that, too. One thread for each of the parallel test workers,
# unless the environment says otherwise.
test-all: MARKED := -m ""
test test-all: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(MARKED)

# Statistical tests under other seeds.
SEEDS ?= 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20
seeds: $(VENV)/.installed-test
	failed=; for seed in $(SEEDS); do \
		PYRO_STRUCTURED_SEED=$$seed OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -q -n $(WORKERS) -m statistical \
			|| failed="$$failed $$seed"; \
	done; test -z "$$failed" || { echo "failed with seeds$$failed"; exit 1; }

# Faults put into a sample of lines, in place, so in a clean clone: would the tests notice? See tests/mutation/mutants.py.
MUTANTS ?= 300
MUTANT_SEED ?= 0
mutants: $(VENV)/.installed-mutation $(VENV)/.installed-test
	git diff --quiet HEAD
	test -f .durations.json || OMP_NUM_THREADS=1 $(BIN)/python tests/mutation/mutants.py record -n $(WORKERS)
	test -f mutants.sqlite || { $(BIN)/cosmic-ray init tests/mutation/cosmic_ray.toml mutants.sqlite && \
		$(BIN)/python tests/mutation/mutants.py sample mutants.sqlite --number $(MUTANTS) --seed $(MUTANT_SEED); }
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cosmic-ray exec tests/mutation/cosmic_ray.toml mutants.sqlite
	$(BIN)/python tests/mutation/mutants.py report mutants.sqlite

fuzz: $(VENV)/.installed-test
	$(BIN)/python tests/fuzz/mutated_files.py
	$(BIN)/python tests/fuzz/constructors.py

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -E -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist docs/_build docs/tutorials docs/reference/generated demo_output *.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage .durations.json mutants.sqlite

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

# A stamp for each extra: a second run installs nothing.
$(VENV)/.installed-%: $(VENV)/.created pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e ".[$*]"
	touch $@
