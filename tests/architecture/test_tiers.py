"""The table of tiers, and the guard that keeps unit tests inside their process."""

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
def test_every_tier_entry_names_an_existing_test(name: str) -> None:
    path, _, function = name.partition("::")
    file = source.ROOT / path
    assert file.exists()
    assert not function or function in _functions(file)


def test_no_tier_entry_repeats_the_tier_of_its_parent() -> None:
    redundant = []
    for name, tier in tiers.TIERS.items():
        above = name.rpartition("::" if "::" in name else "/")[0]
        if above and tiers.of(above) == tier:
            redundant.append(name)
    assert redundant == []


def test_tier_table_has_only_known_tiers_and_short_has_only_campaign_tests() -> None:
    assert set(tiers.TIERS.values()) == set(tiers.ALL)
    assert [name for name in tiers.SHORT if tiers.of(name) != tiers.CAMPAIGN] == []


def test_unit_test_files_use_no_server() -> None:
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
    assert tiers.of(test) == tier


FORBIDDEN: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "spawn": lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}),
    "bind": lambda: _with_socket(lambda opened: opened.bind(("127.0.0.1", 0))),
    "connect": lambda: _with_socket(lambda opened: opened.connect(("127.0.0.1", 1))),
    "sleep": lambda: time.sleep(0.001),  # forbidden in unit tests
    "fork": os.fork,
}


def _with_socket(use: Callable[[socket.socket], object]) -> None:
    """Call a function with a socket, and close the socket."""
    with socket.socket() as opened:
        use(opened)


@pytest.mark.parametrize("operation", FORBIDDEN)
def test_unit_test_cannot_start_processes_use_sockets_or_sleep(operation: str) -> None:
    with pytest.raises(Exception, match="a unit test") as caught:
        FORBIDDEN[operation]()
    assert type(caught.value).__name__ == "NotAUnitTest"
    guard = sys.modules["tiers"].GUARD  # the module as conftest.py loaded it
    assert len(guard.end()) == 1


def test_guard_of_unit_tests_exempts_threads_of_earlier_tests() -> None:
    guard, is_guarded = tiers.Guard(), []
    begun, proceed = threading.Event(), threading.Event()

    def check_guard() -> None:
        begun.set()
        proceed.wait()
        is_guarded.append(guard.is_on())

    old = threading.Thread(target=check_guard)
    old.start()
    begun.wait()
    guard.begin()
    try:
        proceed.set()
        old.join()
        new = threading.Thread(target=check_guard)
        new.start()
        new.join()
    finally:
        guard.end()
    assert is_guarded == [False, True]
