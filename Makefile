# `make demo` and `make test` need only Python 3.11+, pip, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH ?= torch==2.13.0
TRL ?= trl==1.16.0 transformers==5.23.0 accelerate==1.15.0 tokenizers==0.23.3 psutil==7.2.2
TRAINING := $(VENV)/.torch
# Hundreds of processes are started, and compiling the project anew took each up to 0.3 s where bytecode may not be written.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

.PHONY: demo test test-long lint types bench docs site constraints clean setup
.DEFAULT_GOAL := test

setup: $(READY)

$(READY): pyproject.toml constraints.txt Makefile $(wildcard environments/*/pyproject.toml)
	$(PYTHON) -m venv --clear $(VENV)
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install --quiet --python $(BIN)/python --require-hashes -r constraints.txt && \
		uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . $(foreach e,$(wildcard environments/*/pyproject.toml),-e $(dir $(e))); \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . $(foreach e,$(wildcard environments/*/pyproject.toml),-e $(dir $(e))); \
	fi
	touch $(READY)

# The tests of losses and of the reference trainer run on torch, which nothing else needs, and one test trains with TRL, which stands
# apart from what the library is tested with. `make test TORCH= TRL=` leaves them out.
$(TRAINING): $(READY)
	@if [ -n "$(TORCH)" ]; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" || echo "torch is not installed; its tests are skipped"; \
	fi
	@if [ -n "$(TORCH)" ] && [ -n "$(TRL)" ]; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/trl $(TRL) \
			|| { rm -rf $(VENV)/trl; echo "TRL is not installed; its test is skipped"; }; \
	fi
	touch $(TRAINING)

demo: $(READY)  ## evaluate a small local model, publish an environment on a hub, install it; no key, no network
	$(BIN)/python -m vf_cli.demo

test: $(TRAINING)  ## the test suite
	$(PYTEST) -n 2 --dist loadfile -m "not long" -q

test-long: $(TRAINING)  ## the long suites: real clients, kill loops, learning runs
	$(PYTEST) -m long -q --timeout 1800

lint: $(READY)  ## ruff, and the generated reference is up to date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tests/contract/write_reference.py --check

types: $(TRAINING)  ## the type checker
	$(BIN)/basedpyright --level error
	$(BIN)/basedpyright --level error -p pyrightconfig.strict.json

bench: $(READY)  ## the figures of docs/performance.md, beside the published package
	$(BIN)/python tests/benchmarks/run.py

docs: $(READY)  ## write the generated reference pages
	$(BIN)/python tests/contract/write_reference.py

site: $(READY)  ## build the documentation site in site/
	$(BIN)/zensical build --strict

constraints:  ## pin every dependency anew, with hashes and without addresses
	$(PYTHON) -m venv --clear .constraints-venv
	.constraints-venv/bin/python -m pip install --quiet uv
	.constraints-venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
		--no-header $(foreach e,anthropic gym hub mcp rg serve ta view,--extra $(e)) --group dev pyproject.toml -o constraints.txt
	rm -rf .constraints-venv

clean:
	rm -rf $(VENV) .constraints-venv dist build site .bench outputs .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
