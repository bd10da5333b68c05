"""Imports only go down the layers, and foreign libraries are imported only in the listed files."""

from __future__ import annotations

import ast
import re

import pytest

from . import source

LAYERS: dict[str, frozenset[str]] = {
    "base": frozenset({"errors", "converter", "metrics", "_forks", "_logs", "_loops", "_http"}),
    "model": frozenset({"_evaluator", "_history", "_contract", "activity", "workflow", "nexus"}),
    "engines": frozenset({"_embedded", "_temporal"}),
    "worker": frozenset({"_worker", "_supervision"}),
    "public": frozenset(
        {
            *("client", "worker", "replay", "testing", "limits", "progress", "interceptors", "envconfig"),
            "_built_in",
        }
    ),
    "tools": frozenset({"_tools", "aio", "contrib", "plugins", "__main__"}),
}
"""The parts of each layer, lowest layer first."""

LAYER = {part: number for number, parts in enumerate(LAYERS.values()) for part in parts}

LEVELS: dict[str, tuple[frozenset[str], ...]] = {
    "_embedded": (
        frozenset({"clock"}),
        frozenset({"transitions", "schedules.calendars", "schedules.times", "schedules.transitions"}),
        frozenset({"store"}),
        frozenset({"matching", "runs", "schedules", "limits"}),
        frozenset({"engine"}),
        frozenset({"activations"}),
        frozenset({"api"}),
        frozenset({"multiprocess"}),
    ),
    "_worker": (
        frozenset(
            {
                *(
                    "portal",
                    "mailbox",
                    "activity_metrics",
                    "daemon_executor",
                    "targets",
                    "stop_event",
                    "cpus",
                    "interpreter",
                ),
                *("resolver", "code_origin", "work_log"),
            }
        ),
        frozenset({"handles", "health"}),
        frozenset({"lanes"}),
        frozenset({"activities"}),
        frozenset({"tree"}),
    ),
    "_tools": (
        frozenset({"lint", "timeline"}),
        frozenset({"diagnosis"}),
        frozenset({"web"}),
        frozenset({"cli"}),
    ),
}
"""The levels inside large parts, lowest first: packages and modules, by their path below the part."""

# Importer and imported module, and why the import may go up or sideways.
EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "hourglass._worker.targets",
        "hourglass.envconfig",
    ): "a profile of Temporal's configuration is read by its public class",
    (
        "hourglass.client._operations",
        "hourglass.replay",
    ): "handle.history() creates a history, imported when it is called",
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
    ): "a handle has a notebook representation on request",
    (
        "hourglass.client._plugins",
        "hourglass.worker",
    ): "the worker that a plugin receives, for type checkers only",
    (
        "hourglass.client._async",
        "hourglass.replay",
    ): "the type of an imported history, for type checkers only",
    (
        "hourglass.client._blocking",
        "hourglass.replay",
    ): "the type of an imported history, for type checkers only",
}

# Foreign libraries, each with the only packages or files that may import it.
DOORS: dict[str, tuple[str, ...]] = {
    "temporalio": ("_temporal/",),
    "temporalio.bridge.temporal_sdk_bridge": ("_temporal/core.py",),
    "google": (
        "_temporal/",
        "converter/_hints.py",
    ),  # the latter for protobuf messages that users pass as arguments
    "greenlet": ("_evaluator/fibers.py",),
    "typer": ("_tools/cli/",),
    "rich": ("_tools/cli/",),
    "opentelemetry": ("contrib/opentelemetry/",),
    "sqlalchemy": ("contrib/sqlalchemy/",),
    "pydantic_ai": ("contrib/pydantic_ai/",),
    "agents": ("contrib/openai_agents/",),
    "uvloop": ("_worker/portal.py", "replay/_session.py"),
    "sqlite3": ("_embedded/store/sqlite/", "_tools/cli/doctor.py"),  # the latter for the version of SQLite
}

SQLITE_STORE = "hourglass._embedded.store.sqlite"
# Modules that may name the SQLite store, and why: the rest of the embedded engine depends only on `Store`.
NAMES_SQLITE: dict[str, str] = {
    "hourglass._embedded.store.memory": "filters lists of the memory store by the same index",
    "hourglass._embedded.multiprocess.connection": "opens files with SQLite unless another opener is configured",
}


def _ours() -> list[source.Import]:
    return [imported for imported in source.imports() if source.top(imported.target) == "hourglass"]


