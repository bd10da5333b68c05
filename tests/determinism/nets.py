"""The catalogue as data: every bug, and the lines that each tool must report."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent / "catalogue"
NETS = ("check", "watch", "verify", "replay", "parked")
_MARK = re.compile(r"# caught: (.+)$")
_BUG = re.compile(r"# Bug `(\w+)`")


@dataclass(frozen=True)
class Mark:
    """A line that a tool must report; for the linter with its code."""

    net: str
    code: str
    file: Path
    line: int


@dataclass(frozen=True)
class Bug:
    """An entry of the catalogue."""

    name: str
    file: Path
    marks: tuple[Mark, ...]

    @property
    def module(self) -> ModuleType:
        """The bug's module."""
        return importlib.import_module(f"{__package__}.catalogue.{self.file.stem}")

    @property
    def workflow(self) -> Any:
        """The workflow that has the bug."""
        return getattr(self.module, self.name)

    def option(self, name: str, default: Any) -> Any:
        """Return the bug's entry in a table of its module."""
        return getattr(self.module, name, {}).get(self.name, default)

    def arguments(self, folder: Path) -> tuple[Any, ...]:
        """Return the arguments of the bug's workflow."""
        return tuple(
            template.format(folder=folder) if isinstance(template, str) else template
            for template in self.option("ARGUMENTS", ())
        )

    def places(self, net: str) -> set[tuple[Path, int]]:
        """Return the lines that a tool must report."""
        return {(mark.file, mark.line) for mark in self.marks if mark.net == net}


def bugs_in(file: Path, name: str = "") -> dict[str, list[Mark]]:
    """Return the marks of each bug in a file. Marks before the first bug belong to the bug `name`."""
    bugs: dict[str, list[Mark]] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if (bug := _BUG.match(line)) is not None:
            name = bug[1]
            bugs[name] = []
        match = _MARK.search(line)
        for mark in match[1].split(", ") if match else ():
            net, _, code = mark.partition(" ")
            assert net in NETS, f"{file}:{number}"
            bugs.setdefault(name, []).append(Mark(net, code, file, number))
    return bugs


FAR = bugs_in(FOLDER / "far" / "moments.py", "far_away")["far_away"]
"""The marks of `far_away` in other modules."""

BUGS = [
    Bug(name, file, (*marks, *(FAR if name == "far_away" else ())))
    for file in sorted(FOLDER.glob("[a-z]*.py"))
    for name, marks in bugs_in(file).items()
]


def caught_by(net: str) -> list[Bug]:
    """Return the bugs that a tool must detect."""
    return [bug for bug in BUGS if bug.places(net)]
