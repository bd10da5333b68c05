"""Imports only go down, and only through the doors."""

from __future__ import annotations

import ast
import re

import pytest

from . import source

RANKS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "_forks", "_logs", "_loops"}),
    frozenset({"converter", "metrics", "_http"}),
    frozenset({"_engine", "_supervision", "_check"}),
    frozenset({"activity", "nexus"}),
    frozenset({"workflow", "_contract", "_history"}),
    frozenset({"_bridge"}),
    frozenset({"_temporal", "_embedded"}),
    frozenset({"envconfig"}),
    frozenset({"_runtime"}),
    frozenset({"client"}),
    frozenset({"progress", "interceptors"}),
    frozenset({"limits"}),
    frozenset({"_built_in"}),
    frozenset({"worker", "replay"}),
    frozenset({"testing", "contrib", "plugins"}),
    frozenset({"aio"}),
    frozenset({"_story"}),
    frozenset({"_ui"}),
    frozenset({"_cli"}),
    frozenset({"__main__"}),
)
RANK = {part: rank for rank, parts in enumerate(RANKS) for part in parts}

EMBEDDED = ("clock", "rules", "store", "engine", "workers", "clients", "sharing")
"""The floors of the embedded engine, lowest first."""

# Importer and imported module, and why the import may go up or sideways.
EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "hourglass.client._operations",
        "hourglass.replay",
    ): "handle.history() makes one, loaded when it is called",
    (
        "hourglass.client._blocking_handles",
        "hourglass.replay",
    ): "the type of handle.history(), for type checkers only",
    (
        "hourglass.activity._current",
        "hourglass.client",
    ): "the type of activity.client(), for type checkers only",
    ("hourglass.nexus", "hourglass.client"): "the type of nexus.client(), for type checkers only",
    (
        "hourglass.client._async_handles",
        "hourglass.replay",
    ): "the type of handle.history(), for type checkers only",
    (
        "hourglass.client._faces",
        "hourglass._tools.timeline.watching",
    ): "a handle draws itself in notebooks, if it is asked to",
    (
        "hourglass.client._plugins",
        "hourglass.worker",
    ): "the worker that a plugin is told, for type checkers only",
    ("hourglass.client._async", "hourglass.replay"): "the type of what is imported, for type checkers only",
    (
        "hourglass.client._blocking",
        "hourglass.replay",
    ): "the type of what is imported, for type checkers only",
}

# Who may import what is not ours: the packages or files that are the only door to each.
DOORS: dict[str, tuple[str, ...]] = {
    "temporalio": ("_temporal/",),
    "temporalio.bridge.temporal_sdk_bridge": ("_temporal/core.py",),
    "google": (
        "_temporal/",
        "converter/_hints.py",
    ),  # there: protobuf messages that users pass as arguments
    "greenlet": ("_evaluator/fibers.py",),
    "typer": ("_tools/cli/",),
    "rich": ("_tools/cli/",),
    "opentelemetry": ("contrib/opentelemetry/",),
    "sqlalchemy": ("contrib/sqlalchemy/",),
    "pydantic_ai": ("contrib/pydantic_ai/",),
    "agents": ("contrib/openai_agents/",),
    "uvloop": ("_worker/portal.py", "replay/_session.py"),
    "sqlite3": ("_embedded/store/sqlite/", "_tools/cli/doctor.py"),  # there: which version it is
}

STORE_OF_SQLITE = "hourglass._embedded.store.sqlite"
# Who names the durable store, and why: all others of the embedded engine know `Store` alone.
NAMES_SQLITE: dict[str, str] = {
    "hourglass._embedded.store.memory": "lists of what is kept in memory are made by the same index",
    "hourglass._embedded.multiprocess.connection": "the door: files are SQLite's unless another opener is given",
}


def _ours() -> list[source.Import]:
    return [each for each in source.imports() if source.top(each.target) == "hourglass"]


def test_every_part_has_a_rank() -> None:
    """A new package below `hourglass` must find its place in the ranks."""
    parts = {each.part for each in source.modules()} - {""}
    assert parts <= set(RANK), f"no rank: {parts - set(RANK)}"


