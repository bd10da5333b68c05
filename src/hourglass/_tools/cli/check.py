"""`hourglass check`: find nondeterministic workflow code without running it.

No code is imported or executed. The report formats, for people, programs and GitHub, are pure functions.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.text import Text

from hourglass._tools.cli import console
from hourglass._tools.cli.console import json_text
from hourglass._tools.lint import RULES, CheckFinding, CheckReport
from hourglass.errors import UsageError

if TYPE_CHECKING:
    from hourglass._tools.lint import CheckReport


def pretty(report: CheckReport) -> Iterator[Text]:
    """Yield the findings in readable form, followed by a summary line."""
    for finding in report.findings:
        yield _finding(finding)
    yield _summary(report)


def _finding(finding: CheckFinding) -> Text:
    place, rule = finding.place, finding.rule
    text = Text()
    text.append(f"{place.file}:{place.line}:{place.column}", style="bold")
    text.append(f" {finding.code} ", style="bold red")
    text.append(f"{rule.title}\n")
    if finding.source:
        _add_source(text, finding)
    text.append(f"  {finding.message}; {rule.reason}\n" if finding.path else f"  {finding.message}\n")
    text.append("  instead: ", style="green")
    text.append(f"{rule.remedy}\n")
    if finding.path:
        text.append(f"  {_way(finding)}\n", style="dim")
    return text


def _add_source(text: Text, finding: CheckFinding) -> None:
    code = finding.source.expandtabs(1).rstrip()
    lost = len(code) - len(code.lstrip())
    start = max(finding.place.column - 1 - lost, 0)
    width = max(finding.place.end_column - finding.place.column, 1)
    number = str(finding.place.line)
    text.append(f"  {number} | ", style="dim")
    text.append(f"{code.lstrip()}\n")
    text.append(f"  {' ' * len(number)} | ", style="dim")
    text.append(f"{' ' * start}{'^' * min(width, max(len(code) - lost - start, 1))}\n", style="red")


def _way(finding: CheckFinding) -> str:
    first, *steps = finding.path
    path = f"in workflow {first.function} ({first.file}:{first.line})"
    for step in steps:
        path += f" → {step.function} ({step.file}:{step.line})"
    return path


def _summary(report: CheckReport) -> Text:
    looked = f"{_count(report.files, 'file')}, {_count(report.workflows, 'workflow')}"
    if report.findings:
        return Text(f"{_count(len(report.findings), 'finding')} in {looked}", style="bold red")
    if not report.workflows:
        return Text(f"no workflows found in {_count(report.files, 'file')}", style="yellow")
    return Text(f"no findings in {looked}", style="green")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def report_as_json(report: CheckReport) -> str:
    """Return the report as a JSON document."""
    document = {
        "files": report.files,
        "workflows": report.workflows,
        "findings": [_as_document(finding) for finding in report.findings],
    }
    return json_text(document, indent=2)


def _as_document(finding: CheckFinding) -> dict[str, Any]:
    rule = finding.rule
    return {
        "code": finding.code,
        "title": rule.title,
        "message": finding.message,
        "reason": rule.reason,
        "remedy": rule.remedy,
        **asdict(finding.place),
        "workflow": finding.workflow,
        "path": [asdict(step) for step in finding.path],
    }


def report_as_github(report: CheckReport) -> Iterator[str]:
    """Yield one line per finding, in the format that GitHub Actions displays beside the code."""
    for finding in report.findings:
        place, rule = finding.place, finding.rule
        values = {
            "file": place.file,
            "line": place.line,
            "col": place.column,
            "endLine": place.end_line,
            "endColumn": place.end_column,
            "title": f"{finding.code} {rule.title}",
        }
        options = ",".join(f"{name}={_escaped(str(value), is_value=True)}" for name, value in values.items())
        message = f"{finding.message}; {rule.reason}\nInstead: {rule.remedy}"
        if finding.path:
            message += f"\n{_way(finding)}"
        yield f"::error {options}::{_escaped(message)}"


def _escaped(text: str, *, is_value: bool = False) -> str:
    for plain, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(plain, code)
    return text.replace(":", "%3A").replace(",", "%2C") if is_value else text


def explained(code: str) -> Text:
    """Return the explanation of a rule. Raise `UsageError` for an unknown code."""
    rule = RULES.get(code.upper())
    if rule is None:
        raise UsageError(f"unknown rule {code}; known rules: {', '.join(RULES)}")
    text = Text()
    text.append(f"{rule.code} ", style="bold red")
    text.append(f"{rule.title}\n\n", style="bold")
    text.append(f"{rule.explanation}\n")
    if rule.wrong:
        text.append("\nwrong:\n", style="red")
        text.append(_indented(rule.wrong))
        text.append("\nright:\n", style="green")
        text.append(_indented(rule.right))
    text.append("\nTo accept a finding, use `with workflow.unsafe():`, ")
    text.append(f"or a comment on the line: # hourglass: allow {rule.code}")
    return text


def _indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())


Paths: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Files and directories, searched recursively.  [default: .]"),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON document, for programs.")]
AsGithub: TypeAlias = Annotated[bool, typer.Option("--github", help="Annotations for GitHub Actions.")]
Explain: TypeAlias = Annotated[
    str | None, typer.Option(metavar="CODE", help="Explain a rule, such as HG104, and exit.")
]


def check(
    paths: Paths = None, as_json: AsJson = False, as_github: AsGithub = False, explain: Explain = None
) -> None:
    """Find nondeterministic workflow code.

    It starts at each @workflow.defn and follows calls through the project, but not into activities. `with
    workflow.unsafe():` and a comment `# hourglass: allow HG104` accept a finding.

    The exit code is 0 without findings, 1 with findings.

    \b
    Examples:
      hourglass check
      hourglass check app tests/workflows.py --github
      hourglass check --explain HG104
    """
    if explain is not None:
        console.show(explained(explain))
        return
    if as_json and as_github:
        raise UsageError("use either --json or --github, not both")
    existing = [_existing(path) for path in paths or ["."]]
    report = _checked(existing)
    if as_json:
        console.write(report_as_json(report))
    elif as_github:
        for line in report_as_github(report):
            console.write(line)
    else:
        for text in pretty(report):
            console.show(text)
    raise typer.Exit(1 if report.findings else 0)


def _checked(paths: list[Path]) -> CheckReport:
    """Run the check without garbage collection: it would scan millions of nodes without freeing any."""
    from hourglass._tools.lint import check as check_files

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
        raise UsageError(f"file or directory {name} does not exist")
    return path
