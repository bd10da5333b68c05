"""The public names of the installed temporalio and their counterparts here.

Most counterparts have the same name (`found_by_name`). `names.toml` lists the others: `"workflow.uuid7"`, a counterpart;
`"-sandbox"`, left out on purpose; `"?nexus"`, not implemented yet. The last two are keys of `[reasons]`. `make names` generates
the table in docs/comparison.md and the list in docs/from-temporalio.md; `test_names.py` checks the table and the pages.
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
"""The counterparts with another name."""
PACKAGES: dict[str, str] = TABLE["packages"]
"""Packages that have one counterpart for all their names."""

# --- temporalio's names ------------------------------------------------------------------------------------------------


def public_modules() -> Iterator[str]:
    """Yield every module that temporalio's users may import, except those inside `PACKAGES`."""
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
    """Return the public names of a module, with the members and options that the table lists."""
    module = importlib.import_module(section)
    found: list[str] = []
    for name in _exported(module):
        value = getattr(module, name)
        home = _home(value, section)
        if _is_typing(name, value) or (home != section and home in ROWS):
            continue
        found.append(name)
        if f"{section}.{name}" in TABLE["walk"]["members"]:
            found += [f"{name}.{member}" for member in _members(value)]
    for callee in TABLE["walk"]["options"]:
        if callee.startswith(f"{section}.") and callee.removeprefix(f"{section}.").partition(".")[0] in found:
            name = callee.removeprefix(f"{section}.")
            found += [f"{name}({option})" for option in options(_reach(module, name))]
    return found


def _exported(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [name for name, value in vars(module).items() if _home(value, "") == module.__name__]
    return sorted(name for name in listed if not name.startswith("_"))


def _is_typing(name: str, value: object) -> bool:
    """Whether a name only serves temporalio's own annotations."""
    return isinstance(value, typing.TypeVar | typing.ParamSpec) or hasattr(
        importlib.import_module("temporalio.types"), name
    )


def _home(value: object, otherwise: str) -> str:
    """Return the public module that defines an object; modules that also export it do not count."""
    defined = getattr(value, "__module__", None) or otherwise
    parts = defined.split(".")
    while parts and (parts[-1].startswith("_")):
        parts.pop()
    return ".".join(parts) if defined.startswith("temporalio.") else otherwise


def _members(value: type) -> list[str]:
    own = [base for base in value.__mro__ if base.__module__.startswith("temporalio")]
    names = {name for base in own for name in (*vars(base), *vars(base).get("__annotations__", {}))}
    return sorted(name for name in names if not name.startswith("_"))


def options(callee: Any) -> list[str]:
    """Return the parameters of a function or class, or the keys of a dictionary of options."""
    if isinstance(callee, type) and typing.is_typeddict(callee):
        return sorted(typing.get_type_hints(callee))
    return [name for name in inspect.signature(callee).parameters if name != "self"]


# --- our names ---------------------------------------------------------------------------------------------------------


def exists(path: str) -> bool:
    """Whether a path such as `workflow.uuid7`, `client.TLSConfig.domain` or `Worker(lanes)` exists in hourglass."""
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


def _fields(value: Any) -> set[str]:
    if dataclasses.is_dataclass(value):
        return {field.name for field in dataclasses.fields(value)}
    found = {name for base in getattr(value, "__mro__", ()) for name in getattr(base, "__annotations__", {})}
    return found.union(*(getattr(base, "__slots__", ()) for base in getattr(value, "__mro__", ())))


# --- the counterparts -------------------------------------------------------------------------------------------------


def counterpart(section: str, name: str) -> str:
    """Return the counterpart of a temporalio name or its reason: from the table, else by name; "" if there is none."""
    return ROWS[section].get(name) or found_by_name(section, name)


def found_by_name(section: str, name: str) -> str:
    """Return our object of the same name, or "".

    Members and options are searched in the counterpart of their owner, other names in the module of the same name and in
    `places`. Members of a name that was left out are left out for the same reason.
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
    """Return every name of the installed temporalio with its counterpart, by module."""
    return {section: {name: counterpart(section, name) for name in names_of(section)} for section in ROWS}


def same_name(section: str, name: str) -> bool:
    """Whether `hourglass.aio` has the same name. Parameters that exist only to be rejected do not count."""
    if counterpart(section, name)[0] == "-" or f"{section}.{name}" in TABLE["walk"]["refused"]:
        return False
    return exists(f"aio.{section.removeprefix('temporalio.')}.{name}")


# --- the pages --------------------------------------------------------------------------------------------------------


def counterparts() -> str:
    """Return the list in docs/from-temporalio.md: every name with its counterpart or reason."""
    lines = [
        f"Each public name of temporalio {TABLE['walk']['version']} with its counterpart; options are in parentheses.",
        "The third column says whether `hourglass.aio` has the same name. The list is generated from the installed",
        "`temporalio`.",
    ]
    for section, names in sections().items():
        lines += ["", f"### {section}", "", f"| {section} | here | in `hourglass.aio` |", "|---|---|---|"]
        lines += [
            f"| `{name}` | {_described(found)} | {'yes' if same_name(section, name) else ''} |"
            for name, found in names.items()
        ]
    lines += ["", "### Packages", "", "| package | here |", "|---|---|"]
    lines += [f"| `{name}` | {_described(found)} |" for name, found in PACKAGES.items()]
    return "\n".join(lines)


def _described(found: str) -> str:
    if found[0] == "-":
        return f"left out: {REASONS[found[1:]]}"
    return f"not yet: {REASONS[found[1:]]}" if found[0] == "?" else f"`{found}`"


def features() -> str:
    """Return the table in docs/comparison.md: the number of names here, and the missing names by reason."""
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
"""The generated part of each page: its first heading, the heading after it, and the generator."""


def page(name: str) -> str:
    """Return the text of a page with its generated part up to date."""
    first, last, make = PAGES[name]
    before, _, rest = (DOCS / name).read_text().partition(first)
    after = "" if last is None else f"\n{last}{rest.partition(last)[2]}"
    return f"{before}{first}\n{make()}\n{after}"


def installed() -> tuple[int, ...]:
    """Return the installed version of temporalio."""
    return tuple(int(part) for part in version("temporalio").split(".")[:2])


def tabled() -> tuple[int, ...]:
    """Return the version of temporalio that the table is for."""
    return tuple(int(part) for part in TABLE["walk"]["version"].split("."))


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(page(name))
        print(f"docs/{name}")
