# One command each; every target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt

.PHONY: setup lock sbom demo test test-browser snapshots test-adapters check docs dist results-check bench torture clean
.DEFAULT_GOAL := demo

setup: .venv/installed  ## create .venv and install the package with what demo and tests need

# First everything by its hash; then torch, whose hash depends on the build that is offered, by its
# version, and the package itself, built by what is already there.
.venv/installed: pyproject.toml constraints.txt requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.3"
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation \
		--editable ".[attack,demo,digits,flower,report,secure,svhn]" --group dev
	@touch $@

lock:  ## requirements.lock made anew, after a change of pyproject.toml or constraints.txt
	$(BIN)/python tools/lock.py

sbom: setup  ## a bill of materials of the product, CycloneDX as JSON, in sbom.json
	$(BIN)/python tools/sbom.py sbom.json

demo: setup  ## DP-Fed against DP-Fed-LS at the same privacy budget, offline, in under a minute
	$(BIN)/dpfedls demo

# Three workers on two cores: one of them mostly waits for a federation. Files stay whole, so that what
# their tests share is made once; tests/conftest.py says which come first.
test: setup  ## every test, with the branch coverage of the core
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 2 --cov --cov-fail-under=95

test-browser: setup  ## the pages in a real Chromium, which is installed if there is none
	$(PIP) --group browser
	@command -v chromium >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } || \
		$(BIN)/python -m playwright install --with-deps chromium
	DPFEDLS_BROWSER=1 $(BIN)/python -m pytest tests/browser

snapshots: setup  ## write tests/messages anew: what wrong calls are told
	DPFEDLS_SNAPSHOTS=1 $(BIN)/python -m pytest tests/test_messages.py
	git diff --stat tests/messages

test-adapters: setup  ## the denoisers inside Opacus and pfl, installed in a folder of their own
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .adapters \
		opacus==1.6.0 opt_einsum==3.4.0 pfl==0.6.0 multiprocess==0.70.19 dill==0.4.1
	PYTHONPATH=.adapters $(BIN)/python -m pytest tests/adapters

check: setup  ## formatter, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

docs: setup  ## the documentation site, in site/; a broken link is an error
	$(PIP) --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: setup  ## wheel and sdist, each installed in a bare environment and tried
	rm -rf dist
	$(BIN)/uv build --quiet
	for made in dist/*.whl dist/*.tar.gz; do \
		rm -rf .bare && $(PYTHON) -m venv .bare && \
		.bare/bin/python -m pip install --quiet --constraint constraints.txt $$made && \
		(cd .bare && bin/dpfedls --version && bin/dpfedls planner && \
		bin/dpfedls run synthetic --set plan.rounds=2 --out r && bin/dpfedls privacy verify r) || exit 1; \
	done
	rm -rf .bare

results-check: setup  ## a cheap cell of each table made again and compared with docs/results (needs DPFEDLS_DATA)
	$(BIN)/python -m dpfedls.paper.check docs/results

bench: setup  ## speed beside pfl, Flower and plain torch, then how ours grows; writes the table of docs/performance.md
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/page.py

torture: setup  ## what the system withstands, in about half an hour; SCALE=0.1 tries a tenth of the cases
	$(BIN)/python -m torture --scale $(or $(SCALE),1) $(KINDS)

clean:  ## remove the environment and caches
	rm -rf .venv .adapters .bare site dist sbom.json .pytest_cache .ruff_cache .hypothesis .coverage
