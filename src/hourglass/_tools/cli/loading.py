"""The import of a FILE or MODULE from the command line, with decorated workflows and activities.

Loading runs the author's code, and that may be broken. The error message then names the file and line, like a Python
traceback, but without our frames. Only names from the command line are imported, never a name from the network.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from linecache import getline
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from hourglass._evaluator.definition import workflow_definition
from hourglass._tools.timeline.text import near
from hourglass._worker.code_origin import where_raised
from hourglass.activity import activity_definition
from hourglass.errors import UsageError

if TYPE_CHECKING:
    from hourglass.converter import Codec as PayloadCodec


class LoadError(UsageError):
    """A file or module could not be loaded, or contains no workflow and no activity."""


@dataclass(frozen=True)
class LoadedCode:
    """The loaded modules, and the type names of their workflows and activities."""

    modules: tuple[ModuleType, ...]
    workflows: tuple[str, ...]
    activities: tuple[str, ...]


@dataclass(frozen=True)
class _Decorated:
    kind: str
    name: str
    home: str


def load(sources: Sequence[str]) -> LoadedCode:
    """Import all sources. Raise `LoadError`."""
    modules = {source: _load(source) for source in dict.fromkeys(sources)}
    decorated: list[_Decorated] = []
    for source, module in modules.items():
        own = _own(module) or _below(module)
        if not own:
            raise LoadError(_nothing_in(source, module))
        decorated += own
    return LoadedCode(
        tuple(dict.fromkeys(modules.values())),
        tuple(dict.fromkeys(definition.name for definition in decorated if definition.kind == "workflow")),
        tuple(dict.fromkeys(definition.name for definition in decorated if definition.kind == "activity")),
    )


def _load_codec(named: str) -> object:
    """Return the object named by MODULE:OBJECT or FILE:OBJECT. Raise `LoadError` if it cannot be loaded."""
    source, colon, name = named.rpartition(":")
    if not colon or not name.isidentifier() or not source:
        raise LoadError(f"write the codec as MODULE:OBJECT, such as app.secrets:codec, not {named!r}")
    module = _load(source)
    if not hasattr(module, name):
        raise LoadError(f"{source} has no {name!r}")
    value: object = getattr(module, name)
    return value


def codec_named(named: str | None) -> PayloadCodec | None:
    """Return the codec with this name, or else the one that the environment names, or None.

    Raise `UsageError` if it cannot be loaded, or is not a codec.
    """
    chosen = os.environ.get("HOURGLASS_CODEC") if named is None else named
    if not chosen:
        return None
    loaded = _load_codec(chosen)
    made = loaded() if callable(loaded) and not _is_codec(loaded) else loaded
    if not _is_codec(made):
        raise UsageError(
            f"{chosen} is not a codec: pass an object with encode(payloads) and decode(payloads), or a callable that returns "
            "one"
        )
    return made


def _is_codec(candidate: Any) -> TypeGuard[PayloadCodec]:
    named = (getattr(candidate, name, None) for name in ("encode", "decode"))
    return not isinstance(candidate, type) and all(callable(name) for name in named)


def check_sources(sources: Sequence[str]) -> None:
    """Raise `LoadError` for a file or module that does not exist, without importing it."""
    for source in sources:
        path = Path(source)
        if source.endswith(".py") or os.sep in source:
            if not path.exists():
                raise LoadError(f"file {source} does not exist")
        elif not path.is_file() and all(part.isidentifier() for part in source.split(".")):
            _put_first(Path.cwd())
            if importlib.util.find_spec(source.partition(".")[0]) is None:
                raise LoadError(f"module {source!r} was not found; searched from {Path.cwd()}")


def _load(source: str) -> ModuleType:
    path = Path(source)
    if source.endswith(".py") or os.sep in source or path.is_file():
        return _load_file(source, path)
    if not all(part.isidentifier() for part in source.split(".")):
        raise LoadError(f"{source!r} is neither a Python file nor the name of a module")
    _put_first(Path.cwd())
    return _import(source, source)


def _load_file(source: str, path: Path) -> ModuleType:
    path = path.resolve()
    if path.is_dir() and (path / "__init__.py").is_file():
        path = path / "__init__.py"
    if not path.is_file():
        raise LoadError(f"file {source} does not exist")
    root, name = _module_of(path)
    if not all(part.isidentifier() for part in name.split(".")):
        raise LoadError(
            f"{source} cannot be imported, because {name!r} is not a Python identifier: rename the file"
        )
    _put_first(root)
    module = _import(name, source)
    module_file = getattr(module, "__file__", None)
    if module_file is None or not os.path.samefile(module_file, path):
        raise LoadError(
            f"{source} cannot be imported as {name!r}: another module has this name, {module_file or 'built into Python'}. "
            "Rename the file"
        )
    return module


def _module_of(path: Path) -> tuple[Path, str]:
    """Return the import directory and the dotted name of a file. A file in a package is imported as part of the package."""
    segments = [] if path.name == "__init__.py" else [path.stem]
    directory = path.parent
    while (directory / "__init__.py").is_file():
        segments.insert(0, directory.name)
        directory = directory.parent
    return directory, ".".join(segments)


def _put_first(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _import(name: str, source: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise LoadError(f"module {source!r} was not found; searched from {Path.cwd()}") from error
        raise LoadError(_broken(source, error)) from error
    except BaseException as error:  # code at module level may do anything, including `sys.exit`
        raise LoadError(_broken(source, error)) from error


def _broken(source: str, error: BaseException) -> str:
    head = f"{source} cannot be imported"
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{head}\n  {near(error.filename)}:{error.lineno}: {type(error).__name__}: {error.msg}{_pointed(error)}"
    place = where_raised(error)
    if place is None:
        return f"{head}\n  {message}"
    file, line = place
    code = getline(file, line).strip()
    message += f"\n      {code}" if code else ""
    return f"{head}\n  {near(file)}:{line}: {message}{_hint(error)}"


def _hint(error: BaseException) -> str:
    """Return a hint if a name was imported from `hourglass` itself, because most names are in `workflow` and `activity`."""
    match = (
        _MISSING_NAME.match(str(error))
        if isinstance(error, ImportError) and error.name == "hourglass"
        else None
    )
    if match is None:
        return ""
    for home in _HOMES:
        if hasattr(importlib.import_module(home), match[1]):
            return f"\n  it is in {home}: from {home} import {match[1]}"
    return ""


_MISSING_NAME = re.compile(r"cannot import name '(\w+)'")
_HOMES = (
    "hourglass.workflow",
    "hourglass.activity",
    "hourglass.errors",
    "hourglass.client",
    "hourglass.testing",
)


def _pointed(error: SyntaxError) -> str:
    if error.text is None:
        return ""
    code = error.text.rstrip()
    lost = len(code) - len(code.lstrip())
    if error.offset is None or error.offset <= lost:
        return f"\n      {code.lstrip()}"
    return f"\n      {code.lstrip()}\n      {' ' * (error.offset - 1 - lost)}^"


def _decorated(module: ModuleType) -> Iterator[_Decorated]:
    for value in list(vars(module).values()):
        try:
            flow, act = workflow_definition(value), activity_definition(value)
            home = str(getattr(value, "__module__", ""))
        except Exception:
            continue  # proxies may raise anything on attribute access
        if flow is not None:
            yield _Decorated("workflow", flow.name, home)
        if act is not None:
            yield _Decorated("activity", act.name, home)


def _own(module: ModuleType) -> list[_Decorated]:
    """Return the definitions of a module and its submodules, as the worker finds them, without imported definitions."""
    name = module.__name__
    return [
        definition
        for definition in _decorated(module)
        if definition.home == name or definition.home.startswith(f"{name}.")
    ]


def _below(module: ModuleType) -> list[_Decorated]:
    """Return the definitions of a package's submodules. The package itself does not import them."""
    return [definition for name in _submodules(module) for definition in _own(_import(name, name))]


def _nothing_in(source: str, module: ModuleType) -> str:
    message = f"{source} has no workflow and no activity: nothing in it is decorated with @workflow.defn or @activity.defn"
    other_modules = sorted({definition.home for definition in _decorated(module)})
    if other_modules:
        message += f"\n  it imports some from {', '.join(other_modules)}: pass that as well"
    return message


def _submodules(package: ModuleType) -> Iterator[str]:
    for submodule in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
        if not submodule.name.rpartition(".")[2].startswith("__"):
            yield submodule.name  # except __main__, which would run the program