def _level(module: str) -> int:
    """Return the level of a module inside its part: the longest path in `LEVELS` that contains it."""
    _, part, *path = module.split(".")
    for length in range(len(path), 0, -1):
        name = ".".join(path[:length])
        for number, names in enumerate(LEVELS[part]):
            if name in names:
                return number
    raise LookupError(f"{module} is on no level of {part}")


def test_every_package_has_a_layer() -> None:
    parts = {module.part for module in source.modules()} - {""}
    assert parts <= set(LAYER), f"no layer: {parts - set(LAYER)}"


def test_architecture_page_lists_the_layers() -> None:
    page = (source.ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"(?m)^\| (\d+) (\w+) \| (`[^|]*`) \|", page)
    listed = {name: frozenset(re.findall(r"`(\w+)`", parts)) for _, name, parts in rows}
    assert listed == LAYERS
    assert [name for _, name, _ in rows] == list(reversed(LAYERS))


def test_root_docstring_lists_the_layers() -> None:
    root = source.module("__init__.py")
    page = ast.get_docstring(root.tree) or ""
    rows = re.findall(r"(?m)^    \d  (\w+) +(\w.*)$", page)
    assert {name: frozenset(parts.split()) for name, parts in rows} == LAYERS
    assert set(re.findall(r"(?m)^    (\w+)  +\S", page)) >= set(LAYER) - {"__main__"}


def test_imports_go_down_the_layers() -> None:
    """Imports in functions, imports by name and those for type checkers count."""
    wrong = [
        str(imported)
        for imported in _ours()
        if imported.importer.part
        and (part := source.part_of(imported.target)) != imported.importer.part
        and (not part or LAYER[part] > LAYER[imported.importer.part])
        and (imported.importer.name, imported.target) not in EXCEPTIONS
    ]
    assert not wrong, "\n".join(wrong)


def test_parts_of_a_layer_have_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for imported in _ours():
        importer, target = imported.importer.part, source.part_of(imported.target)
        if (imported.importer.name, imported.target) in EXCEPTIONS or not importer or importer == target:
            continue
        graph.setdefault(importer, set()).add(target)
    cycle = _find_cycle(graph)
    assert cycle is None, " -> ".join(cycle or ())


@pytest.mark.parametrize("part", LEVELS)
def test_imports_inside_a_large_package_go_down_its_levels(part: str) -> None:
    prefix = f"hourglass.{part}."
    inside = [
        imported
        for imported in _ours()
        if imported.importer.name.startswith(prefix) and imported.target.startswith(prefix)
    ]
    wrong = [str(imported) for imported in inside if _level(imported.target) > _level(imported.importer.name)]
    assert inside
    assert not wrong, "\n".join(wrong)


def test_embedded_engine_depends_on_sqlite_only_in_listed_modules() -> None:
    users = {
        imported.importer.name
        for imported in _ours()
        if imported.target.startswith(SQLITE_STORE)
        and imported.importer.name.startswith("hourglass._embedded.")
        and not imported.importer.name.startswith(SQLITE_STORE)
    }
    assert users == set(NAMES_SQLITE)
    wrong = [
        module.name
        for module in source.modules()
        if module.name.startswith("hourglass._embedded.")
        and not module.name.startswith(SQLITE_STORE)
        and module.name not in NAMES_SQLITE
        and module.path.name != "__init__.py"  # its docstring lists the modules
        and "sqlite" in module.path.read_text().lower()
    ]
    assert not wrong, wrong


def test_every_declared_layer_exception_is_needed() -> None:
    actual = {(imported.importer.name, imported.target) for imported in _ours()}
    assert set(EXCEPTIONS) <= actual
    assert all(EXCEPTIONS.values())


def test_modules_have_no_import_cycle_at_runtime() -> None:
    cycle = _find_cycle(_runtime_graph())
    assert cycle is None, " -> ".join(cycle or ())


@pytest.mark.parametrize("package", DOORS)
def test_foreign_library_is_imported_only_in_its_listed_files(package: str) -> None:
    users = {
        imported.importer.place
        for imported in source.imports()
        if imported.target == package or imported.target.startswith(f"{package}.")
    }
    assert users, f"no module imports {package}: remove it from the list"
    assert all(place.startswith(DOORS[package]) for place in users), users


def _runtime_graph() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for module in source.modules():
        lines = _type_checking_lines(module) | _function_lines(module)
        graph[module.name] = {
            found.target
            for found in source.imports_of(module)
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
