"""The shared parts of commands that query an engine: options, values from the command line, and output as text or JSON.

Further parts are the client of a command, the codec that decodes its payloads, and messages about objects that were not
found.

A command that only reads never creates a file. If an object was not found, the message lists similar or existing objects. A
codec is imported only if the user or the environment names it, and never because a payload or a server does.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import Enum, StrEnum
from itertools import islice
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from msgspec import Struct

from hourglass._built_in import without_keepers
from hourglass._tools.cli import console
from hourglass.errors import ConnectionFailedError, HourglassError, UsageError, WorkflowNotFoundError

if TYPE_CHECKING:
    from rich.text import Text

    from hourglass.client import BulkResult, Client, WorkflowHandle
    from hourglass.client._bulk import Progress
    from hourglass.converter import Codec as PayloadCodec


class LogForm(StrEnum):
    """A log format."""

    pretty = "pretty"
    json = "json"


class LogLevel(StrEnum):
    """A log level."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


Sources: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE|MODULE", help="A file or module with workflows and activities: app.py, or app.orders."
    ),
]
Target: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        help="host:port, profile:NAME or local:FILE. Default: HOURGLASS_TARGET, then TEMPORAL_ADDRESS, "
        "then local:hourglass.db.",
    ),
]
Namespace: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="The namespace on the server.")
]
Codec: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:OBJECT",
        help="The codec for payloads, such as app.secrets:codec. Default: HOURGLASS_CODEC.",
    ),
]
Code: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--code", "-c", metavar="FILE|MODULE", help="A file or module with the workflows; may be repeated."
    ),
]
Host: TypeAlias = Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")]
TokenOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TEXT|@FILE",
        help="The access token, or the file that contains it.  [default: from the environment, or a random one]",
        show_default=False,
    ),
]
TaskQueues: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--task-queue",
        metavar="NAME",
        help="A task queue to serve; may be repeated.  [default: default]",
    ),
]
Log: TypeAlias = Annotated[LogForm, typer.Option(help="Text, or one JSON document per line.")]
Level: TypeAlias = Annotated[LogLevel, typer.Option(help="The lowest level that is logged.")]


WorkflowId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")]
MaybeWorkflowId: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="ID", help="The workflow's id; or use --query.")
]
NewId: TypeAlias = Annotated[
    str | None, typer.Option(metavar="ID", help="The workflow's id.  [default: a new one]")
]
WorkflowName: TypeAlias = Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's name.")]
RunId: TypeAlias = Annotated[
    str | None, typer.Option(metavar="ID", help="A specific run instead of the latest.")
]
Values: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="VALUE", help="Arguments: JSON if they parse as JSON (3, true, '{\"a\": 1}'), else strings."
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON to stdout, for scripts.")]
Query: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILTER", help="All open workflows that match a filter, as in `hourglass list`."),
]
AnyQuery: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILTER", help="All workflows that match a filter, open and closed."),
]
Limit: TypeAlias = Annotated[
    int, typer.Option("--limit", "-n", min=1, metavar="N", help="The maximum number of entries.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Reason: TypeAlias = Annotated[str, typer.Option(metavar="TEXT", help="A reason, recorded in the workflow.")]


def values(texts: Sequence[str] | None) -> list[Any]:
    """Parse arguments from the command line. An argument that is valid JSON is parsed as JSON; any other is a str."""
    return [_value(text) for text in texts or ()]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise UsageError(f"a value is too deeply nested to be read as JSON: {text[:40]}…") from None


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def duration(text: str, option: str) -> float:
    """Return the seconds of a duration from the command line: 90, 90s, 15m, 1.5h, 1d, 2w, or a combination such as 1h30m."""
    match = re.fullmatch(r"(?:\d+(?:\.\d+)?[smhdw]?)+", text.strip())
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw]?)", text) if match else []
    seconds = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
    if seconds <= 0:
        raise UsageError(f"{option} must be a duration, such as 90s, 15m, 6h or 1d, not {text!r}")
    return seconds


