"""The table of tiers names tests that exist, and unit tests cannot leave their process."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import tiers

from . import source

SERVERS = ("quick_server", "hourglass_server", "hourglass_client", "dev_server(")


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("name", [*tiers.TIERS, *tiers.SHORT])
def test_every_tier_entry_exists(name: str) -> None:
    """An entry of a table names a directory, a file or a function that exists."""
    path, _, function = name.partition("::")
    file = source.ROOT / path
    assert file.exists()
    assert not function or function in _functions(file)


def test_tier_entries_do_not_repeat_the_default() -> None:
    """No entry repeats what holds without it."""
    superfluous = []
    for name, tier in tiers.TIERS.items():
        above = name.rpartition("::" if "::" in name else "/")[0]
        if above and tiers.of(above) == tier:
            superfluous.append(name)
    assert superfluous == []


def test_every_tier_is_known() -> None:
    """The table names the three tiers and no other, and the short campaign is made of campaign tests."""
    assert set(tiers.TIERS.values()) == set(tiers.ALL)
    assert [name for name in tiers.SHORT if tiers.of(name) != tiers.CAMPAIGN] == []


def test_unit_test_files_use_no_server() -> None:
    """No file of unit tests alone uses a fixture that starts a server, or is marked so."""
    found = []
    for path in (source.ROOT / "tests").rglob("test_*.py"):
        name = path.relative_to(source.ROOT).as_posix()
        text = path.read_text()
        if tiers.of_file(name) == {tiers.UNIT} and path != Path(__file__):
            found += [name for word in (*SERVERS, "mark.server") if word in text]
    assert found == []


@pytest.mark.parametrize(
    ("test", "tier"),
    [
        ("tests/evaluator/test_turns.py::test_order[a::b/c]", tiers.UNIT),
        ("tests/nexus/test_nexus.py::test_it", tiers.CONTRACT),
        ("tests/durability/test_kills.py::test_it", tiers.CAMPAIGN),
        ("tests/examples/test_scripts.py::test_example_runs_twice_on_one_file", tiers.CAMPAIGN),
        (
            "tests/examples/test_scripts.py::test_example_runs_without_target_on_hourglass_db[hello.py]",
            tiers.CONTRACT,
        ),
    ],
)
def test_most_specific_tier_entry_wins(test: str, tier: str) -> None:
    """A function's entry comes before its file's, and a file's before its directory's."""
    assert tiers.of(test) == tier


REFUSED: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "spawn": lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}),
    "bind": lambda: _with_socket(lambda opened: opened.bind(("127.0.0.1", 0))),
    "connect": lambda: _with_socket(lambda opened: opened.connect(("127.0.0.1", 1))),
    "sleep": lambda: time.sleep(0.001),  # what a unit test is refused
    "fork": os.fork,
}


def _with_socket(use: Callable[[socket.socket], object]) -> None:
    """Call a function with a socket, and close the socket."""
    with socket.socket() as opened:
        use(opened)


@pytest.mark.parametrize("what", REFUSED)
def test_unit_tests_cannot_leave_the_process(what: str) -> None:
    """A program, a socket or a sleep raises in a unit test, and is noted for those who catch the exception."""
    with pytest.raises(Exception, match="a unit test") as caught:
        REFUSED[what]()
    assert type(caught.value).__name__ == "NotAUnitTest"
    guard = sys.modules["tiers"].GUARD  # the module as conftest.py loaded it
    assert len(guard.end()) == 1


def test_threads_of_earlier_tests_are_not_restricted() -> None:
    """A thread that another test left behind is not refused anything, one that this test starts is."""
    guard, refused = tiers.Guard(), []
    begun, go_on = threading.Event(), threading.Event()

    def refuse() -> None:
        begun.set()
        go_on.wait()
        refused.append(guard.is_on())

    old = threading.Thread(target=refuse)
    old.start()
    begun.wait()
    guard.begin()
    try:
        go_on.set()
        old.join()
        new = threading.Thread(target=refuse)
        new.start()
        new.join()
    finally:
        guard.end()
    assert refused == [False, True]
