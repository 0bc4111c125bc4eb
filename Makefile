PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
EXTRAS := $(VENV)/.extras
TORCHAO := $(VENV)/torchao
BERTVIZ := $(VENV)/bertviz
FLOOR := .venv-floor
LATEST := .venv-latest
PROCESSES ?= 2
# The torch of `make test-latest`: the one of constraints.txt, or the newest.
TORCH ?= constrained
# The tests for other versions; without test_wheel.py, which needs hatchling.
LATEST_TESTS := tests/acceleration tests/data tests/evaluation tests/generation tests/model tests/parity tests/support \
	tests/training tests/translation tests/apps/documents tests/apps/pictures tests/apps/terms \
	$(filter-out tests/test_wheel.py,$(wildcard tests/test_*.py))
# While constraints-floor.txt and constraints.txt have the same torch and transformers, NUM_RELEASES is 2, and
# `make test-floor` leaves out the tests of computations, because `make test` runs them with these releases.
COMPUTATION_TESTS := tests/acceleration tests/generation tests/parity
NUM_RELEASES := $(shell cat constraints.txt constraints-floor.txt | grep -E '^(torch|transformers)==' | sort -u | wc -l)
FLOOR_TESTS := $(if $(filter 2,$(NUM_RELEASES)),$(filter-out $(COMPUTATION_TESTS),$(LATEST_TESTS)),$(LATEST_TESTS))
# tests/clients needs packages that only `make test-apps` installs.
PYTEST := $(VENV)/bin/python -m pytest --quiet --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder \
	--ignore tests/clients
INSTALL := python -m pip install --quiet --disable-pip-version-check

SEED ?= $(shell date +%s)
# libgomp reads it when torch is imported; docs/benchmarks.md has the figures.
export GOMP_SPINCOUNT ?= 3000

.PHONY: help setup extras demo walk notebooks docs dist test test-slow test-conformance test-plain test-floor test-latest test-bridges test-apps \
	test-triton fuzz torture gpu-check gpu-candidates lint format clean

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Create the virtual environment .venv, unless it is up to date.

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is required; name one with PYTHON=...")'
	@echo "installing the package and its dependencies into $(VENV); this takes minutes"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --editable '.[numbers,plots,dev]'
	@touch $@

extras: $(EXTRAS)  ## Install peft, export, marian, ctranslate2, text, serve and g2p.

# A target of its own, because the demo needs none of them and some of them print when transformers imports them.
$(EXTRAS): $(READY)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --editable '.[peft,export,marian,ctranslate2,text,serve,g2p]'
	@touch $@

# Apart from the environment: where it is installed, transformers imports it with every model, and it logs four lines.
$(TORCHAO)/.ready: $(EXTRAS)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --no-deps --target $(TORCHAO) torchao
	@touch $@

# Apart, too: it asks for boto3 and requests, which its views do not import, and IPython brings a dozen packages.
$(BERTVIZ)/.ready: $(EXTRAS)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --target $(BERTVIZ) ipython
	$(VENV)/bin/$(INSTALL) -c constraints.txt --no-deps --target $(BERTVIZ) bertviz
	@touch $@

