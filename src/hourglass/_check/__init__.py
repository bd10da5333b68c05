"""Determinism, and slips that only show when it runs, checked before: a linter for workflow code that follows calls
through a project.

    report = check([Path("app")])
    for finding in report.findings:
        print(finding.place.file, finding.place.line, finding.message)

It begins at the functions and methods that `@workflow.defn` and its like mark, and follows calls within the project;
activities and child workflows are boundaries. Nothing is imported or executed: it reads syntax trees, with the standard
library's `ast` alone, and imports nothing else of Hourglass.

    modules     reads the disk, alone in doing so; the project as parsed files, imports, and comments that silence
    scopes      what names are bound to
    values      what an expression may stand for, as data
    resolving   from an expression to its values: names, attributes, annotations, results of calls
    defining    every function and class of a module
    kinds       decorators, and where workflows begin; which calls ask for something or wait
    sharing     variables that runs share, and where a project changes them
    external    what functions outside the project do
    order       where code depends on the order of a set, or walks what changes meanwhile
    catching    handlers of exceptions that never catch
    body        the walk through one function
    checker     a whole check: from every workflow through all that it calls
    rules       what can be found, and the report of what was
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hourglass._check.checker import check_paths
from hourglass._check.rules import RULES, CallStep, CheckFinding, CheckReport, Rule, SourceRange

__all__ = ["RULES", "CallStep", "CheckFinding", "CheckReport", "Rule", "SourceRange", "check"]


def check(paths: Sequence[Path], *, base: Path | None = None) -> CheckReport:
    """Check files, and directories with everything below them. File names are shown as seen from `base`, by default here."""
    return check_paths(paths, base if base is not None else Path.cwd())