def span(value: timedelta | float) -> str:
    """Format a duration in the form that the command line accepts."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    for unit in ("d", "h", "m"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def moment(text: str, option: str) -> datetime:
    """Parse a time from the command line, in ISO 8601. A time without an offset is local time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise UsageError(
            f"{option} must be a time, such as 2030-01-31, 2030-01-31T09:00 or 2030-01-31T09:00Z, not {text!r}"
        ) from None


def clock(moment: datetime) -> str:
    """Format a time in the local time zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def plain(value: Any) -> Any:
    """Convert a value to plain JSON. Objects become their fields, except for fields that `repr` hides.

    Times are converted to ISO 8601, durations to seconds, enum members to their names, bytes to base64, and numbers that
    JSON does not support to strings.
    """
    match value:
        case Enum():
            return value.name
        case float() if not isfinite(value):
            return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray():
            return b64encode(value).decode()
        case BaseException():
            return {"type": type(value).__name__, "message": str(value), "cause": plain(value.__cause__)}
        case Mapping():
            return {str(plain(key)): plain(member) for key, member in value.items()}
        case type():
            return value.__qualname__
        case Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case _ if is_dataclass(value):
            return {
                member.name: plain(getattr(value, member.name)) for member in fields(value) if member.repr
            }
        case _ if hasattr(value, "_asdict"):
            return plain(value._asdict())
        case Set():
            return sorted((plain(member) for member in value), key=str)
        case Iterable():
            return [plain(member) for member in value]
        case _:
            text = str(value)
            return type(value).__qualname__ if " object at 0x" in text else text


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """Write a JSON document to stdout."""
    console.write_json(plain(value), indent=indent)


def answer(value: Any, as_json: bool) -> None:
    """Print a workflow's answer. A str is printed unchanged, any other value as JSON."""
    if as_json or not isinstance(value, str):
        write_json(value)
    else:
        console.show(value)


def report(text: str, as_json: bool, **document: object) -> None:
    """Report an action, as a line for people or a JSON document for scripts."""
    if as_json:
        write_json(document)
    else:
        console.show(text)


def report_found(
    items: Sequence[object], table: Sequence[Text], as_json: bool, *, nothing: str, limit: int = 0
) -> None:
    """Print a list, up to a limit, as a table for people or as one JSON document per line for scripts."""
    if as_json:
        for document in items:
            write_json(document, indent=None)
    elif not items:
        console.show(nothing)
    else:
        for line in table:
            console.show(line)
        if len(items) == limit:
            console.show(f"only the first {limit} are shown; use --limit to show more")


def sigterm() -> Callable[[], None]:
    """Catch SIGTERM from now on. Return a function that waits for it.

    Without a handler, process 1 of a container would ignore SIGTERM. Ctrl-C raises KeyboardInterrupt as
    usual.
    """
    # The C-level handler itself writes to a pipe, because the alternatives fail. A threading.Event may be locked by the very
    # thread that is interrupted. An exception is lost if the signal arrives during garbage collection. A wait that is just
    # starting is not interrupted.
    heard, writer = os.pipe()
    os.set_blocking(writer, False)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(writer)

    def wait() -> None:
        while os.read(heard, 1) != bytes([signal.SIGTERM]):
            pass

    return wait


def one_or_many(workflow_id: str | None, query: str | None) -> None:
    """Raise a usage error unless exactly one of the arguments is set."""
    if (workflow_id is None) == (query is None):
        both = "" if workflow_id is None else ", not both"
        raise UsageError(f"pass a workflow id, or --query to select all matching open workflows{both}")


def bulk_filter(workflow_id: str | None, query: str | None) -> str | None:
    """Return the filter of a bulk action, or None for an action on one workflow.

    Like `hourglass list`, the filter excludes the workflows that manage limits. Raise a usage error unless exactly one
    argument is set.
    """
    one_or_many(workflow_id, query)
    return None if query is None else without_keepers(query)


