"""What a check found, as data: findings, the way to each, and the report of a whole check."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass._check.rules import RULES, Rule


@dataclass(frozen=True, slots=True)
class Place:
    """A range in a file. Lines and columns count from 1; the file is given as the user would write it."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the way from a workflow to a finding: this function, entered from this line."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in workflow code that does not do the same when it is executed again."""

    code: str
    place: Place
    message: str
    source: str = ""
    path: tuple[Step, ...] = ()

    @property
    def rule(self) -> Rule:
        """The rule that it breaks."""
        return RULES[self.code]

    @property
    def workflow(self) -> str:
        """The workflow whose code it is, or is called from."""
        return self.path[0].function if self.path else ""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a check found, in the order of files and lines, and how much it looked at."""

    findings: tuple[Finding, ...]
    files: int
    workflows: int
