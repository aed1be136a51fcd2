# The two commands are `make demo` and `make test`; each sets up what it needs in .venv, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOAK_MINUTES ?= 30

.PHONY: demo test test-all check bench soak clean help

help:
	@echo "make demo      a small data set through a durable store and several worker processes"
	@echo "make test      what a contributor runs (a few minutes)"
	@echo "make test-all  adds what is slow: kill loops, long fuzzing, scale"
	@echo "make check     format, lint, type-check"
	@echo "make bench     measure; PEER=1 runs the peer beside it"
	@echo "make soak      load for SOAK_MINUTES ($(SOAK_MINUTES)): memory, files and threads stay flat"

demo: $(VENV)/.core
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev
	$(BIN)/pytest -n 4 -m "not slow"

test-all: $(VENV)/.dev
	$(BIN)/pytest -n 4

# A contributor's files are formatted; CI only looks.
check: $(VENV)/.dev
	$(BIN)/ruff format $(if $(CI),--check) .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.core
	$(BIN)/python benchmarks/store.py $(if $(PEER),--peer)
	$(BIN)/python benchmarks/rollouts.py $(if $(PEER),--peer)

soak: $(VENV)/.core
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES)

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache runs

$(VENV)/.python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Sharpen needs Python 3.11 or newer; set PYTHON=python3.11')"
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	@touch $@
