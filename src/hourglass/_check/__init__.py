"""Determinism, checked before anything runs: a linter for workflow code that follows calls through a project.

    report = check([Path("app")])
    for finding in report.findings:
        print(finding.place.file, finding.place.line, finding.message)

It begins at the functions and methods that `@workflow.defn` and its like mark, and follows calls within the project;
activities and child workflows are boundaries. Nothing is imported or executed: it reads syntax trees, with the standard
library's `ast` alone, and imports nothing else of Hourglass.

The map: `files` reads the disk, alone in doing so; `modules` is the project as parsed files and imports between them;
`scopes` says what names are bound to, `resolving`, `members` and `hints` what expressions stand for, in the words of
`values`; `defining` lists functions and classes, `kinds` knows decorators and where workflows begin, `durable` what asks or
waits, `sharing`, `defaults` and `import_time` what runs share, `external` what other people's functions do. `body` walks
through one function, with what is in `seen`, and with `ordering` (and `order`), `shared_uses` and `meanwhile` for rules that
need more than a name; `checker` goes through all of them. `rules` is what can be found, `report` what was, `allowing` the
comments that silence it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hourglass._check.checker import check_paths
from hourglass._check.rules import RULES, Finding, Place, Report, Rule, Step

__all__ = ["RULES", "Finding", "Place", "Report", "Rule", "Step", "check"]


def check(paths: Sequence[Path], *, base: Path | None = None) -> Report:
    """Check files, and directories with everything below them. File names are shown as seen from `base`, by default here."""
    return check_paths(paths, base if base is not None else Path.cwd())