def test_the_table_in_the_architecture_is_this_one() -> None:
    """ARCHITECTURE.md's map has each part at its rank, highest first."""
    page = (source.ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"(?m)^\| (\d+) \| (`[^|]*`) \|", page)
    told = {int(rank): frozenset(re.findall(r"`(\w+)`", parts)) for rank, parts in rows}
    assert told == dict(enumerate(RANKS, 1))
    assert list(told) == sorted(told, reverse=True)


def test_the_first_page_has_the_same_ranks() -> None:
    """The root's docstring has every part on its map, and the ranks in one line."""
    (root,) = [each for each in source.modules() if each.name == "hourglass"]
    page = ast.get_docstring(root.tree) or ""
    line = page[page.index("{errors,") :].partition("\n\n")[0]
    told = [frozenset(re.findall(r"\w+", rank)) for rank in line.split("<")]
    assert told == [ranks for ranks in RANKS if ranks != {"__main__"}]
    assert set(re.findall(r"(?m)^    (\w+)  ", page)) == set(RANK) - {"__main__"}


def test_imports_go_down() -> None:
    """A module imports its own part and lower ranks; imports in functions, by name and for types count."""
    wrong = [
        str(each)
        for each in _ours()
        if each.importer.part
        and (part := source.part_of(each.target)) != each.importer.part
        and (not part or RANK[part] >= RANK[each.importer.part])
        and (each.importer.name, each.target) not in EXCEPTIONS
    ]
    assert not wrong, "\n".join(wrong)


def test_the_floors_of_the_embedded_engine() -> None:
    """Each of its packages imports only those below it, and every module is in one of them."""

    def floor(name: str) -> int:
        return EMBEDDED.index(name.split(".")[2])

    inside = [
        each
        for each in _ours()
        if each.importer.name.startswith("hourglass._embedded.")
        and each.target.startswith("hourglass._embedded.")
    ]
    wrong = [str(each) for each in inside if floor(each.target) > floor(each.importer.name)]
    assert inside
    assert not wrong, "\n".join(wrong)


def test_the_engine_knows_no_kind_of_store() -> None:
    """Only those who choose the durable store import it; neither rules nor engine nor workers speak of SQLite at all."""
    users = {
        each.importer.name
        for each in _ours()
        if each.target.startswith(STORE_OF_SQLITE)
        and each.importer.name.startswith("hourglass._embedded.")
        and not each.importer.name.startswith(STORE_OF_SQLITE)
    }
    assert users == set(NAMES_SQLITE)
    wrong = [
        each.name
        for each in source.modules()
        if each.name.startswith("hourglass._embedded.")
        and not each.name.startswith(STORE_OF_SQLITE)
        and each.name not in NAMES_SQLITE
        and each.path.name != "__init__.py"  # a map names its rooms
        and "sqlite" in each.path.read_text().lower()
    ]
    assert not wrong, wrong


def test_no_exception_is_stale() -> None:
    """Every declared exception is still needed, and says why."""
    made = {(each.importer.name, each.target) for each in _ours()}
    assert set(EXCEPTIONS) <= made
    assert all(EXCEPTIONS.values())


def test_no_import_cycle() -> None:
    """Within a part, too, no module needs itself: but for what only type checkers read."""
    cycle = _find_cycle(_runtime_graph())
    assert cycle is None, " -> ".join(cycle or ())


@pytest.mark.parametrize("package", DOORS)
def test_doors(package: str) -> None:
    """Each foreign library that must stay apart is imported behind one door only, and is imported there."""
    users = {
        each.importer.place
        for each in source.imports()
        if each.target == package or each.target.startswith(f"{package}.")
    }
    assert users, f"nobody imports {package}: take it off the list"
    assert all(place.startswith(DOORS[package]) for place in users), users


def _runtime_graph() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for each in source.modules():
        lines = _type_checking_lines(each) | _function_lines(each)
        graph[each.name] = {
            found.target
            for found in source.imports_of(each)
            if found.line not in lines and source.top(found.target) == "hourglass"
        }
    return graph


def _type_checking_lines(module: source.Module) -> set[int]:
    return source.lines_within(module, source.is_type_checking_block)


def _function_lines(module: source.Module) -> set[int]:
    return source.lines_within(module, source.is_function)


def _find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for target in sorted(graph.get(name, ())):
            if cycle := walk(target, [*path, name]):
                return cycle
        done.add(name)
        return None

    return next((cycle for name in sorted(graph) if (cycle := walk(name, []))), None)
