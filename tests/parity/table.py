"""temporalio's public names, as the installed version has them, beside their counterparts here.

Most counterparts are found by name (`found_by_name`). `names.toml` has the others: `"workflow.uuid7"`, a counterpart, which
must exist; `"-sandbox"`, left out on purpose; `"?nexus"`, not here yet. The last two name a reason of `[reasons]`. `make names`
writes the table in docs/comparison.md and the list in docs/from-temporalio.md from them; `test_names.py` compares all with
what exists.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import tomllib
import typing
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
TABLE: dict[str, Any] = tomllib.loads((HERE / "names.toml").read_text())
REASONS: dict[str, str] = TABLE["reasons"]
ROWS: dict[str, dict[str, str]] = {
    name: found for name, found in TABLE.items() if name.startswith("temporalio.")
}
"""The counterparts that are not found by name."""
PACKAGES: dict[str, str] = TABLE["packages"]
"""Packages that are spoken of as a whole."""

# --- what temporalio has ----------------------------------------------------------------------------------------------


def public_modules() -> Iterator[str]:
    """Every module that temporalio's users may import, but for the inside of those that are spoken of as a whole."""
    import temporalio

    todo = [("temporalio", temporalio.__path__)]
    while todo:
        parent, path = todo.pop()
        for found in pkgutil.iter_modules(path, f"{parent}."):
            if found.name.rpartition(".")[2].startswith("_"):
                continue
            if found.name not in PACKAGES and found.ispkg:
                todo.append((found.name, importlib.import_module(found.name).__path__))
            if found.name in PACKAGES or names_of(found.name):
                yield found.name


def names_of(section: str) -> list[str]:
    """The public names of a module, with the members and options of those that the table asks for."""
    module = importlib.import_module(section)
    found: list[str] = []
    for name in _exported(module):
        thing = getattr(module, name)
        home = _home(thing, section)
        if _is_typing(name, thing) or (home != section and home in ROWS):
            continue
        found.append(name)
        if f"{section}.{name}" in TABLE["walk"]["members"]:
            found += [f"{name}.{each}" for each in _members(thing)]
    for callee in TABLE["walk"]["options"]:
        if callee.startswith(f"{section}.") and callee.removeprefix(f"{section}.").partition(".")[0] in found:
            name = callee.removeprefix(f"{section}.")
            found += [f"{name}({each})" for each in options(_reach(module, name))]
    return found


