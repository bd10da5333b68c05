"""`hourglass check`: is workflow code deterministic, as far as its text tells? Nothing is imported, nothing is executed."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from hourglass._cli import console
from hourglass.errors import UsageError

if TYPE_CHECKING:
    from hourglass._check import Report

Paths: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Files, and directories with all that is below.  [default: .]"),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON document, for programs.")]
AsGithub: TypeAlias = Annotated[bool, typer.Option("--github", help="Annotations for GitHub Actions.")]
Explain: TypeAlias = Annotated[
    str | None, typer.Option(metavar="CODE", help="Say what a rule is about, HG104 for instance, and end.")
]


def check(
    paths: Paths = None, as_json: AsJson = False, as_github: AsGithub = False, explain: Explain = None
) -> None:
    """Find what is not deterministic in workflow code.

    It begins at each @workflow.defn and follows calls through the project, but not into activities. `with
    workflow.unsafe():` and a comment `# hourglass: allow HG104` say that something is meant as it is.

    The exit code is 0 if nothing was found, 1 if something was.

    \b
    Examples:
      hourglass check
      hourglass check app tests/workflows.py --github
      hourglass check --explain HG104
    """
    from hourglass._cli import check_views

    if explain is not None:
        console.show(check_views.explained(explain))
        return
    if as_json and as_github:
        raise UsageError("choose one of --json and --github")
    found = [_existing(each) for each in paths or ["."]]
    report = _checked(found)
    if as_json:
        console.write(check_views.as_json(report))
    elif as_github:
        for line in check_views.as_github(report):
            console.write(line)
    else:
        for text in check_views.pretty(report):
            console.show(text)
    raise typer.Exit(1 if report.findings else 0)


def _checked(paths: list[Path]) -> Report:
    """Without the collector: it would walk through millions of nodes, again and again, and find nothing to free."""
    from hourglass._check import check as check_files

    was_on = gc.isenabled()
    gc.disable()
    try:
        return check_files(paths)
    finally:
        if was_on:
            gc.enable()


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.exists():
        raise UsageError(f"there is no file or directory {name}")
    return path
