# Needs make, a POSIX shell and Python >= 3.11. Everything is installed into .venv.
.DEFAULT_GOAL := help
.PHONY: help demo test lint types test-slow bench experiments replay-study accuracy clean

VENV := .venv
PYTHON_OF_VENV := $(VENV)/bin/python
DEMO_INSTANCE := instances/gpt-8.1b-16x8-a100-nominal.json
OUT := out/experiments
SMALL_INSTANCE := instances/tiny-2x2-a100-nominal.json

STUDY := out/replay-study

# The first interpreter that runs, is new enough and can make a virtual environment. Asked only when needed.
find_python = for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
    then echo "$$candidate"; exit 0; fi; done; exit 1
no_python = echo "Python >= 3.11 with the venv module is needed (Debian, Ubuntu: apt install python3-venv); or name one: make PYTHON=/path/to/python" >&2

# A stamp is written last, so that an interrupted set-up is done again; it is out of date when pyproject.toml
# changes, and its name holds the version of the interpreter, so that another Python makes a new one.
VERSION := $(shell python=$$($(find_python)) && "$$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
STAMPS := .make
CORE := $(STAMPS)/core-$(or $(VERSION),none)
DEV := $(STAMPS)/dev-$(or $(VERSION),none)

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: $(CORE) ## solve a shipped 16-node instance
	$(PYTHON_OF_VENV) -m pipette_milp solve $(DEMO_INSTANCE)

test: lint types ## lint, types and the fast tests
	$(PYTHON_OF_VENV) -m pytest -m "not slow" --numprocesses 2 --dist loadfile

lint: $(DEV)
	$(PYTHON_OF_VENV) -m ruff check .
	$(PYTHON_OF_VENV) -m ruff format --check .

types: $(DEV)
	$(PYTHON_OF_VENV) -m mypy

test-slow: $(DEV) ## the long tests
	$(PYTHON_OF_VENV) -m pytest -m slow

bench: $(DEV) ## cold start of the command line, speed of the simulator
	$(PYTHON_OF_VENV) -m pipette_milp.cli.cold_start $(SMALL_INSTANCE)
	OMP_NUM_THREADS=1 $(PYTHON_OF_VENV) -m pipette_milp.simulator.benchmark

experiments: $(DEV) ## the README's tables from scratch into OUT, half an hour on two cores; goes on where it was stopped
	OMP_NUM_THREADS=1 $(PYTHON_OF_VENV) -m pipette_milp.experiments $(OUT) $(wildcard instances/gpt-*-16x8-*.json)

replay-study: $(DEV) ## replay plans on emulated clusters (Linux, root, PyTorch); results in out/replay-study
	@$(PYTHON_OF_VENV) -c 'import torch' 2>/dev/null || \
	    { echo "PyTorch is needed: $(PYTHON_OF_VENV) -m pip install torch (a CPU build is enough)" >&2; exit 1; }
	$(PYTHON_OF_VENV) -m pipette_milp.measure.study -o $(STUDY)

RUNS ?= runs.csv
accuracy: $(CORE) ## errors of the estimates on measured runs: make accuracy RUNS=table.csv
	$(PYTHON_OF_VENV) -m pipette_milp accuracy $(RUNS)

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) $(STAMPS) .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info

$(CORE): pyproject.toml
	@$(call make_venv)
	$(PYTHON_OF_VENV) -m pip install --quiet --disable-pip-version-check --editable .
	@mkdir -p $(STAMPS) && touch $@

$(DEV): pyproject.toml
	@$(call make_venv)
	$(PYTHON_OF_VENV) -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	$(PYTHON_OF_VENV) -m pipette_milp.warm_up
	@mkdir -p $(STAMPS) && touch $@ $(CORE)

# An environment of another interpreter is replaced.
make_venv = python=$$($(find_python)) || { $(no_python); exit 1; }; \
    if ! [ "$$($(PYTHON_OF_VENV) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)" = "$(VERSION)" ]; \
    then rm -rf $(VENV) $(STAMPS) && "$$python" -m venv $(VENV); fi
