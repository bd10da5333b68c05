"""The generator of the reference from the docstrings, as readable Markdown: `make reference`.

A page of `docs/reference` has its own words first; what follows the mark is written here, for the module or the name in it:
every public name with its signature, its docstring and, for a class, its fields and methods.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
MARK = re.compile(r"^<!-- written by `make reference`: (?P<name>[\w.]+) -->\n", re.MULTILINE)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page that has a mark, with its expected text."""
    for page in sorted(FOLDER.glob("*.md")):
        if MARK.search(page.read_text()):
            yield page, expected(page)


def expected(page: Path) -> str:
    """Return the text that a page with a mark should have."""
    text = page.read_text()
    found = MARK.search(text)
    assert found is not None, f"{page} has no mark: `make reference` does not write it"
    return text[: found.end()] + "\n" + "\n".join(_section(found["name"])).rstrip("\n") + "\n"


def _section(name: str) -> Iterator[str]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        yield from _entry(last, getattr(importlib.import_module(parent), last))
        return
    for name in sorted(module.__all__, key=str.casefold):
        yield from _entry(name, getattr(module, name))


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if inspect.isclass(value):
        yield from _class(name, value)
    elif callable(value) and not isinstance(value, type(typing.Any)) and _signatures(name, value):
        yield _block(_signatures(name, value))
        yield from _words(value)
    elif inspect.ismodule(value):
        yield from _words(value)
    else:
        yield f"`{_plain(repr(value))}`\n"


def _class(name: str, value: type) -> Iterator[str]:
    bases = [base.__name__ for base in value.__bases__ if base is not object and base.__name__ != "Generic"]
    own = "" if issubclass(value, enum.Enum) or typing.is_typeddict(value) else _signature(name, value)
    yield _block([f"class {own or name}" + (f"  # {', '.join(bases)}" if bases else "")])
    yield from _words(value)
    if issubclass(value, enum.Enum):
        yield "".join(f"- `{member.name}`\n" for member in value)
        return
    members = list(_members(value))
    if members:
        yield "\n".join(members) + "\n"


def _members(value: type) -> Iterator[str]:
    if typing.is_typeddict(value):
        for name, kind in value.__annotations__.items():
            yield f"- `{name}: {_plain(getattr(kind, '__forward_arg__', str(kind)))}`"
        return
    fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    for name in sorted(dir(value)):
        if name.startswith("_") or name in fields:
            continue
        member = inspect.getattr_static(value, name)
        if isinstance(member, property):
            yield f"- `{name}`: {_first(member)}"
            continue
        found = getattr(member, "__func__", member)
        if inspect.isfunction(found) and found.__module__.partition(".")[0] == "hourglass":
            for signature in _signatures(name, found):
                yield f"- `{signature}`"
            yield f"  {_first(found)}"


def _signatures(name: str, value: Any) -> list[str]:
    found = getattr(value, "__func__", value)
    try:
        written = typing.get_overloads(found)
    except AttributeError:  # not a function
        written = []
    signatures = (_signature(name, function) for function in written or [value])
    return [signature for signature in signatures if signature]


def _signature(name: str, value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [
        parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")
    ]
    return name + _plain(str(signature.replace(parameters=parameters)))


def _plain(text: str) -> str:
    """Remove the quotes of annotations, and addresses."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    text = re.sub(r"<([\w.]+)[^<>]* at 0x[0-9a-f]+>", r"\1", text)
    return re.sub(r"<(\w+\.\w+): [^<>]+>", r"\1", text)


def _words(value: Any) -> Iterator[str]:
    docstring = inspect.getdoc(value)
    if docstring and docstring != inspect.getdoc(object):
        yield re.sub(r"^( {4,}.*)$", r"\1", docstring, flags=re.MULTILINE) + "\n"


def _first(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def _block(lines: list[str]) -> str:
    return "```text\n" + "\n".join(lines) + "\n```\n"


if __name__ == "__main__":
    for page, text in pages():
        page.write_text(text)
