# `make demo` and `make test` do all the set-up they need, inside .venv and nowhere else.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test coverage results wheel clean

demo: .venv/.runtime
	@$(BIN)/partita demo

test: .venv/.dev
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

coverage: .venv/.dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --cov --cov-report term

results: .venv/.dev
	$(BIN)/python benchmarks/report.py

wheel: .venv/.dev
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

.venv/bin/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" \
		|| { echo "Partita needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv .venv

.venv/.runtime: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing Partita into .venv (once; a minute or more)"
	@$(INSTALL) --editable .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing Partita and the development tools into .venv (once; some minutes)"
	@$(INSTALL) --editable '.[dev]'
	@touch .venv/.runtime $@
