# The two commands a newcomer needs: `make run` and `make test`. Both set everything up first.

PYTHON ?= python3
# What llama.cpp is built for: auto, cpu, cuda, metal or vulkan.
ACCEL  ?= auto

VENV   := .venv
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check

# auto: CUDA needs a GPU that answers and a compiler for it; the compiler alone is not enough.
ifeq ($(ACCEL),auto)
  ifeq ($(shell uname -sm),Darwin arm64)
    CHOSEN := metal
  else ifneq ($(and $(shell nvidia-smi -L 2>/dev/null | grep -o GPU | head -n 1),$(shell command -v nvcc)),)
    CHOSEN := cuda
  else
    CHOSEN := cpu
  endif
else
  CHOSEN := $(ACCEL)
endif

FLAGS_cpu    := -DGGML_METAL=off
FLAGS_cuda   := -DGGML_CUDA=on
FLAGS_metal  := -DGGML_METAL=on
FLAGS_vulkan := -DGGML_VULKAN=on
ifeq ($(FLAGS_$(CHOSEN)),)
  $(error ACCEL is $(ACCEL); it must be auto, cpu, cuda, metal or vulkan)
endif

# The multimodal library is not used; RPC is, for --rpc. Flags of the caller's own come last and win.
BUILD_FLAGS := -DLLAVA_BUILD=off -DGGML_RPC=ON -DGGML_RPC_RDMA=OFF $(FLAGS_$(CHOSEN)) $(CMAKE_ARGS)
BUILT := rpc-$(CHOSEN)
READY := $(VENV)/.ready-$(BUILT)
TORCH := $(VENV)/.torch

.PHONY: run test test-slow test-all test-real test-training fuzz lint setup clean train check-training

run: setup ## Show what specdec does, in ten seconds
	@$(VENV)/bin/specdec demo

# Without a browser on the machine, the tests that look at pages in one are left out, and said to be.
BROWSER := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

# What every test run is started with; $(1): which tests.
PYTEST = $(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m "not real and not fuzz and not training and $(1)$(if $(BROWSER),, and not browser)"
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

test-training: $(TORCH) ## Run the tests of training, which take PyTorch: some gigabytes of disk
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal -m training tests/training

# Hostile input of every kind: the same for a seed. SCALE=0.1 tries a tenth of it.
SEED  ?= 1
SCALE ?= 1

fuzz: setup ## Try to break it, with some 30,000 hostile files, names, servers and signals
	SPECDEC_FUZZ_SCALE=$(SCALE) $(VENV)/bin/python -m pytest --hypothesis-seed=$(SEED) tests/models/test_gguf_fuzz.py
	SPECDEC_FUZZ_SEED=$(SEED) SPECDEC_FUZZ_SCALE=$(SCALE) $(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m fuzz tests/fuzz

lint: setup ## Check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# What `make train` makes: full takes a GPU, small half an hour of a CPU, tiny a minute or two.
SIZE ?= small

train: $(TORCH) ## Train a pair of models; see training/README.md
	$(VENV)/bin/python -m training --size $(SIZE) $(TRAIN_FLAGS)

check-training: $(TORCH) ## Compare PyTorch's models with llama.cpp's
	$(VENV)/bin/python -m training.check

$(TORCH): $(READY)
	@echo "Installing PyTorch, which takes some gigabytes of disk."
	@$(PIP) install -q --group training
	@touch $@

setup: $(READY) ## Make .venv and build llama.cpp for this machine

# pip's cache does not know CMAKE_ARGS, so each kind of wheel has a cache of its own inside it:
# the first set-up builds for some minutes, every later one takes seconds.
$(READY): pyproject.toml Makefile
	@echo "Setting up for $(CHOSEN). The first time, llama.cpp is compiled: some minutes."
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -q --upgrade "pip>=25.1"
	@if ls $(VENV)/.ready-* >/dev/null 2>&1 && ! test -e $@; then $(PIP) uninstall -q -y llama-cpp-python; fi
	@CMAKE_ARGS="$(BUILD_FLAGS)" $(PIP) install -q --cache-dir "$$($(PIP) cache dir)/specdec-$(BUILT)" --group dev -e ".[serve]"
	@rm -f $(VENV)/.ready-* && touch $@

clean: ## Remove everything that set-up and tests made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
