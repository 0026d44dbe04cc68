# serve, demo: run Tandem.  test, check: prove it; test-slow: at length; test-clients: with clients of
# others (litellm, LangChain, aiperf, guidellm) in environments of their own.  protos, docs: what is
# generated.
# bench: this machine's figures, with shares of its limits.  bench-peers: other servers beside it, as
# far as `tandem bench peers install` has made their environments.  chaos: faults of every kind under
# load for ten minutes, chaos-short for three; SEED=n plans others.  ARGS="..." are passed on.
# A virtual environment in .venv is made on first use and refreshed when pyproject.toml changes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
SET    ?=
# Test files that run at once: each waits for its processes half of the time. They begin in the order
# of their names, which has the longest near the start and leaves many short ones to even out the end.
JOBS   ?= 2

.PHONY: serve demo test test-slow test-clients check protos bench bench-peers chaos chaos-short docs clean
.DEFAULT_GOAL := serve

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Tandem needs Python 3.11 or newer: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml $(BIN)/python
	@echo "Installing Tandem into $(VENV) (once; a minute or two) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(DEV): pyproject.toml $(BIN)/python
	@echo "Installing Tandem and its test tools into $(VENV) (once; a minute or two) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(STAMP)

serve: $(STAMP)
	$(BIN)/tandem serve default $(SET)

demo: $(STAMP)
	$(BIN)/tandem demo $(SET)

test: $(DEV)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not gpu and not slow and not clients" $(ARGS)

test-slow: $(DEV)
	$(BIN)/python -m pytest -q -m "not gpu and slow" $(ARGS)

test-clients: $(DEV)
	$(BIN)/python -m pytest -q -m clients $(ARGS)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check
	$(BIN)/tandem config --reference --check docs/CONFIGURATION.md
	$(BIN)/python docs/generate_file_list.py --check

protos: $(DEV)
	$(BIN)/python protos/generate.py

docs: $(DEV)
	$(BIN)/tandem config --reference > docs/CONFIGURATION.md
	$(BIN)/python docs/generate_file_list.py

bench: $(DEV)
	$(BIN)/tandem bench suite $(ARGS)

bench-peers: $(DEV)
	$(BIN)/tandem bench peers $(ARGS)

SEED ?= 0
# Cutting a network needs a network namespace, and that needs root.
NODES ?= $(if $(filter 0,$(shell id -u)),--two-nodes)
CHAOS  = $(BIN)/tandem bench chaos --seed $(SEED) $(NODES)
BY_HAND = $(CHAOS) --redis-server "$$($(BIN)/python tests/redis_server.py)"

# Single processes; groups of two ranks; the real model; Ray, with groups and a second raylet.
chaos: $(DEV)
	$(BY_HAND) --duration 300s --period 7s --judge-memory $(ARGS)
	$(BY_HAND) --duration 100s --period 8s --ranks 2 --judge-memory $(ARGS)
	$(BY_HAND) --duration 80s --period 10s --clients 3 --model default --judge-memory $(ARGS)
	$(CHAOS) --house ray --ranks 2 --duration 120s --period 10s --judge-memory $(ARGS)

chaos-short: $(DEV)
	$(BY_HAND) --duration 100s --period 5s $(ARGS)
	$(BY_HAND) --duration 60s --period 4s --ranks 2 $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
