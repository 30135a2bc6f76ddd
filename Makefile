# The two commands a newcomer needs: `make run` and `make test`. Both set everything up first.

PYTHON ?= python3
# What llama.cpp is built for: auto, cpu, cuda, metal or vulkan.
ACCEL  ?= auto

VENV   := .venv
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check

# A build is for one processor and one compiler: on another, set-up builds again. CMAKE_ARGS of the caller's own win.
BUILDING := specdec_cli/llama/building.py
KEY   := $(shell $(PYTHON) $(BUILDING) key --accel $(ACCEL))
ifeq ($(KEY),)
  $(error set-up needs Python 3.10 or newer as $(PYTHON), and ACCEL=auto, cpu, cuda, metal or vulkan)
endif
READY := $(VENV)/.ready-$(KEY)
TORCH := $(VENV)/.torch
ZENSICAL := $(VENV)/.zensical

.PHONY: run test test-slow test-all test-real test-kernels test-wheel test-training fuzz lint docs setup clean train check-training

run: setup ## Show what specdec does, in ten seconds
	@$(VENV)/bin/specdec demo

# Without a browser on the machine, the tests that look at pages in one are left out, and said to be.
BROWSER := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

# What every test run is started with; $(1): which tests.
PYTEST = $(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m "not real and not fuzz and not training and not quiet and $(1)$(if $(BROWSER),, and not browser)"
NO_BROWSER = @$(if $(BROWSER),,echo "No Chromium here: the tests of HTML pages in a browser are left out.")

test: setup ## Run the tests, but for slow ones
	$(NO_BROWSER)
	$(call PYTEST,not slow)

test-slow: setup ## Run the slow tests
	$(NO_BROWSER)
	$(call PYTEST,slow)

test-all: setup ## Run all tests, slow ones too
	$(NO_BROWSER)
	$(call PYTEST,(slow or not slow))

# Serially: each test has a model or two of up to a gigabyte in memory.
test-real: setup ## Run the tests on real models, which are fetched where that can be done
	@tests/real/run $(VENV)/bin/python

# What decodes, with other kernels than those of this processor: without repacked weights, and with those of older
# processors, which are compiled once in a minute each.
SETS ?= plain x86-64-v3 x86-64-v2 openmp

test-kernels: setup ## Run what decodes under several sets of kernels
	@tests/kernels/run $(VENV)/bin/python $(SETS)

test-wheel: setup ## Install the wheel outside the checkout, and run it there
	@tests/wheel/run $(VENV)/bin/python

test-training: $(TORCH) ## Run the tests of training, which take PyTorch: some gigabytes of disk
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal -m training tests/training

# Hostile input of every kind: the same for a seed. SCALE=0.1 tries a tenth of it.
SEED  ?= 1
SCALE ?= 1

fuzz: setup ## Try to break it, with some 30,000 hostile files, names, servers and signals
	SPECDEC_FUZZ_SCALE=$(SCALE) $(VENV)/bin/python -m pytest --hypothesis-seed=$(SEED) tests/gguf/test_gguf_fuzz.py
	SPECDEC_FUZZ_SEED=$(SEED) SPECDEC_FUZZ_SCALE=$(SCALE) $(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m fuzz tests/fuzz

lint: setup ## Check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(ZENSICAL) ## Build the documentation as a site in build/docs/site, and check its links
	$(VENV)/bin/python docs/build_site.py

$(ZENSICAL): $(READY)
	@$(PIP) install -q --group docs
	@touch $@

# SHARE=0.02 takes a fiftieth of the time and text, to try it.
SHARE ?= 1

train: $(TORCH) ## Train the bundled pair and its heads further, in some hours; see training/README.md
	$(VENV)/bin/python -m training --share $(SHARE) $(TRAIN_FLAGS)

check-training: $(TORCH) ## Compare what PyTorch and llama.cpp compute of the bundled pair
	$(VENV)/bin/python -m training.check

$(TORCH): $(READY)
	@echo "Installing PyTorch, which takes some gigabytes of disk."
	@$(PIP) install -q --group training
	@touch $@

setup: $(READY) ## Make .venv and build llama.cpp for this machine

# The first set-up builds for some minutes, every later one on the same kind of processor takes seconds. What was built is
# tried, and built with fewer of the processor's instructions if it fails.
$(READY): pyproject.toml Makefile $(BUILDING)
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -q --upgrade "pip>=25.1"
	@if ls $(VENV)/.ready-* >/dev/null 2>&1 && ! test -e $@; then $(PIP) uninstall -q -y llama-cpp-python; fi
	@$(VENV)/bin/python $(BUILDING) install --accel $(ACCEL) -- --group dev -e ".[serve]"
	@rm -f $(VENV)/.ready-* && touch $@

clean: ## Remove everything that set-up and tests made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