def confirm(what: str, yes: bool) -> None:
    """Ask the user for a confirmation. Without a terminal, require `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"this would {what}: confirm with --yes")
    typer.confirm(f"{what}?", abort=True)


def workflows(count: int) -> str:
    """Return a number of workflows as text."""
    return "1 workflow" if count == 1 else f"{count} workflows"


def to_many(
    client: Client,
    query: str,
    words: tuple[str, str, str],
    yes: bool,
    as_json: bool,
    act: Callable[[Progress], BulkResult],
) -> None:
    """Apply an action to all open workflows of a filter, and report the result. `words` contains the action's verb,
    participle and past tense.

    The user must confirm first. Without a terminal, `--yes` is required.
    """
    from hourglass.client._bulk import open_only

    what, doing, done = words
    if not yes:
        confirm(f"{what} {workflows(client.count_workflows(open_only(query)))}", yes)
    with progress(doing) as report:
        result = act(report)
    gone = f", {result.already_closed} had already closed" if result.already_closed else ""
    report_many(f"{done}: {result.done} of {result.found}{gone}", result, result.errors, as_json)


def report_many(text: str, document: object, errors: Mapping[str, Exception], as_json: bool) -> None:
    """Report the result of a bulk action. Set the exit code to 1 if the action failed for any workflow."""
    if as_json:
        write_json(document)
    else:
        console.show(text)
        for workflow_id, error in errors.items():
            console.error(f"{console.one_line(workflow_id)}: {error}")
    if errors:
        raise typer.Exit(1)


@contextmanager
def progress(what: str) -> Iterator[Any]:
    """Show a progress bar on stderr during a bulk action, if stderr is a terminal."""
    from rich import progress as bars

    screen = console.screen(stderr=True)
    if not screen.is_terminal:
        yield lambda done, all: None
        return
    bar = bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        console=screen,
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, all: bar.update(task, completed=done, total=all)


_NEWEST = 500


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The options of a command that select an engine, and the connection to it."""

    target: Target = None
    namespace: Namespace = None

    @contextmanager
    def connect(
        self,
        *,
        makes_file: bool = False,
        about: str | None = None,
        run_id: str | None = None,
        said_before: str = "",
    ) -> Iterator[Client]:
        """Open a client for one command.

        `about` is the workflow that the command refers to, `run_id` its run, and `said_before` the preceding word on the
        command line. They are used in the error message if the workflow does not exist.
        """
        from hourglass.client import Client

        if not makes_file and (missing := missing_file(self.target)) is not None:
            raise ConnectionFailedError(missing, status="NOT_FOUND")
        _warn_of_missing_worker(self.target)
        with Client.connect(self.target, namespace=self.namespace, codec=self.payload_codec()) as client:
            try:
                yield client
            except WorkflowNotFoundError as error:
                if about is None:
                    raise
                message = _not_found(client, about, run_id, str(error)) + _swapped(client, about, said_before)
                raise WorkflowNotFoundError(message, status=error.status) from error

    @contextmanager
    def workflow(
        self, workflow_id: str, run_id: str | None, *, said_before: str = ""
    ) -> Iterator[WorkflowHandle[Any]]:
        """Open a client like `connect`, and yield a handle of the workflow."""
        with self.connect(about=workflow_id, run_id=run_id, said_before=said_before) as client:
            yield client.get_workflow_handle(workflow_id, run_id=run_id)

    def payload_codec(self) -> PayloadCodec | None:
        """Return the codec that the environment names, or None."""
        from hourglass._tools.cli.loading import codec_named

        return codec_named(None)

    @property
    def options(self) -> str:
        """The options with which suggested commands find the same target."""
        options = (("--target", self.target), ("--namespace", self.namespace))
        return " ".join(f"{name} {shlex.quote(value)}" for name, value in options if value)


