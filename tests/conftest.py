"""What several directories of tests share: the fixtures of `hourglass.testing.plugin`, and a server with quick timers."""

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
from effort import THOROUGH
from hourglass._worker import portal
from hourglass.testing import DevServer, dev_server

# Where the installed package does not announce its plugin yet.
pytest_plugins = [] if "hourglass" in entry_points(group="pytest11").names else ["hourglass.testing.plugin"]

# Every worker of every test executes its runs twice and compares, unless the test says otherwise: those that are about another
# mode do, and so do processes that tests start, which inherit it.
os.environ["HOURGLASS_VERIFY"] = "always"

# Workers of a server note in the user's state directory what they are at; those of tests do it elsewhere.
os.environ["HOURGLASS_STATE_DIR"] = tempfile.mkdtemp(prefix="hourglass-tests-")

# Most tests that ask a status endpoint are not about its token; tests/tree/test_status.py is.
os.environ["HOURGLASS_STATUS_TOKEN"] = "none"

# What was compiled is kept, also where the environment says otherwise, as it does in containers: tests start hundreds of
# processes, each of which would compile the package again, and every worker of pytest's would compile all tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A change passes or fails for what it holds, not for the cases of the day; `make thorough` looks for new ones.
settings.register_profile("hourglass", derandomize=not THOROUGH, deadline=None, print_blob=True)
settings.load_profile("hourglass")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--tier`."""
    tiers.add_option(parser)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test of the wanted tiers are not imported."""
    return tiers.is_ignored(collection_path, config) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test is marked with its tier."""
    tiers.select(config, items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Unit tests are guarded from here on."""
    tiers.begin(item)
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the guard of a unit test before fixtures are torn down: those of the session may belong to tests of other tiers.

    What a file leaves behind for good is frozen, so that tests that collect garbage need not go through it.
    """
    refused = tiers.GUARD.end()
    try:
        yield
        tiers.check(refused)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A quarantined test does not fail the run."""
    report = yield
    quarantine.excuse(report, quarantine.QUARANTINED)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Failures of quarantined tests are named."""
    quarantine.summarize(terminalreporter)


def pytest_configure() -> None:
    """A job in the background ignores SIGINT, and so would every process that a test starts: then no test can interrupt one.
    With a handler of our own we go on ignoring it, and programs that are started have the system's default.
    """
    quarantine.check(quarantine.QUARANTINED)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_sessionstart() -> None:
    """Load all modules before there are threads: pytest compiles our package by way of syntax trees, and Python 3.11 cannot
    make those in two threads at once (gh-106905: "AST constructor recursion depth mismatch").
    """
    if sys.version_info < (3, 12):
        _import_all(hourglass.__path__, "hourglass.")


def _import_all(path: Iterable[str], prefix: str) -> None:
    """But for what needs other libraries: `walk_packages` would import those packages to see what is in them."""
    for module in pkgutil.iter_modules(path, prefix):
        if module.name not in ("hourglass.contrib", "hourglass.__main__"):
            imported = importlib.import_module(module.name)
            if module.ispkg:
                _import_all(imported.__path__, f"{module.name}.")


def pytest_collection_finish() -> None:
    """Thousands of tests are a large heap that stays: whoever collects garbage in a test need not go through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """For tests of programs that configure logging, each for its whole process: afterwards it is as it was."""
    named = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    ours = [logging.root, *(each for each in named if each.name.partition(".")[0] == "hourglass")]
    before = [(each, each.level, each.propagate, list(each.handlers), list(each.filters)) for each in ours]
    yield
    for each, level, propagate, handlers, filters in before:
        each.setLevel(level)
        each.filters[:] = filters
        each.propagate = propagate
        for handler in [*each.handlers]:
            if handler not in handlers:
                each.removeHandler(handler)


# By itself a server fires timers up to a second late, several of them together, lets a second pass between the runs of a chain,
# and deletes a closed run half a minute after it was asked to.
_QUICK = (
    "frontend.WorkflowPauseEnabled=true",  # off by default, as the next three
    "frontend.WorkflowTimeSkippingEnabled=true",
    "activity.enableCallbacks=true",
    "nexusoperation.enableStandalone=true",
    # As many failures in a row as the embedded engine waits for: five, which is the server's number, take their time.
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
    """Every loop of the test is uvloop's, then every one asyncio's: the portal's, those of `asyncio.run`, the activities'."""
    uvloop = pytest.importorskip("uvloop")
    new_loop = uvloop.new_event_loop if request.param == "uvloop" else asyncio.SelectorEventLoop
    monkeypatch.setattr(asyncio, "new_event_loop", new_loop)
    monkeypatch.setattr(asyncio.events, "new_event_loop", new_loop)
    monkeypatch.setattr(portal, "_new_loop", new_loop)
    monkeypatch.setattr(
        portal.Portal, "_current", None
    )  # a portal has one loop for life: the test has its own
    yield request.param
    made = portal.Portal._current
    if made is not None:
        made.close()
