"""The catalogue as data: every bug, and the lines that each tool must report."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent / "catalogue"
NETS = ("check", "watch", "verify", "replay", "parked")
_MARK = re.compile(r"# caught: (.+)$")
_NOT_BUGS = ("__init__", "acts")


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
    marks: tuple[Mark, ...]

    @property
    def module(self) -> ModuleType:
        """The bug's module."""
        return importlib.import_module(f"{__package__}.catalogue.{self.name}")

    def arguments(self, folder: Path) -> tuple[Any, ...]:
        """Return the arguments of the bug's workflow."""
        templates = getattr(self.module, "arguments", ())
        return tuple(
            template.format(folder=folder) if isinstance(template, str) else template
            for template in templates
        )

    def places(self, net: str) -> set[tuple[Path, int]]:
        """Return the lines that a tool must report."""
        return {(mark.file, mark.line) for mark in self.marks if mark.net == net}


def marks_in(file: Path) -> Iterator[Mark]:
    """Return the marks in a file."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        match = _MARK.search(line)
        for each in match[1].split(", ") if match else ():
            net, _, code = each.partition(" ")
            assert net in NETS, f"{file}:{number}"
            yield Mark(net, code, file, number)


def _bug(file: Path) -> Bug:
    marks = list(marks_in(file))
    if file.stem == "far_away":
        for path in sorted((FOLDER / "far").glob("*.py")):
            marks += marks_in(path)
    return Bug(file.stem, tuple(marks))


BUGS = [_bug(file) for file in sorted(FOLDER.glob("*.py")) if file.stem not in _NOT_BUGS]


def caught_by(net: str) -> list[Bug]:
    """Return the bugs that a tool must detect."""
    return [bug for bug in BUGS if bug.places(net)]
