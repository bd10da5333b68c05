"""The evaluator is pure, imports are light, and data is never executed as code."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache

import pytest

from . import source

# Modules with side effects, which `_evaluator` must not import.
IMPURE = frozenset(
    (
        "asyncio",
        "concurrent",
        "io",
        "logging",
        "os",
        "queue",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "time",
        "uuid",
        "temporalio",
        "google",
        "uvloop",
        "urllib",
        "http",
        "multiprocessing",
    )
)
# Files that may import asyncio, for tasks that the run's scheduler executes. They reject I/O.
ALLOWED = {
    "_evaluator/awaited.py": {"asyncio"},
    "_evaluator/event_loop.py": {"asyncio"},
    # It wraps functions that start threads.
    "_evaluator/thread_guard.py": {"asyncio", "concurrent", "logging"},
}
# Calls that read a clock, randomness, files or the terminal through modules and names that are allowed.
IMPURE_CALLS = frozenset(
    (
        "open",
        "print",
        "input",
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
        "random.random",
        "random.randint",
        "random.choice",
        "random.shuffle",
        "random.seed",
        "random.getrandbits",
        "random.uniform",
        "random.sample",
        "random.randbytes",
    )
)
IMPURE_METHODS = frozenset(
    (
        "read_text",
        "read_bytes",
        "write_text",
        "write_bytes",
        "mkdir",
        "unlink",
        "touch",
        "iterdir",
        "exists",
    )
)

# Modules and builtins that turn data into code.
UNSAFE_MODULES = frozenset(
    (
        "pickle",
        "marshal",
        "shelve",
        "dill",
        "cloudpickle",
        "jsonpickle",
        "runpy",
        "code",
        "imp",
    )
)
UNSAFE_CALLS = frozenset(("eval", "exec", "compile", "__import__"))

# Files that may import modules by computed names, each with the source of the names.
IMPORTS_BY_NAME = {
    "__init__.py": "a constant table of our own names",
    "_tools/cli/app.py": "a constant table of our own names",
    "aio/__init__.py": "a constant table of our own names",
    "_tools/cli/port.py": "a constant table of our own names",
    "_tools/cli/loading.py": "modules named on the command line, and those below them",
    "_worker/activities/process_names.py": "modules of functions that the parent process resolved",
    "_worker/resolver.py": "modules that the user passed to the worker",
    "_tools/web/replay_child.py": "modules that the parent process has loaded, as named on the command line",
    "testing/__init__.py": "a constant table of our own names",
}


def _engine() -> list[source.Module]:
    return [module for module in source.modules() if module.part == "_evaluator"]


def _called(node: ast.Call) -> str:
    """Return the name that a call uses, as written: `open`, `datetime.now`; empty if it is not a name."""
    match node.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
        case ast.Attribute(attr=name):
            return f".{name}"
    return ""


@cache
def _calls(module: source.Module) -> list[tuple[str, str]]:
    """Return every call in a module, with its location."""
    return [
        (_called(node), f"{module.place}:{node.lineno}")
        for node in module.nodes
        if isinstance(node, ast.Call)
    ]


@pytest.mark.parametrize("module", _engine(), ids=lambda module: module.place)
def test_evaluator_imports_no_impure_module(module: source.Module) -> None:
    """Imports inside functions count."""
    impure = IMPURE - ALLOWED.get(module.place, frozenset())
    found = [str(imported) for imported in source.imports_of(module) if source.top(imported.target) in impure]
    assert not found


@pytest.mark.parametrize("module", _engine(), ids=lambda module: module.place)
def test_evaluator_calls_no_clock_file_or_shared_randomness(module: source.Module) -> None:
    found = [
        (call, place)
        for call, place in _calls(module)
        if call in IMPURE_CALLS or call.rpartition(".")[2] in IMPURE_METHODS
    ]
    assert not found


def test_evaluator_loads_no_impure_module_indirectly() -> None:
    loaded = _loaded_by("hourglass._evaluator.evaluator")
    assert "greenlet" in loaded
    assert not loaded & {"asyncio", "socket", "ssl", "temporalio", "google.protobuf", "logging"}


def test_import_of_hourglass_loads_neither_asyncio_nor_temporal() -> None:
    loaded = _loaded_by("hourglass")
    assert "hourglass" in loaded
    assert not {name for name in loaded if source.top(name) in ("temporalio", "google", "asyncio", "msgspec")}
    assert not {name for name in loaded if name.startswith("hourglass.")}


def test_client_and_worker_do_not_load_temporal_libraries() -> None:
    loaded = _loaded_by("hourglass.client", "hourglass.worker", "hourglass.replay", "hourglass.testing")
    assert {"hourglass.client", "hourglass.worker"} <= loaded
    assert not {name for name in loaded if source.top(name) in ("temporalio", "google")}


def test_source_uses_neither_pickle_nor_eval() -> None:
    imported = [str(item) for item in source.imports() if source.top(item.target) in UNSAFE_MODULES]
    called = [
        (call, place) for module in source.modules() for call, place in _calls(module) if call in UNSAFE_CALLS
    ]
    assert not imported
    assert not called


def test_imports_by_computed_name_are_declared() -> None:
    users = {
        module.place
        for module in source.modules()
        for node in module.nodes
        if isinstance(node, ast.Call)
        and _called(node).rpartition(".")[2] == "import_module"
        and not isinstance(node.args[0], ast.Constant)
    }
    assert users == set(IMPORTS_BY_NAME)


def _loaded_by(*names: str) -> set[str]:
    """Return the modules that a new interpreter loads for these imports."""
    before = "import sys; before = set(sys.modules); "
    after = f"import {', '.join(names)}; print(*sorted(set(sys.modules) - before), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", before + after], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


FLAGS = {
    "_evaluator/behaviour.py": "the table",
    "_evaluator/context.py": "evaluates the table for the flags of a history",
    "_evaluator/evaluator.py": "records which SDK began the run",
    "replay/_foreign_walk.py": "creates activations of a foreign history",
}


def test_behaviour_flags_are_used_only_in_listed_files() -> None:
    """Differences by SDK or recorded flags are rows of one table (I9)."""
    users = {
        module.place
        for module in source.modules()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Flag"
    }
    assert users == set(FLAGS)


CLOCKS_BY_MODULE = {
    "_worker/lanes/forbidden_calls.py": "a table of the functions that workflow code must not call",
    "_worker/health/stopping.py": "a clock that some systems lack",
    "contrib/_agents.py": "a stand-in for the module itself",
}


def test_clock_functions_are_imported_by_name() -> None:
    """A user's test that patches `time.sleep`, `time.monotonic` or `asyncio.sleep` must not change our own waits."""
    modules = [module for module in source.modules() if module.place not in CLOCKS_BY_MODULE]
    module_imports = [
        f"{module.place}:{node.lineno} imports time, not its functions"
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names)
    ]
    calls = [place for module in modules for call, place in _calls(module) if call == "asyncio.sleep"]
    assert not module_imports + calls
