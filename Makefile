# The commands of the project; `make` alone lists them.

SHELL := bash
# As many cores as there are; training wants two even on a machine with one.
CORES ?= $(shell n=$$(nproc); echo $$((n < 2 ? 2 : n)))

# Everything below runs in .venv; a PYTHONPATH from a module or a profile would slip other packages in.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-volumes plan test lint format bench cluster-up cluster-down lock clean distclean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from envs/requirements.lock (once; about 3 minutes)
	@PYTHON="$(PYTHON)" bash envs/setup.sh

demo: setup ## run the whole workflow on the demo cohort and say where its report is
	@snakemake --cores $(CORES) --show-failed-logs
	@echo "the report: $(CURDIR)/results/demo/report/index.html"

demo-volumes: setup ## the same on the demo cohort of brain volumes
	@snakemake --cores $(CORES) --show-failed-logs --configfile demo/volumes.yaml
	@echo "the report: $(CURDIR)/results/demo-volumes/report/index.html"

plan: setup ## what a run will take: make plan CONFIG=mine.yaml PROFILE=profiles/slurm
	@python scripts/plan.py $(if $(CONFIG),--configfile "$(CONFIG)") $(if $(PROFILE),--profile "$(PROFILE)") $(ARGS)

test: setup ## run the tests; ARGS='-m "not slow and not cluster"' leaves out the long ones
	@bash tests/cluster/install.sh
	@python -m pytest --numprocesses 2 --dist loadscope --no-loadscope-reorder $(ARGS)

lint: setup ## check format, style, the workflow and the types
	ruff format --check .
	ruff check .
	snakefmt --check Snakefile rules/
	snakemake --lint
	mypy

format: setup ## bring every file into the house's format
	@ruff format .
	@ruff check --fix-only --quiet .
	@snakefmt Snakefile rules/

bench: setup ## run every benchmark and print its ratio
	@for file in $(wildcard benchmarks/*.py); do echo "== $$file"; python "$$file" || exit; done

cluster-up: setup ## start a SLURM cluster of three nodes on this machine (root on Debian)
	@bash tests/cluster/install.sh
	@python tests/cluster/cluster.py up

cluster-down: ## end it; nothing of it is left
	@python3 tests/cluster/cluster.py down

lock: ## write envs/requirements.lock anew from requirements.in; ARGS=--upgrade takes the newest versions
	@bash envs/lock.sh $(ARGS)

clean: ## remove results, the demo's slides and caches; .venv stays
	@rm -rf results .snakemake demo/slides demo/volumes build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -path ./.git -prune -o -name __pycache__ -print0 | xargs -0 rm -rf

distclean: clean ## remove .venv too; the compiled Horovod stays in the user's cache
	@rm -rf .venv .setup.lock ./*.egg-info
