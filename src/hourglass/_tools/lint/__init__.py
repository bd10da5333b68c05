"""A linter for workflow code. It finds nondeterminism, and mistakes that otherwise appear only at run time.

It follows calls through the whole project.

    report = check([Path("app")])
    for finding in report.findings:
        print(finding.place.file, finding.place.line, finding.message)

The linter begins at functions and methods decorated with `@workflow.defn` and similar decorators, and follows calls within
the project. Activities and child workflows are boundaries. Code is neither imported nor executed: the linter reads syntax
trees with the standard library's `ast`, and imports no other part of Hourglass.

    modules       the only part that reads files: parsed modules, imports, and comments that silence findings
    scopes        the names that each scope binds
    values        the possible values of an expression, as data
    annotations   the value that an annotation describes
    members       the members of classes
    resolving     from an expression to its values: names, attributes, results of calls
    defining      every function and class of a module
    kinds         decorators, entry points of workflow code, and calls that issue commands or wait
    sharing       variables that runs share: where a project changes them, and the rules on their use
    external      effects of functions outside the project
    order         code that depends on the order of a set, or loops over a collection that changes meanwhile
    catching      exception handlers around activities and child workflows that never catch
    statements    the rules on single statements, and on workflows that call themselves
    body          the analysis of one function
    checker       a whole check: from every workflow through all that it calls
    rules         the rules, and the report of a check
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hourglass._tools.lint.checker import check_paths
from hourglass._tools.lint.rules import RULES, CallStep, CheckFinding, CheckReport, Rule, SourceRange

__all__ = ["RULES", "CallStep", "CheckFinding", "CheckReport", "Rule", "SourceRange", "check"]


def check(paths: Sequence[Path], *, base: Path | None = None) -> CheckReport:
    """Check files, and directories recursively. Files are reported relative to `base`, or else to the cwd."""
    return check_paths(paths, base if base is not None else Path.cwd())