def _exported(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [name for name, thing in vars(module).items() if _home(thing, "") == module.__name__]
    return sorted(name for name in listed if not name.startswith("_"))


def _is_typing(name: str, thing: object) -> bool:
    """Whether a name only serves its own signatures."""
    return isinstance(thing, typing.TypeVar | typing.ParamSpec) or hasattr(
        importlib.import_module("temporalio.types"), name
    )


def _home(thing: object, otherwise: str) -> str:
    """The public module that a thing belongs to: others that export it too do not count."""
    defined = getattr(thing, "__module__", None) or otherwise
    parts = defined.split(".")
    while parts and (parts[-1].startswith("_")):
        parts.pop()
    return ".".join(parts) if defined.startswith("temporalio.") else otherwise


def _members(thing: type) -> list[str]:
    own = [each for each in thing.__mro__ if each.__module__.startswith("temporalio")]
    names = {name for each in own for name in (*vars(each), *vars(each).get("__annotations__", {}))}
    return sorted(name for name in names if not name.startswith("_"))


def options(callee: Any) -> list[str]:
    """What a function, a class or a dictionary of options can be given."""
    if isinstance(callee, type) and typing.is_typeddict(callee):
        return sorted(typing.get_type_hints(callee))
    return [name for name in inspect.signature(callee).parameters if name != "self"]


# --- what is here -----------------------------------------------------------------------------------------------------


def exists(path: str) -> bool:
    """Whether `workflow.uuid7`, `Client.connect`, `client.TLSConfig.domain` or `Worker(lanes)` is something of hourglass."""
    callee, _, option = path.removesuffix(")").partition("(")
    try:
        found = _reach(importlib.import_module("hourglass"), callee)
    except LookupError:
        return False
    return not option or option in options(found)


def _reach(start: Any, path: str) -> Any:
    found = start
    for name in path.split("."):
        if isinstance(found, ModuleType) and not hasattr(found, name):
            try:
                found = importlib.import_module(f"{found.__name__}.{name}")
            except ModuleNotFoundError:
                raise LookupError(path) from None
        elif hasattr(found, name):
            found = getattr(found, name)
        elif name in _fields(found):
            found = None
        else:
            raise LookupError(path)
    return found


def _fields(thing: Any) -> set[str]:
    if dataclasses.is_dataclass(thing):
        return {each.name for each in dataclasses.fields(thing)}
    found = {name for each in getattr(thing, "__mro__", ()) for name in getattr(each, "__annotations__", {})}
    return found.union(*(getattr(each, "__slots__", ()) for each in getattr(thing, "__mro__", ())))


# --- the counterparts -------------------------------------------------------------------------------------------------


def counterpart(section: str, name: str) -> str:
    """The counterpart of a name of temporalio, or why it has none: from its row, or found by name; "" if there is neither."""
    return ROWS[section].get(name) or found_by_name(section, name)


def found_by_name(section: str, name: str) -> str:
    """The thing of the same name: of a member or an option in the counterpart of its owner, else in the module of the same
    name, or in one of `places`. What belongs to a name that was left out is left out for the same reason.
    """
    owner, dot, member = name.rpartition(".")
    callee, bracket, option = name.partition("(")
    if bracket or dot:
        base = counterpart(section, callee if bracket else owner)
        if not base or base[0] in "-?":
            return base
        candidates = [f"{base}({option}" if bracket else f"{base}.{member}"]
    else:
        modules = [section.removeprefix("temporalio."), *TABLE["walk"]["places"]]
        candidates = [f"{module}.{name}" for module in modules]
    return next((path for path in candidates if exists(path)), "")


@cache
def sections() -> dict[str, dict[str, str]]:
    """Every name of the installed temporalio with its counterpart, by module."""
    return {section: {name: counterpart(section, name) for name in names_of(section)} for section in ROWS}


def same_name(section: str, name: str) -> bool:
    """Whether `hourglass.aio` has it under temporalio's own name. A parameter may be there only to be refused by its name."""
    if counterpart(section, name)[0] == "-" or f"{section}.{name}" in TABLE["walk"]["refused"]:
        return False
    return exists(f"aio.{section.removeprefix('temporalio.')}.{name}")


# --- the pages --------------------------------------------------------------------------------------------------------


def counterparts() -> str:
    """For docs/from-temporalio.md: every name with its counterpart, or why there is none."""
    lines = [
        f"Each public name of temporalio {TABLE['walk']['version']} with its counterpart; options are in parentheses.",
        "The third column says whether `hourglass.aio` has the same name. The list is generated from the installed",
        "`temporalio`.",
    ]
    for section, names in sections().items():
        lines += ["", f"### {section}", "", f"| {section} | here | in `hourglass.aio` |", "|---|---|---|"]
        lines += [
            f"| `{name}` | {_said(found)} | {'yes' if same_name(section, name) else ''} |"
            for name, found in names.items()
        ]
    lines += ["", "### Packages", "", "| package | here |", "|---|---|"]
    lines += [f"| `{name}` | {_said(found)} |" for name, found in PACKAGES.items()]
    return "\n".join(lines)


def _said(found: str) -> str:
    if found[0] == "-":
        return f"left out: {REASONS[found[1:]]}"
    return f"not yet: {REASONS[found[1:]]}" if found[0] == "?" else f"`{found}`"


def features() -> str:
    """For docs/comparison.md: how many names are here, and what is not, by reason."""
    lines = [
        "The number of `temporalio`'s names that exist here, counted in the installed version;",
        "[From temporalio](from-temporalio.md#every-name) has each name with its counterpart.",
        "",
        f"| temporalio {TABLE['walk']['version']} | names | here | same name in `hourglass.aio` | not yet | left out |",
        "|---|---|---|---|---|---|",
    ]
    total = [0] * 5
    for section, names in sections().items():
        kinds = [found[0] for found in names.values()]
        left, open_ = kinds.count("-"), kinds.count("?")
        same = sum(same_name(section, name) for name in names)
        row = [len(kinds), len(kinds) - left - open_, same, open_, left]
        total = [one + more for one, more in zip(total, row, strict=True)]
        lines.append(f"| `{section}` | {' | '.join(map(str, row))} |")
    lines.append(f"| all | {' | '.join(map(str, total))} |")
    for title, kind in (("Left out on purpose", "-"), ("Not here yet", "?")):
        lines += ["", f"{title}:", "", "| what | names |", "|---|---|"]
        for reason, text in REASONS.items():
            if which := sorted(
                {_short(s, n) for s, names in _all() for n, found in names.items() if found == kind + reason}
            ):
                lines.append(f"| {text} | {', '.join(which)} |")
    return "\n".join(lines)


def _all() -> list[tuple[str, dict[str, str]]]:
    return [*sections().items(), ("", PACKAGES)]


def _short(section: str, name: str) -> str:
    return (
        f"`{name.removeprefix('temporalio.')}`"
        if not section
        else f"`{section.removeprefix('temporalio.')}.{name}`"
    )


PAGES = {
    "from-temporalio.md": ("## Every name\n", None, counterparts),
    "comparison.md": ("### Name by name\n", "## DBOS\n", features),
}
"""Of each page, what is made: from this heading to that one."""


def page(name: str) -> str:
    """The page as it should be, its made part made anew."""
    first, last, make = PAGES[name]
    before, _, rest = (DOCS / name).read_text().partition(first)
    after = "" if last is None else f"\n{last}{rest.partition(last)[2]}"
    return f"{before}{first}\n{make()}\n{after}"


def installed() -> tuple[int, ...]:
    """The version of temporalio that is installed."""
    return tuple(int(part) for part in version("temporalio").split(".")[:2])


def tabled() -> tuple[int, ...]:
    """The version of temporalio that the table was written for."""
    return tuple(int(part) for part in TABLE["walk"]["version"].split("."))


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(page(name))
        print(f"docs/{name}")
