PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: help setup demo test lint format clean

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Make the virtual environment .venv; does nothing when it is there.

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; name one with PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[numbers,dev]'
	@touch $@

demo: $(READY)  ## Train on the built-in number corpus, score unseen numbers, translate some.
	$(VENV)/bin/python scripts/demo.py

test: $(READY)  ## Run the tests.
	$(VENV)/bin/python -m pytest --quiet

lint: $(READY)  ## Check style and types.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(READY)  ## Put the code in its one format.
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## Remove the virtual environment and what tools left behind.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -exec rm -rf {} +
