"""`hourglass port`: rewrite the imports of a temporalio program to `hourglass.aio`, as a diff.

The command changes imports, and full names such as `temporalio.client.Client`. Names that do not exist in Hourglass are
listed with their line, for the user to decide. The program is not imported, and files are only changed with `--write`.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hourglass._tools.cli import console
from hourglass.errors import UsageError

_TEMPORALIO, _AIO = "temporalio", "hourglass.aio"
MODULES = (
    "activity",
    "client",
    "common",
    "envconfig",
    "exceptions",
    "service",
    "testing",
    "worker",
    "workflow",
)

REASONS = {
    "api": "Temporal's own messages are not part of Hourglass; handles and histories are plain data",
    "bridge": "only Hourglass uses Core",
    "contrib": "see hourglass.contrib; Hourglass converts pydantic models without another converter",
    "converter": "a Converter and a Codec are plain, synchronous objects: see docs/converter.md",
    "nexus": "services and operations of Nexus are plain functions: see docs/howto/nexus.md",
    "plugin": "a plugin is an object of hourglass.plugins.Plugin: see docs/howto/plugins.md",
    "runtime": "there is one runtime, which hourglass.metrics.set_telemetry configures",
}


def port(
    files: Annotated[list[Path], typer.Argument(metavar="FILE|FOLDER", help="Python files or folders.")],
    write: Annotated[bool, typer.Option("--write", help="Change the files in place.")] = False,
) -> None:
    """Show the changes that port a program from temporalio.

    Prints a diff of its imports, and what you must change by hand.

    \b
    Examples:
      hourglass port app.py
      hourglass port --write src/
    """
    left = changed = seen = 0
    for path in _python_files(files):
        seen += 1
        before = _read(path)
        after, notes = ported(before, str(path))
        left += len(notes)
        for line, note in notes:
            console.note(f"{path}:{line}: {note}")
        if after == before:
            continue
        lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", lineterm=""
        )
        console.write("\n".join(lines))
        changed += 1
        if write:
            path.write_text(after, encoding="utf-8")
    console.note(_summary(seen, changed, write))
    if left:
        raise typer.Exit(1)


def _summary(seen: int, changed: int, write: bool) -> str:
    if not changed:
        return f"nothing to change in {seen} file{'s' * (seen != 1)}"
    count = f"{changed} file{'s' * (changed != 1)}"
    return f"changed {count}" if write else f"{count} would be changed: use --write to change them"


def _python_files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.exists():
            yield path
        else:
            raise UsageError(f"file {path} does not exist")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from None


def ported(source: str, name: str = "<program>") -> tuple[str, list[tuple[int, str]]]:
    """Return the program with changed imports, and the line and reason for each name that could not be changed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{name} is not valid Python for this interpreter: {error}") from None
    places: list[tuple[int, int]] = []  # line and column, in bytes, of each `temporalio` to change
    notes: list[tuple[int, str]] = []
    lines = source.encode().splitlines(keepends=True)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if _is_theirs(module):
                notes += [
                    (node.lineno, reason) for reason in _missing(module, [alias.name for alias in node.names])
                ]
                places.append(
                    (node.lineno, lines[node.lineno - 1].index(_TEMPORALIO.encode(), node.col_offset))
                )
            case ast.Import():
                for alias in node.names:
                    if _is_theirs(alias.name):
                        notes += [(alias.lineno, reason) for reason in _missing(alias.name, [])]
                        places.append((alias.lineno, alias.col_offset))
            case ast.Name(id="temporalio"):
                places.append((node.lineno, node.col_offset))
    for line, column in sorted(set(places), reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:column] + _AIO.encode() + text[column + len(_TEMPORALIO) :]
    return b"".join(lines).decode(), sorted(notes)


def _is_theirs(module: str) -> bool:
    return module == _TEMPORALIO or module.startswith(f"{_TEMPORALIO}.")


def _missing(module: str, names: list[str]) -> Iterator[str]:
    """Yield a message for each name of an import that does not exist in Hourglass."""
    part = module.removeprefix(_TEMPORALIO).removeprefix(".").partition(".")[0]
    if not part:
        for name in names:
            if name not in MODULES:
                yield f"hourglass.aio has no {name}: {REASONS.get(name, 'it has no equivalent')}"
        return
    if part not in MODULES:
        yield f"hourglass.aio has no {part}: {REASONS.get(part, 'it has no equivalent')}"
        return
    counterpart = importlib.import_module(f"{_AIO}.{part}")  # one of our own modules: `part` is in the table
    for name in names:
        if name != "*" and not hasattr(counterpart, name):
            yield f"hourglass.aio.{part} has no {name}"
