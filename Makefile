PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
EXTRAS := $(VENV)/.extras
FLOOR := .venv-floor
PROCESSES ?= 2
FLOOR_TESTS := tests/data tests/evaluation tests/generation tests/parity tests/training $(wildcard tests/test_*.py)
INSTALL := python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup extras demo docs test test-conformance test-floor lint format clean

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Make the virtual environment .venv; does nothing when it is there.

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; name one with PYTHON=...")'
	@echo "installing torch, transformers and what else is needed into $(VENV); this takes minutes"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --editable '.[numbers,dev]'
	@touch $@

extras: $(EXTRAS)  ## Add what plots, PEFT, export and torchao's quantisation need.

# Apart, because the demo needs none of them and some of them print when transformers finds them.
$(EXTRAS): $(READY)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --editable '.[peft,export,quantization,plots]'
	@touch $@

$(FLOOR)/.ready: pyproject.toml constraints-floor.txt
	$(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/$(INSTALL) -c constraints-floor.txt --editable '.[numbers,plots]' pytest
	@touch $@

demo: $(READY)  ## Train on the built-in number corpus, score unseen numbers, translate some.
	$(VENV)/bin/python scripts/demo.py

$(VENV)/.docs: $(READY)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## Build the documentation site into build/site; warnings are errors.
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict

# Most tests are too small for several threads; the files are shared out among several processes instead, in the order
# of tests/conftest.py.
test: $(EXTRAS)  ## Run the tests.
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --quiet --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

test-conformance: $(EXTRAS)  ## Run transformers' own test suites on our classes.
	$(VENV)/bin/python -m tests.conformance.run

test-floor: $(FLOOR)/.ready  ## Run the tests with the oldest supported versions, in an environment of its own.
	$(FLOOR)/bin/python -m pytest --quiet $(FLOOR_TESTS)

lint: $(READY)  ## Check style and types.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(READY)  ## Put the code in its one format.
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## Remove the virtual environment and what tools left behind.
	rm -rf $(VENV) $(FLOOR) .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -exec rm -rf {} +
