# The two commands to start with: `make run` and `make test`. Both set everything up first.

PYTHON ?= python3
VENV   := .venv
# What llama.cpp is built for: auto, cpu, cuda, metal or vulkan. A build for Vulkan stays one.
ACCEL  ?= $(if $(wildcard $(VENV)/.ready-vulkan-*),vulkan,auto)
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check

# A build is for one processor and one compiler; on another, set-up builds again. Your CMAKE_ARGS take precedence.
BUILDING := specdec_cli/llama/building.py
KEY   := $(shell $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' && $(PYTHON) $(BUILDING) key --accel $(ACCEL))
ifeq ($(KEY),)
  $(error set-up needs Python 3.10 or newer as $(PYTHON), and ACCEL=auto, cpu, cuda, metal or vulkan)
endif
READY := $(VENV)/.ready-$(KEY)
TORCH := $(VENV)/.torch
ZENSICAL := $(VENV)/.zensical

.PHONY: run test test-slow test-all test-real test-kernels test-wheel test-training fuzz bench lint docs setup clean train check-training

run: setup ## Show what specdec does, in ten seconds
	@$(VENV)/bin/specdec demo

# Without a browser, the tests that open pages in one are left out, and a line says so.
BROWSER := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

# Where this variable is set, each process of each test run would compile the tests anew.
PYTEST   := PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
# $(1): which tests.
TESTS = $(PYTEST) $(PARALLEL) -m "not real and not fuzz and not training and not quiet and $(1)$(if $(BROWSER),, and not browser)"
NO_BROWSER = @$(if $(BROWSER),,echo "Chromium isn't installed: the tests of HTML pages in a browser are left out.")

test: setup ## Run the tests, except the slow ones
	$(NO_BROWSER)
	$(call TESTS,not slow)

test-slow: setup ## Run the slow tests
	$(NO_BROWSER)
	$(call TESTS,slow)

test-all: setup ## Run all tests, slow ones too
	$(NO_BROWSER)
	$(call TESTS,(slow or not slow))

# Serially: each test keeps one or two models of up to a gigabyte in memory.
test-real: setup ## Run the tests on real models, downloading them if possible
	@tests/real/run $(VENV)/bin/python

# Kernels other than this processor's: without repacked weights, and those of older processors, each of which takes a
# minute to compile, once.
SETS ?= plain x86-64-v3 x86-64-v2 openmp

test-kernels: setup ## Run the tests that decode with several sets of kernels
	@tests/kernels/run $(VENV)/bin/python $(SETS)

test-wheel: setup ## Install the wheel outside the checkout and run it there
	@tests/wheel/run $(VENV)/bin/python

test-training: $(TORCH) ## Run the tests of training, which need PyTorch: some gigabytes of disk
	$(PYTEST) -n 2 --dist worksteal -m training tests/training

# Hostile input of every kind, determined by SEED. SCALE=0.1 tries a tenth of it.
SEED  ?= 1
SCALE ?= 1

fuzz: setup ## Try to break it, with some 30,000 hostile files, names, servers and signals
	SPECDEC_FUZZ_SCALE=$(SCALE) $(PYTEST) --hypothesis-seed=$(SEED) tests/gguf/test_gguf_fuzz.py
	SPECDEC_FUZZ_SEED=$(SEED) SPECDEC_FUZZ_SCALE=$(SCALE) $(PYTEST) $(PARALLEL) -m fuzz tests/fuzz

# QUICK=1 takes 15 minutes. BENCH_FLAGS="--only chat" measures some cells, see benchmarks/bench.
bench: setup ## Measure speeds on this machine, llama.cpp's own tools included, and write them into the docs
	$(VENV)/bin/python benchmarks/bench $(if $(QUICK),--quick) $(BENCH_FLAGS)
	$(VENV)/bin/python benchmarks/bench/page.py

lint: setup ## Check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(ZENSICAL) ## Build the documentation as a site in build/docs/site, and check its links
	$(VENV)/bin/python docs/build_site.py

$(ZENSICAL): $(READY)
	@$(PIP) install -q --group docs
	@touch $@

# SHARE=0.02 uses a fiftieth of the time and text, for a trial.
SHARE ?= 1

train: $(TORCH) ## Train the bundled pair and its heads further, which takes hours; see training/README.md
	$(VENV)/bin/python -m training --share $(SHARE) $(if $(filter-out 1,$(SHARE)),--work build/training-$(SHARE)) $(TRAIN_FLAGS)

check-training: $(TORCH) ## Check that PyTorch and llama.cpp compute the same for the bundled pair
	$(VENV)/bin/python -m training.check

$(TORCH): $(READY)
	@echo "Installing PyTorch, which takes some gigabytes of disk."
	@$(PIP) install -q --group training
	@touch $@

setup: $(READY) ## Make .venv and build llama.cpp for this machine

# The first set-up takes some minutes, every later one on the same kind of processor takes seconds. The build is tried,
# and if it fails, repeated with fewer of the processor's instructions.
$(READY): pyproject.toml Makefile $(BUILDING)
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -q --upgrade "pip>=25.1"
	@if ls $(VENV)/.ready-* >/dev/null 2>&1 && ! test -e $@; then $(PIP) uninstall -q -y llama-cpp-python; fi
	@$(VENV)/bin/python $(BUILDING) install --accel $(ACCEL) -- --group dev -e ".[serve]"
	@rm -f $(VENV)/.ready-* && touch $@

clean: ## Remove everything that set-up and tests created in the checkout
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
