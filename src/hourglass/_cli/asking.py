"""What the commands share that ask an engine about workflows: connecting, values on the command line, answers as text or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from hourglass._cli import console
from hourglass.errors import UsageError

if TYPE_CHECKING:
    from hourglass.client import BulkResult, Client, WorkflowHandle

WorkflowId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")]
MaybeWorkflowId: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="ID", help="The workflow's id; or give --query.")
]
RunId: TypeAlias = Annotated[str | None, typer.Option(metavar="ID", help="This run, not the latest one.")]
Values: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="VALUE", help="Arguments: JSON where it is JSON (3, true, '{\"a\": 1}'), else a text."
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON to stdout, for scripts.")]
Query: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILTER", help="All open workflows that a filter finds, as in `hourglass list`."),
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether it is meant.")]
Reason: TypeAlias = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept with the workflow.")]


def handle_of(client: Client, workflow_id: str, run_id: str | None) -> WorkflowHandle[Any]:
    """The workflow that is meant."""
    return client.get_workflow_handle(workflow_id, run_id=run_id)


def values(texts: Sequence[str] | None) -> list[Any]:
    """Arguments from the command line: JSON where it is JSON, else a text."""
    return [_value(text) for text in texts or ()]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise UsageError(f"a value is nested too deeply to be read as JSON: {text[:40]}…") from None


def plain(value: Any) -> Any:
    """Anything as what JSON can say; times in ISO 8601, what cannot be said by its text."""
    match value:
        case None | bool() | int() | float() | str() if not isinstance(value, Enum):
            return value
        case Enum():
            return value.name
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case BaseException():
            return {"type": type(value).__name__, "message": str(value), "cause": plain(value.__cause__)}
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case _ if isinstance(value, Iterable) and not isinstance(value, (bytes, str)):
            return [plain(each) for each in value]
        case _:
            return str(value)


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """A JSON document on stdout."""
    console.write_json(plain(value), indent=indent)


def answer(value: Any, as_json: bool) -> None:
    """What a workflow answered: a text as it is, anything else as JSON."""
    if as_json or not isinstance(value, str):
        write_json(value)
    else:
        console.show(value)


def one_or_many(workflow_id: str | None, query: str | None) -> None:
    """Exactly one of the two says what is meant."""
    if (workflow_id is None) == (query is None):
        both = "" if workflow_id is None else ", not both"
        raise UsageError(f"name a workflow, or give --query to mean all open ones that it finds{both}")


def sure(what: str, query: str, client: Client, yes: bool) -> None:
    """Ask whether it is meant, where somebody can answer."""
    found = client.count_workflows(f"({query}) AND ExecutionStatus = 'Running'" if query.strip() else "")
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"this would {what} {found} workflows: say --yes if it is meant")
    typer.confirm(f"{what} {found} workflows?", abort=True)


@contextmanager
def progress(what: str) -> Iterator[Any]:
    """A bar on stderr while something is done to many; silent where nobody looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = console.screen(stderr=True)
    if not screen.is_terminal:
        yield lambda done, all: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=screen,
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, all: bar.update(task, completed=done, total=all)


def tell_bulk(what: str, result: BulkResult, as_json: bool) -> None:
    """What came of doing something to many."""
    if as_json:
        write_json(result)
    else:
        gone = f", {result.gone} had closed meanwhile" if result.gone else ""
        console.show(f"{what}: {result.done} of {result.found}{gone}")
        for workflow_id, error in result.errors.items():
            console.error(f"{workflow_id}: {error}")
    if result.errors:
        raise typer.Exit(1)
