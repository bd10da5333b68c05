"""Hooks and fixtures for all tests: tiers, quarantine, plugin fixtures, and a dev server with fast timers."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import pkgutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import settings

import hourglass
import quarantine
import tiers
from asynchronous import run_coroutine_test
from effort import THOROUGH
from hourglass._worker import portal
from hourglass.testing import DevServer, dev_server

# For an installation of the package that has no entry point for the plugin yet.
pytest_plugins = [] if "hourglass" in entry_points(group="pytest11").names else ["hourglass.testing.plugin"]

# Every worker executes its runs twice and compares the results, unless a test sets another mode. Subprocesses
# inherit the variable.
os.environ["HOURGLASS_VERIFY"] = "always"

# Workers of a server write their progress to the user's state directory; those of tests to a temporary one.
os.environ["HOURGLASS_STATE_DIR"] = tempfile.mkdtemp(prefix="hourglass-tests-")

# Only tests/worker/tree/test_status.py is about the token of the status endpoint.
os.environ["HOURGLASS_STATUS_TOKEN"] = "none"

# Write bytecode even if the environment forbids it, as containers often do: tests start hundreds of
# processes, each of which would compile the package again, and every worker of pytest-xdist would compile all
# tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Random cases are the same in every run, so that a result depends on the change alone; `make thorough` tries
# new cases.
settings.register_profile("hourglass", derandomize=not THOROUGH, deadline=None, print_blob=True)
settings.load_profile("hourglass")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--tier`."""
    tiers.add_option(parser)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files that have no test of the selected tiers, without importing them."""
    return tiers.is_ignored(collection_path, config) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier and deselect other tiers."""
    tiers.select(config, items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Start the guard of a unit test before its fixtures."""
    tiers.begin(item)
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the guard of a unit test before its fixtures are torn down: session fixtures may belong to tests of
    other tiers.

    After the last test of a file, freeze the objects that survive, so that later garbage collections skip
    them.
    """
    violations = tiers.GUARD.end()
    try:
        yield
        tiers.check(violations)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function. Directories with a loop of their own have the same hook."""
    return run_coroutine_test(pyfuncitem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep a quarantined test from failing the run."""
    report = yield
    quarantine.excuse(report, quarantine.QUARANTINED)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the failures of quarantined tests."""
    quarantine.summarize(terminalreporter)


def pytest_configure() -> None:
    """Replace ignored signals by a handler that does nothing.

    A background job ignores SIGINT, and its subprocesses inherit that, so no test could interrupt them. With
    a handler this process still ignores the signal, and subprocesses start with the default.
    """
    quarantine.check(quarantine.QUARANTINED)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_sessionstart() -> None:
    """Import all modules before any thread starts.

    pytest compiles the package through syntax trees, and Python 3.11 cannot create those in two threads at
    once (gh-106905: "AST constructor recursion depth mismatch").
    """
    if sys.version_info < (3, 12):
        _import_all(hourglass.__path__, "hourglass.")


def _import_all(path: Iterable[str], prefix: str) -> None:
    """Import all modules below `path`, except packages that need optional libraries, which `walk_packages`
    would import.
    """
    for module in pkgutil.iter_modules(path, prefix):
        if module.name not in ("hourglass.contrib", "hourglass.__main__"):
            imported = importlib.import_module(module.name)
            if module.ispkg:
                _import_all(imported.__path__, f"{module.name}.")


def pytest_collection_finish() -> None:
    """Freeze the heap of collected tests, so that garbage collections during tests skip it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """Restore the logging configuration of this process after a test of a program that changes it."""
    named = [item for item in logging.root.manager.loggerDict.values() if isinstance(item, logging.Logger)]
    loggers = [logging.root, *(item for item in named if item.name.partition(".")[0] == "hourglass")]
    before = [
        (logger, logger.level, logger.propagate, list(logger.handlers), list(logger.filters))
        for logger in loggers
    ]
    yield
    for logger, level, propagate, handlers, filters in before:
        logger.setLevel(level)
        logger.filters[:] = filters
        logger.propagate = propagate
        for handler in [*logger.handlers]:
            if handler not in handlers:
                logger.removeHandler(handler)


# By default a dev server fires timers up to a second late in batches, waits a second between the runs of a
# chain, and deletes a closed run half a minute after the request.
_QUICK = (
    "frontend.WorkflowPauseEnabled=true",  # off by default, as the next three
    "frontend.WorkflowTimeSkippingEnabled=true",
    "activity.enableCallbacks=true",
    "nexusoperation.enableStandalone=true",
    # The number of the embedded engine; the server's default, five failures in a row, takes long.
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute=2",
    'history.timerProcessorMaxTimeShift="1ms"',
    'history.continueAsNewMinInterval="1ms"',
    'history.workflowIdReuseMinimalInterval="0s"',
    'history.transferProcessorUpdateAckInterval="100ms"',
    'history.visibilityProcessorUpdateAckInterval="100ms"',
)


@pytest.fixture(scope="session")
def quick_server() -> Iterator[DevServer]:
    """A real dev server whose timers fire when they are due."""
    with dev_server(
        search_attributes={
            "CustomKeywordField": "Keyword",
            "CustomIntField": "Int",
            "CustomDatetimeField": "Datetime",
            "CustomTextField": "Text",
            "CustomDoubleField": "Double",
            "CustomBoolField": "Bool",
            "CustomKeywordListField": "KeywordList",
        },
        extra_args=[arg for value in _QUICK for arg in ("--dynamic-config-value", value)],
    ) as server:
        yield server


@pytest.fixture(params=["uvloop", "asyncio"])
def each_event_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the test once with uvloop and once with asyncio for all event loops: portal, `asyncio.run`,
    activities.
    """
    uvloop = pytest.importorskip("uvloop")
    new_loop = uvloop.new_event_loop if request.param == "uvloop" else asyncio.SelectorEventLoop
    monkeypatch.setattr(asyncio, "new_event_loop", new_loop)
    monkeypatch.setattr(asyncio.events, "new_event_loop", new_loop)
    monkeypatch.setattr(portal, "_new_loop", new_loop)
    monkeypatch.setattr(
        portal.Portal, "_current", None
    )  # a portal keeps its loop, so the test gets a new portal
    yield request.param
    current = portal.Portal._current
    if current is not None:
        current.close()