@dataclass(frozen=True, kw_only=True)
class DecodingEngine(Engine):
    """The options of a command that also decodes payloads."""

    codec: Codec = None

    def payload_codec(self) -> PayloadCodec | None:
        """Return the codec that the options or the environment name, or None."""
        from hourglass._tools.cli.loading import codec_named

        return codec_named(self.codec)


def missing_file(target: str | None) -> str | None:
    """Return the error message for a missing file of the embedded engine, or None."""
    from hourglass._worker.targets import resolve

    where = resolve(target)
    if where.kind != "file" or Path(where.path).exists():
        return None
    message = f"file {where.path} does not exist: no workflow has been started there yet"
    if where.origin == "the argument":
        return message
    return (
        f"{message}\n  This target comes from {where.origin}; choose another one with --target local:FILE or --target "
        "host:port.\n  hourglass run FILE, start, worker and dev create the file."
    )


def similar(client: Client, workflow_id: str) -> list[str]:
    """Return the ids of recent workflows that resemble this id."""
    existing = list(dict.fromkeys(candidate.id for candidate in islice(client.list_workflows(), _NEWEST)))
    inside = [candidate for candidate in existing if workflow_id in candidate or candidate in workflow_id]
    return list(dict.fromkeys([*get_close_matches(workflow_id, existing, 3, 0.7), *inside]))[:5]


def latest_run(client: Client, workflow_id: str, run_id: str | None) -> str | None:
    """Return the id of the workflow's latest run if the workflow exists, but has no run with this id."""
    if run_id is None:
        return None
    try:
        latest = client.get_workflow_handle(workflow_id).describe().run_id
    except WorkflowNotFoundError:
        return None
    try:
        client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except HourglassError:
        return latest
    return None


def _not_found(client: Client, workflow_id: str, run_id: str | None, reason: str) -> str:
    try:
        run = client.get_workflow_handle(workflow_id).describe()
        latest = latest_run(client, workflow_id, run_id)
    except WorkflowNotFoundError:
        pass
    except HourglassError:
        return reason
    else:
        if latest is not None:
            return f"{workflow_id} has no run {run_id!r} on {client.target}\n  the latest run is {latest}"
        if run.close_time is None:
            return reason  # a part of it does not exist
        closed = run.status.name.lower().replace("_", " ")
        return f"{workflow_id} is closed ({closed}): {reason}"
    near = similar(client, workflow_id)
    hint = f"did you mean {', '.join(near)}?" if near else "hourglass list shows all workflows"
    return f"workflow {workflow_id!r} does not exist on {client.target}\n  {hint}"


def _swapped(client: Client, workflow_id: str, before: str) -> str:
    """Return a hint if the id and the name are in the wrong order, because users often enter the id first."""
    if not before:
        return ""
    try:
        client.get_workflow_handle(before).describe()
    except HourglassError:
        return ""
    return f"\n  workflow {before!r} exists: pass the name first, then the id: {workflow_id} {before}"


class _Remarks(logging.Handler):
    """A log handler that prints records while a command waits."""

    def __init__(self, target: str | None) -> None:
        super().__init__(logging.WARNING)
        self._option = "" if target is None else f" --target {target}"

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record. Describe a missing worker in terms of the command line."""
        path = getattr(record, "unserved_file", None)
        if path is not None:
            console.note(
                f"no worker is running on {path}: waiting for a worker\n  start one in another terminal: hourglass worker "
                f"FILE{self._option}"
            )
        else:
            console.note(record.getMessage())


def _warn_of_missing_worker(target: str | None) -> None:
    log = logging.getLogger("hourglass")
    if (
        not any(isinstance(handler, _Remarks) for handler in log.handlers)
        and not logging.getLogger().handlers
    ):
        log.addHandler(_Remarks(target))
        log.propagate = False
