# Every target does all the set-up it needs, inside .venv (or .venv-NAME) and nowhere else.
PYTHON ?= python3
VENV := .venv
BIN = $(VENV)/bin
CONSTRAINTS := constraints.txt
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)
# Words for pytest, if not all tests are to run: make test-versions TESTS=tests/data/test_data.py
TESTS :=
# Those of pyenv are there once it is told: PYENV_VERSION=3.11.7:3.12.1 make test-versions
PYTHONS := 3.11 3.12 3.13 3.14
# What is quick and asks most of the other packages.
QUICK := $(addprefix tests/,$(addsuffix .py,commands/test_commands commands/test_plotting \
	commands/test_streams commands/test_suggestions commands/test_verbs data/test_data \
	data/test_documents data/test_hugging_face data/test_image_data data/test_image_tokenizers \
	data/test_prepare data/test_shards data/test_text_files files/test_format files/test_names \
	files/test_platforms networks/test_networks training/test_journal training/test_training))

.DELETE_ON_ERROR:
.PHONY: demo test quick test-versions test-lowest pytest coverage results wheel clean

demo: $(VENV)/.runtime
	@$(BIN)/partita demo

test: $(VENV)/.dev
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/mypy
	$(MAKE) pytest

quick: $(VENV)/.dev
	$(MAKE) pytest TESTS="$(QUICK)"

# What is on the path may still not run, such as pyenv's command for a version that is off.
test-versions:
	@tested= failed= missing=; \
	for version in $(PYTHONS); do \
		if ! python$$version -c '' 2>/dev/null; then missing="$$missing $$version"; continue; fi; \
		echo "Python $$version, in .venv-$$version"; tested="$$tested $$version"; \
		$(MAKE) --no-print-directory pytest VENV=.venv-$$version PYTHON=python$$version \
			|| failed="$$failed $$version"; \
	done; \
	echo "Tested:$${tested:- none}. Failed:$${failed:- none}. Not found:$${missing:- none}."; \
	test -n "$$tested" -a -z "$$failed"

# The oldest of everything that pyproject.toml allows.
test-lowest:
	$(MAKE) pytest VENV=.venv-lowest PYTHON=python3.11 CONSTRAINTS=.venv-lowest/constraints.txt \
		TESTS="$(or $(TESTS),$(QUICK))"

pytest: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(TESTS)

coverage: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --cov --cov-report term

results: $(VENV)/.dev
	$(BIN)/python benchmarks/report.py

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

$(VENV)/bin/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" \
		|| { echo "Partita needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV)

.venv-lowest/constraints.txt: pyproject.toml tests/support/lowest_versions.py | .venv-lowest/bin/python
	@$(BIN)/python tests/support/lowest_versions.py > $@

$(VENV)/.runtime: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "Installing Partita into $(VENV) (once; a minute or more)"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "Installing Partita and the development tools into $(VENV) (once; some minutes)"
	@$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.runtime $@
