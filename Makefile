# The commands of the project; `make` alone lists them.

SHELL := bash
# All cores, and at least two: training needs two even on a machine with one.
CORES ?= $(shell n=$$(nproc); echo $$((n < 2 ? 2 : n)))

# All commands run in .venv; a PYTHONPATH from a module or a profile would add other packages.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
PYTEST := python -m pytest --numprocesses 2 --dist loadscope --no-loadscope-reorder
.PHONY: help setup demo demo-volumes demo-instances serve plan test test-all lint format site bench check-gpu cluster-up cluster-down lock clean distclean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from envs/requirements.lock (once; about 3 minutes)
	@PYTHON="$(PYTHON)" bash envs/setup.sh

demo: setup ## run the workflow on the demo cohort and print the path of the report
	@gigatile run --cores $(CORES)

demo-volumes: setup ## the same on the demo cohort of brain volumes
	@gigatile run demo/volumes.yaml --cores $(CORES)

demo-instances: setup ## the same on the demo cohort of annotated nuclei
	@gigatile run demo/instances.yaml --cores $(CORES)

serve: setup ## serve the model of the demo: make serve PORT=8501
	@gigatile bundle --cores $(CORES)
	@gigatile serve results/demo/model/bundle --port $(or $(PORT),8501) --work-dir build/server --allow demo/slides

plan: setup ## estimate hours and disk of a run: make plan CONFIG=mine.yaml PROFILE=profiles/slurm
	@python scripts/plan.py $(if $(CONFIG),--configfile "$(CONFIG)") $(if $(PROFILE),--profile "$(PROFILE)") $(ARGS)

test: setup ## run the tests; without the slow ones: ARGS='-m "not slow and not cluster"'
	@bash tests/cluster/install.sh
	@$(PYTEST) -m "not long" $(ARGS)

test-all: setup ## run the tests, and those that take long and mostly repeat others on other data
	@bash tests/cluster/install.sh
	@$(PYTEST) $(ARGS)

lint: setup ## check formatting, style, workflow and types
	ruff format --check .
	ruff check .
	snakefmt --check Snakefile rules/
	snakemake --lint
	mypy

format: setup ## format all files
	@ruff format .
	@ruff check --fix-only --quiet .
	@snakefmt Snakefile rules/

site: setup ## build the documentation site into build/site, without the network
	@NO_MKDOCS_2_WARNING=1 mkdocs build --strict
	@echo "the site: $(CURDIR)/build/site/index.html"

bench: setup ## run all benchmarks and print their ratios
	@for file in $(wildcard benchmarks/*.py); do echo "== $$file"; python "$$file" || exit; done

check-gpu: ## check the GPUs of this machine in the environment that is active: NCCL, precision, training
	@PATH="$(patsubst $(CURDIR)/.venv/bin:%,%,$(PATH))" python envs/check_gpus.py $(ARGS)

cluster-up: setup ## start a SLURM cluster of three nodes on this machine (root on Debian)
	@bash tests/cluster/install.sh
	@python tests/cluster/cluster.py up

cluster-down: ## stop the cluster and remove all its files
	@python3 tests/cluster/cluster.py down

lock: ## update envs/requirements.lock from requirements.in; newest versions: ARGS=--upgrade
	@bash envs/lock.sh $(ARGS)

clean: ## remove results, the demo's slides and caches; .venv stays
	@rm -rf results .snakemake demo/slides demo/volumes build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -path ./.git -prune -o -name __pycache__ -print0 | xargs -0 rm -rf

distclean: clean ## remove .venv too; the compiled Horovod stays in the user's cache
	@rm -rf .venv .setup.lock ./*.egg-info
