# Two commands do everything on a machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test docs report torture package lint audit check format clean

help:
	@echo "make demo    set up, run KCL beside naive SGD on real MNIST, print the table, write the page"
	@echo "make test    set up, run the tests"
	@echo "make docs    the documentation site, offline, into build/site; runs the tutorials"
	@echo "make report  every table and figure from the committed results, into report/"
	@echo "make check   formatter, linter, types, import direction, known flaws of dependencies, tests"
	@echo "make torture kill 300 times, change 36,000 files, 3,000 connections: long; see docs/reliability.md"
	@echo "make package build sdist and wheel into dist/, and try the wheel in an environment of its own"
	@echo "make setup   only set up: leaves $(BIN)/kcl"
	@echo "make format  format and mend what the linter can"
	@echo "make clean   remove .venv and what tools left behind"

setup: $(VENV)/.installed-dev

# One environment, and a mark for each extra installed into it. The first line says it in words where Python is too old.
$(VENV)/.installed-%: pyproject.toml constraints.txt locks/%.txt tools/lock.py
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "kcl needs Python 3.11 or newer; this is " + sys.version.split()[0] + ": use make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/lock.py install $*
	@touch $@

demo: $(VENV)/.installed-report
	$(BIN)/kcl demo --out demo

# A process for each core, and so a thread for each process.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8

# Warnings are errors; links within the site are checked. Nothing is fetched but, once, the packages of the extra.
docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -q -W --keep-going --jobs auto -c docs -d build/doctrees . build/site
	@echo "site:    build/site/index.html"

report: setup
	$(BIN)/kcl reproduce all --report-only --results results/paper --results results/baselines --results results/inference-time --out report --into REPRODUCIBILITY.md
	$(BIN)/kcl reproduce strong --report-only $(addprefix --results ,results/strong results/strong-round-3 results/paper results/baselines) --out report/strong --into docs/strong.md
	$(BIN)/kcl reproduce class-incremental class-incremental-small --report-only --results results/class-incremental --results results/strong --out report/class-incremental --into docs/class-incremental.md

torture: setup
	$(BIN)/python tests/torture/torture.py

package: setup
	$(BIN)/python tools/package.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: setup
	$(BIN)/python tools/audit.py

check: lint audit test

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist docs/gallery .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