$(FLOOR)/.ready: pyproject.toml constraints-floor.txt
	$(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/$(INSTALL) -c constraints-floor.txt --editable '.[numbers,plots]' pytest hypothesis
	@touch $@

demo: $(READY)  ## Train on the built-in number corpus, evaluate on unseen numbers, translate some, draw attention.
	$(VENV)/bin/hf-vanilla-transformer demo

walk: $(EXTRAS)  ## Walk the way of a user with two files, from plan to server; and run the commands of every page.
	$(VENV)/bin/python -m tests.walk
	OMP_NUM_THREADS=1 $(PYTEST) --dist load tests/documented_commands.py

$(VENV)/.docs: $(READY)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --editable '.[docs]'
	@touch $@

notebooks: $(READY)  ## Run the notebooks and save them with their outputs; on two cores it takes six minutes.
	$(VENV)/bin/$(INSTALL) --target $(VENV)/notebooks nbclient ipykernel
	PYTHONPATH=$(VENV)/notebooks $(VENV)/bin/python docs/execute_notebooks.py

docs: $(VENV)/.docs  ## Build the documentation site into build/site; warnings are errors.
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

dist: $(READY)  ## Build sdist and wheel into dist/, and check their metadata.
	rm -rf dist
	$(VENV)/bin/python -m build --no-isolation --outdir dist .
	$(VENV)/bin/python -m twine check --strict dist/*

# Most tests are too small for several threads, so worker processes run files in parallel, in the order of
# tests/conftest.py. torch and oneDNN read the instructions that they may use from the environment at import.
test: $(TORCHAO)/.ready $(BERTVIZ)/.ready  ## Run the tests.
	OMP_NUM_THREADS=1 $(PYTEST) -m 'not slow'
	PYTHONPATH=$(TORCHAO) OMP_NUM_THREADS=1 $(PYTEST) -m torchao
	PYTHONPATH=$(BERTVIZ) OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --quiet tests/ecosystem/test_bertviz.py

test-slow: $(EXTRAS)  ## Run the slow tests; with AVX-512, those that depend on the processor also under AVX2.
	OMP_NUM_THREADS=1 $(PYTEST) -m slow
	if grep -qs avx512f /proc/cpuinfo; then \
	  ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 $(PYTEST) -m 'processor and not compiles'; \
	fi

test-conformance: $(EXTRAS)  ## Run transformers' common test suites on this package's classes.
	$(VENV)/bin/python -m tests.conformance.run

# As where the package is not installed: what a saved folder carries. test_step.py tests the CPU decoder.
test-plain: $(EXTRAS)  ## Run the tests of parity, generation and conformance without acceleration/.
	OMP_NUM_THREADS=1 $(PYTEST) --plain-operations tests/parity tests/generation --ignore tests/generation/test_step.py
	$(VENV)/bin/python -m tests.conformance.run --plain-operations

test-floor: $(FLOOR)/.ready  ## Run the tests with the oldest supported versions, in a separate environment.
	$(FLOOR)/bin/python -m pytest --quiet $(FLOOR_TESTS)

# By default torch stays, because its newest release may bring gigabytes of other wheels.
test-latest:  ## Run the same tests with the newest dependencies, in a separate environment; TORCH=newest: torch, too.
	test -d $(LATEST) || $(PYTHON) -m venv $(LATEST)
	if [ "$(TORCH)" = newest ]; then : > $(LATEST)/constraints.txt; \
	else grep '^torch==' constraints.txt > $(LATEST)/constraints.txt; fi
	$(LATEST)/bin/$(INSTALL) -c $(LATEST)/constraints.txt --upgrade --upgrade-strategy eager \
	  --editable '.[numbers,plots]' pytest hypothesis
	$(LATEST)/bin/python -m pip freeze --exclude-editable
	$(LATEST)/bin/python -m pytest --quiet $(LATEST_TESTS)

fuzz: $(EXTRAS)  ## Try 10,000 random inputs at all entry points; FUZZ_CASES and SEED change that.
	@echo "seed $(SEED)"
	FUZZ_CASES=$${FUZZ_CASES:-10000} OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/fuzz --hypothesis-seed=$(SEED)

torture: $(EXTRAS)  ## Kill jobs 200 times and let their disk fail; then run them again. Takes one to two hours.
	$(VENV)/bin/python -m tests.torture --cases 200 --seed $(SEED)

# Without an environment: machines with a GPU often have torch and transformers, and no internet.
gpu-check:  ## Check and measure the package on a GPU, with $(PYTHON) as it is, in at most eight minutes.
	$(PYTHON) -m benchmarks.gpu_check --output runs/gpu_check

gpu-candidates:  ## Decide on a GPU which candidates make training faster, with $(PYTHON) as it is, in at most nine minutes.
	$(PYTHON) -m benchmarks.gpu_candidates --output runs/gpu_candidates

# Apart from the environment, because it takes 700 MB. The release for torch 2.11 on GPUs; its interpreter fails with
# NumPy 2.4.
$(VENV)/triton/.ready: $(READY)
	$(VENV)/bin/$(INSTALL) --no-deps --target $(VENV)/triton triton==3.6.0 numpy==2.3.5
	@touch $@

test-triton: $(VENV)/triton/.ready  ## Interpret and compile the Triton kernels, with Triton, which it installs (700 MB).
	PYTHONPATH=$(VENV)/triton TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(PYTEST) -k triton \
	  tests/acceleration tests/benchmarks/candidates tests/benchmarks/test_candidates_in_model.py
	PYTHONPATH=$(VENV)/triton OMP_NUM_THREADS=1 $(PYTEST) tests/acceleration/test_triton_compilation.py

$(VENV)/pymarian/.ready: $(EXTRAS)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --no-deps --target $(VENV)/pymarian pymarian
	@touch $@

$(VENV)/.apps: $(EXTRAS)
	$(VENV)/bin/$(INSTALL) -c constraints.txt --editable '.[page,apps]'
	@touch $@

# The page is tested in the Chromium of Debian, where that is installed.
test-apps: $(VENV)/.apps  ## Call the server by its clients, and use its page in a browser.
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --quiet -rs tests/clients

# Apart from the environment, because it takes 600 MB.
test-bridges: $(VENV)/pymarian/.ready  ## Compare conversions with Marian itself, which it installs (600 MB).
	TOKENIZER_SENTENCES=10000 PYTHONPATH=$(VENV)/pymarian OMP_NUM_THREADS=1 $(PYTEST) -m bridge

lint: $(READY)  ## Check style, types and vocabulary.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m tests.lint

format: $(READY)  ## Format the code.
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## Remove the virtual environments and the files that tools wrote.
	rm -rf $(VENV) $(FLOOR) $(LATEST) .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -exec rm -rf {} +
