# All targets need only Python (3.11 or newer) and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo demo-temporal test-changed test-unit test campaign thorough coverage smoke test-lowest changelog check faces names reference house bench chaos soak docs format clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group test
	touch $(READY)

browser:  ## install Chromium for the web UI tests (Debian, as root); without it they are skipped
	@command -v chromium >/dev/null || test -n "$$CHROMIUM" || { \
		command -v apt-get >/dev/null && test "$$(id -u)" = 0 && \
		{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1; \
	} || echo "Chromium cannot be installed: the web UI tests are skipped"

# The demos use a separate environment with only the package, so that they are ready within a minute.
DEMO := .venv-demo

$(DEMO)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

demo: $(DEMO)/.ready  ## run a checkout on one file, without a server; kill it and run it again to see it resume
	$(DEMO)/bin/python examples/checkout.py

demo-temporal: $(DEMO)/.ready  ## run the demo on a real Temporal dev server
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev-server]'
	$(DEMO)/bin/python examples/checkout.py --temporal

# Many tests wait for servers, timers and processes, hence three pytest workers per core of a small machine. With worksteal each
# worker starts with a contiguous block of tests and later takes tests from others: the tests of a module stay together, so a worker
# starts each kind of server at most once. Plain `pytest` runs the same tests sequentially. tests/tiers.py assigns tests to tiers.
WORKERS ?= 6
PYTEST = $(BIN)/python -m pytest -q

test-changed: $(READY)  ## run the tests affected by this branch and by uncommitted changes, unit tests first (CHANGED="--list", "--unit", "--since HEAD")
	$(BIN)/python -m tests.changed $(CHANGED)

test-unit: $(READY)  ## run the unit tests, in less than a minute
	$(PYTEST) --tier unit -n 2 --dist worksteal

test: $(READY)  ## run unit and contract tests and a short campaign (WORKERS=0 for one process)
	$(PYTEST) --tier unit,contract,short -n $(WORKERS) --dist worksteal

campaign: $(READY)  ## run the slow tests: killed processes, disk faults, clocks, chaos, soak, long searches
	$(PYTEST) --tier campaign -n $(WORKERS) --dist worksteal

thorough: export HOURGLASS_THOROUGH = 1
thorough: $(READY)  ## run all tests, with many more random cases
	$(PYTEST) --timeout 3600 --override-ini faulthandler_timeout=3660 -n $(WORKERS) --dist worksteal

coverage: $(READY)  ## report line and branch coverage of unit and contract tests by file
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group coverage
	$(BIN)/coverage erase
	COVERAGE_PROCESS_START=pyproject.toml $(BIN)/coverage run -m pytest -q --tier unit,contract -n $(WORKERS) --dist worksteal
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

smoke: $(READY)  ## build the packages into dist/, install the wheel into bare environments and try each extra
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	$(BIN)/python -m tests.smoke

LOWEST := .venv-lowest

test-lowest: $(READY)  ## run the tests with the lowest supported versions of the dependencies
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable . --group test
	$(LOWEST)/bin/python -m pytest -q --tier unit,contract -n $(WORKERS) --dist worksteal

changelog: $(READY)  ## preview the changelog of the next release from changes/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	$(BIN)/towncrier build --draft --version "$$($(BIN)/python -c 'import hourglass; print(hourglass.__version__)')"

check: $(READY)  ## check lint, format and types, and run the typing tests of the public API
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(PYTEST) tests/typing

faces: $(READY)  ## generate the blocking client API from the asynchronous one
	$(BIN)/python -m tests.architecture.faces

names: $(READY)  ## update the tables of temporalio's names in the docs
	$(BIN)/python -m tests.parity.table

reference: $(READY)  ## generate docs/reference from the docstrings
	$(BIN)/python -m tests.architecture.reference

house: $(READY)  ## print readability metrics of the source, including a run on a real dev server
	$(BIN)/python -m tests.architecture.house --temporal

bench: $(READY)  ## compare with temporalio and DBOS, as ratios (BENCH="--publish" updates docs/performance.md; "--against FOLDER" adds an earlier checkout)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	$(BIN)/python -m benchmarks $(BENCH)

chaos: $(READY)  ## inject over a thousand random faults and verify every acknowledgement (CHAOS="--seed 7 --quick" for fewer)
	$(BIN)/python -m tests.chaos $(CHAOS)

soak: $(READY)  ## run a worker under load for ten minutes (or SOAK="--hours 8"); fail if memory, threads, descriptors or the file grow
	$(BIN)/python -m tests.durability.soak $(SOAK)

docs: $(READY)  ## build the documentation in site/; warnings are errors
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO) $(LOWEST) .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache dist build site
