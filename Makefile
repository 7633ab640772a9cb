# Linux, Python 3.11 or newer, git and make. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help paper smoke rehearse figures test lab docs bench tune readme clean clean-venv git

PYTHON ?= python3
PIP_ARGS ?=
PROFILE ?= cpu
FIG ?= fig1
WORKERS ?= 2
ROOT := $(CURDIR)
RUN := python -m layerdescent.pipeline
INSTALL := python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) -c constraints.txt

# The venv's programs first, whatever is active outside; the same bytes in every picture.
export PATH := $(ROOT)/.venv/bin:$(PATH)
export SOURCE_DATE_EPOCH := 0
export DVC_NO_ANALYTICS := 1
unexport PYTHONHOME

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

paper: .venv/.installed ## every table and figure from data fetch to claims (PROFILE=x: in runs/x, results in results/x)
ifeq ($(PROFILE),cpu)
	@start=$$(date +%s); $(RUN) plan; dvc repro; $(RUN) data; status=0; $(RUN) verify || status=$$?; $(RUN) summary --since $$start; exit $$status
else
	@start=$$(date +%s); $(RUN) worktree $(PROFILE); cd 'runs/$(PROFILE)'; $(RUN) plan; dvc repro; $(RUN) summary --since $$start; cd '$(ROOT)'; $(RUN) collect $(PROFILE)
endif

smoke: .venv/.installed ## the whole pipeline on generated data and tiny models, in runs/smoke
	@start=$$(date +%s); $(RUN) worktree smoke; cd 'runs/smoke'; $(RUN) plan; dvc repro; $(RUN) summary --since $$start

rehearse: .venv/.installed ## the paper profile's every stage on tiny stand-ins of its data and weights, in runs/rehearsal
	@python tests/rehearse.py

figures: .venv/.installed ## one figure and what it needs: make figures FIG=fig2 (PROFILE=ucsd: of another profile, in runs/ucsd)
ifeq ($(PROFILE),cpu)
	@start=$$(date +%s); dvc repro $(FIG); $(RUN) summary --since $$start
else
	@start=$$(date +%s); $(RUN) worktree $(PROFILE); cd 'runs/$(PROFILE)'; dvc repro $(FIG); $(RUN) summary --since $$start
endif

# Threads: two notebooks at a time on two cores, each with one, since spinning OpenMP threads can cost a factor of ten.
test: export OMP_NUM_THREADS := 1
test: export MKL_NUM_THREADS := 1
test: export OPENBLAS_NUM_THREADS := 1
test: export HF_HUB_OFFLINE := 1
test: .venv/.installed ## export in sync, every notebook, then the contracts
	@before=$$(git status --porcelain); \
	ruff check -q; \
	python -m pytest tests/test_contracts.py -k export_is_in_sync; \
	echo "Notebooks ($(WORKERS) at a time):"; nbdev_test --n_workers $(WORKERS); \
	python -m pytest tests; \
	test "$$(git status --porcelain)" = "$$before" || { echo "error: the tests changed files of the checkout:" >&2; git status --short >&2; exit 1; }

lab: .venv/.installed ## JupyterLab on the index, which shows the committed results
	@jupyter lab nbs/index.ipynb

docs: .venv/.docs ## the notebooks as a site in _docs, without executing anything
	@rm -rf _proc _docs; python -c "from nbdev.serve import proc_nbs; proc_nbs()" > /dev/null; mkdocs build -q; echo "The site is in _docs/index.html."

bench: .venv/.installed ## time and memory against the baselines, into results/bench.json
	@$(RUN) run bench; $(RUN) run bench_video

tune: .venv/.installed ## the tuning trials behind the figures' settings, on validation data
	@$(RUN) run tune --all; $(RUN) run tune_video --all

readme: .venv/.installed ## README.md from nbs/index.ipynb
	@$(RUN) readme

clean: ## remove what the pipeline made outside git: data, builds, runs, DVC's cache (not .venv)
	@rm -rf data downloads build runs _docs _proc .dvc/cache .dvc/tmp; git worktree prune 2> /dev/null || true

clean-venv: ## remove .venv
	@rm -rf .venv

git:
	@git rev-parse --show-prefix > /dev/null 2>&1 && test -z "$$(git rev-parse --show-prefix)" || { echo "error: this copy is not a git checkout, and DVC needs one: use \`git clone\`, or run \`git init && git add -A && git commit -m copy\` here." >&2; exit 1; }

.venv/.installed: constraints.txt pyproject.toml | git
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { echo "error: layerdescent needs Python 3.11 or newer, and \`$(PYTHON)\` is $$($(PYTHON) -V 2>&1 || true). Name another one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || { echo "error: \`$(PYTHON)\` cannot make virtual environments: install its venv package (Debian and Ubuntu: python3-venv)." >&2; exit 1; }
	@.venv/bin/python -c 'import pip' 2> /dev/null || { rm -rf .venv; $(PYTHON) -m venv .venv; }
	@echo "Installing into .venv, once: 2 GiB and about two minutes with a CPU build of torch; the default Linux wheel brings CUDA libraries and several GiB more."
	@$(INSTALL) -e '.[paper,test]'
	@touch $@

.venv/.docs: .venv/.installed
	@$(INSTALL) -e '.[docs]'
	@touch $@
