# Everything from nothing but Python (3.11 or newer) and make.
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

browser:  ## a Chromium for the tests of the page, where Debian and root are there; elsewhere they say that they are skipped
	@command -v chromium >/dev/null || test -n "$$CHROMIUM" || { \
		command -v apt-get >/dev/null && test "$$(id -u)" = 0 && \
		{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1; \
	} || echo "no Chromium here: the tests of the page in a browser are skipped"

# The demos need the package alone, and no more than a minute: an environment of their own, without what tests need.
DEMO := .venv-demo

$(DEMO)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

demo: $(DEMO)/.ready  ## a checkout that survives being killed: no server, one file; kill it and run it again
	$(DEMO)/bin/python examples/checkout.py

demo-temporal: $(DEMO)/.ready  ## the same on a real Temporal dev server
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev-server]'
	$(DEMO)/bin/python examples/checkout.py --temporal

# Many tests wait for servers, timers and processes, so there are three workers for each core of a small machine. Each gets one
# stretch of the tests and takes from the others when it is done: a stretch keeps the tests of a module together, so each worker
# starts a server of a kind at most once. Plain `pytest` runs the same tests one after the other. tests/tiers.py says which test is
# of which tier.
WORKERS ?= 6
PYTEST = $(BIN)/python -m pytest -q

test-changed: $(READY)  ## the tests that this branch and what is not committed concern, unit tests first (CHANGED="--list", "--unit", "--since HEAD")
	$(BIN)/python -m tests.changed $(CHANGED)

test-unit: $(READY)  ## pure parts and scripted worlds: less than a minute
	$(PYTEST) --tier unit -n 2 --dist worksteal

test: $(READY)  ## unit and contract tests, and a short campaign (WORKERS=0 for one process)
	$(PYTEST) --tier unit,contract,short -n $(WORKERS) --dist worksteal

campaign: $(READY)  ## the rest: kills, disks, clocks, chaos, soak, long searches
	$(PYTEST) --tier campaign -n $(WORKERS) --dist worksteal

thorough: export HOURGLASS_THOROUGH = 1
thorough: $(READY)  ## all tests, with many more random cases
	$(PYTEST) --timeout 3600 --override-ini faulthandler_timeout=3660 -n $(WORKERS) --dist worksteal

coverage: $(READY)  ## lines and branches that unit and contract tests run, by file
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group coverage
	$(BIN)/coverage erase
	COVERAGE_PROCESS_START=pyproject.toml $(BIN)/coverage run -m pytest -q --tier unit,contract -n $(WORKERS) --dist worksteal
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

smoke: $(READY)  ## build the packages into dist/, install the wheel into bare environments and try each extra
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	$(BIN)/python -m tests.smoke

LOWEST := .venv-lowest

test-lowest: $(READY)  ## the tests with the lowest supported versions of the dependencies
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable . --group test
	$(LOWEST)/bin/python -m pytest -q --tier unit,contract -n $(WORKERS) --dist worksteal

changelog: $(READY)  ## preview the changelog of the next release from changes/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	$(BIN)/towncrier build --draft --version "$$($(BIN)/python -c 'import hourglass; print(hourglass.__version__)')"

check: $(READY)  ## lint, format, types; and what the checkers accept and refuse in code that uses us
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(PYTEST) tests/typing

faces: $(READY)  ## write the blocking face of the client from the asynchronous one
	$(BIN)/python -m tests.architecture.faces

names: $(READY)  ## write the tables of temporalio's names in the manual
	$(BIN)/python -m tests.parity.table

reference: $(READY)  ## write docs/reference from the docstrings
	$(BIN)/python -m tests.architecture.reference

house: $(READY)  ## how easily a stranger finds a way through the source, in figures
	$(BIN)/python -m tests.architecture.house --temporal

bench: $(READY)  ## side by side with temporalio and DBOS, as ratios (BENCH="--publish" writes docs/performance.md; "--against FOLDER" for an earlier checkout, too)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	$(BIN)/python -m benchmarks $(BENCH)

chaos: $(READY)  ## more than a thousand faults of all kinds by seed, every acknowledgement checked, a report (CHAOS="--seed 7 --quick" for less)
	$(BIN)/python -m tests.chaos $(CHAOS)

soak: $(READY)  ## a worker under load for ten minutes, or for SOAK="--hours 8": fails if memory, threads, descriptors or the file grow
	$(BIN)/python -m tests.durability.soak $(SOAK)

docs: $(READY)  ## the manual as a site in site/; a warning is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO) $(LOWEST) .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache dist build site
