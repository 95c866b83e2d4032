# One command each; every target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check results-check clean
.DEFAULT_GOAL := demo

setup: .venv/installed  ## create .venv and install the package with what demo and tests need

.venv/installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[attack,demo,digits,flower,report,secure,svhn]" --group dev
	@touch $@

demo: setup  ## DP-Fed against DP-Fed-LS at the same privacy budget, offline, in under a minute
	$(BIN)/dpfedls demo

test: setup  ## every test, with the branch coverage of the core
	$(BIN)/python -m pytest -n 2 --cov --cov-fail-under=95

check: setup  ## formatter, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

results-check: setup  ## a cheap cell of each table made again and compared with docs/results (needs DPFEDLS_DATA)
	$(BIN)/python -m dpfedls.paper.check docs/results

.PHONY: bench
bench: setup  ## speed beside pfl, Flower and plain torch, in about 20 minutes; then how ours grows
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/scaling.py

clean:  ## remove the environment and caches
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .coverage
