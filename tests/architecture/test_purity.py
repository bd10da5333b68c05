"""The engine decides and does nothing else; nothing anywhere runs code that data names."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache

import pytest

from . import source

# What would let the outside world into `_evaluator`.
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
# Who may know asyncio: as tasks, which the run's scheduler runs. What reaches outside is refused there.
ALLOWED = {
    "_evaluator/awaited.py": {"asyncio"},
    "_evaluator/event_loop.py": {"asyncio"},
    # It wraps what starts threads, and looks for the files of the others.
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

# Who may import a module by a name that is not written there, and what keeps the wire's names out.
IMPORTS_BY_NAME = {
    "__init__.py": "a constant table of our own names",
    "_tools/cli/app.py": "a constant table of our own names",
    "aio/__init__.py": "a constant table of our own names",
    "_tools/cli/port.py": "a constant table of our own names",
    "_tools/cli/loading.py": "what the person at the command line named, and the modules below it",
    "_worker/activities/process_names.py": "modules of functions that the parent's resolver has found",
    "_worker/resolver.py": "modules that the user gave to the worker, and nothing outside them",
    "_tools/web/replay_child.py": "modules that the parent has loaded, as the person at the command line named them",
    "testing/__init__.py": "a constant table of our own names",
}


def _engine() -> list[source.Module]:
    return [each for each in source.modules() if each.part == "_evaluator"]


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
def test_engine_imports_nothing_impure(module: source.Module) -> None:
    """No loop, clock, file, socket or log is within the engine's reach, also not in a function."""
    impure = IMPURE - ALLOWED.get(module.place, frozenset())
    found = [str(each) for each in source.imports_of(module) if source.top(each.target) in impure]
    assert not found


@pytest.mark.parametrize("module", _engine(), ids=lambda module: module.place)
def test_engine_calls_nothing_impure(module: source.Module) -> None:
    """No clock is read, no file opened and no shared randomness drawn through what may be imported."""
    found = [
        (call, place)
        for call, place in _calls(module)
        if call in IMPURE_CALLS or call.rpartition(".")[2] in IMPURE_METHODS
    ]
    assert not found


def test_engine_loads_nothing_impure() -> None:
    """Importing the evaluator loads neither asyncio nor sockets nor Temporal, through anybody it imports."""
    loaded = _loaded_by("hourglass._evaluator.evaluator")
    assert "greenlet" in loaded
    assert not loaded & {"asyncio", "socket", "ssl", "temporalio", "google.protobuf", "logging"}


def test_import_of_hourglass_is_lightweight() -> None:
    """`import hourglass` loads neither Temporal's libraries nor asyncio, not even our own engine."""
    loaded = _loaded_by("hourglass")
    assert "hourglass" in loaded
    assert not {name for name in loaded if source.top(name) in ("temporalio", "google", "asyncio", "msgspec")}
    assert not {name for name in loaded if name.startswith("hourglass.")}


def test_client_and_worker_do_not_load_temporal() -> None:
    """All of the public API is importable without Temporal's libraries: they load when they are targeted."""
    loaded = _loaded_by("hourglass.client", "hourglass.worker", "hourglass.replay", "hourglass.testing")
    assert {"hourglass.client", "hourglass.worker"} <= loaded
    assert not {name for name in loaded if source.top(name) in ("temporalio", "google")}


def test_data_is_never_executed_as_code() -> None:
    """No pickle or its like is imported and nothing is evaluated, anywhere."""
    imported = [str(each) for each in source.imports() if source.top(each.target) in UNSAFE_MODULES]
    called = [
        (call, place) for each in source.modules() for call, place in _calls(each) if call in UNSAFE_CALLS
    ]
    assert not imported
    assert not called


def test_dynamic_imports_are_declared() -> None:
    """A module's name is computed in those files only where it cannot come from the wire."""
    users = {
        each.place
        for each in source.modules()
        for node in each.nodes
        if isinstance(node, ast.Call)
        and _called(node).rpartition(".")[2] == "import_module"
        and not isinstance(node.args[0], ast.Constant)
    }
    assert users == set(IMPORTS_BY_NAME)


def _loaded_by(*names: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after importing these."""
    before = "import sys; before = set(sys.modules); "
    after = f"import {', '.join(names)}; print(*sorted(set(sys.modules) - before), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", before + after], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


FLAGS = {
    "_evaluator/behaviour.py": "the table",
    "_evaluator/context.py": "asks it, by what the history has recorded",
    "_evaluator/evaluator.py": "says whose run it is",
    "replay/_foreign_walk.py": "makes activations of a foreign history",
}


def test_behaviour_differences_are_in_one_table() -> None:
    """Every difference that depends on the SDK that began a run, or on the flags in its history, is a row of
    one table (I9).
    """
    asking = {
        each.place
        for each in source.modules()
        for node in each.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Flag"
    }
    assert asking == set(FLAGS)


CLOCKS_BY_MODULE = {
    "_worker/lanes/forbidden_calls.py": "a table of the functions that workflow code must not call",
    "_worker/health/stopping.py": "a clock that not every system has",
    "contrib/_agents.py": "a stand-in for the module itself",
}


def test_clock_functions_are_bound_at_import() -> None:
    """Clocks and `sleep` are imported by name: a test of the author's that patches `time.sleep`, `time.monotonic` or
    `asyncio.sleep` changes nothing for our own waits.
    """
    modules = [each for each in source.modules() if each.place not in CLOCKS_BY_MODULE]
    whole = [
        f"{module.place}:{node.lineno} imports time, not its functions"
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names)
    ]
    calls = [place for module in modules for call, place in _calls(module) if call == "asyncio.sleep"]
    assert not whole + calls
