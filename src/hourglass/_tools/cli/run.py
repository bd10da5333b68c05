"""`hourglass run`: run a workflow from start to result, with a live picture of its steps."""

from __future__ import annotations

import logging
import shlex
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hourglass._tools.cli import connecting, console, picture
from hourglass._tools.cli.connecting import DecodingEngine, Json, NewId, Values
from hourglass.errors import (
    TimedOutError,
    UsageError,
    WorkflowAlreadyStartedError,
    WorkflowFailedError,
    WorkflowParked,
    summary,
)

if TYPE_CHECKING:
    from hourglass._tools.cli.loading import LoadedCode
    from hourglass._tools.timeline.spans import Story
    from hourglass.client import Client, WorkflowHandle
    from hourglass.converter import Signature

_PAUSE = 0.2
_QUEUE = "default"


def run(
    source: Annotated[
        str,
        typer.Argument(metavar="FILE[:WORKFLOW]", help="app.py, app.py:checkout, or app.orders:checkout."),
    ],
    arguments: Values = None,
    id: NewId = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="With --id: run the workflow again although it has closed."),
    ] = False,
    *,
    engine: DecodingEngine,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show only the result, without the live view.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a workflow to its end and show its result. A live view shows what it does.

    Ctrl-C leaves the workflow open; the same command with the same --id continues it. An id whose workflow has
    closed is rejected, unless --again is given.

    \b
    Examples:
      hourglass run app.py order-1 1200
      hourglass run app.py:checkout '{"id": "o-1"}' --id order-1
    """
    from hourglass._built_in import BUILT_IN
    from hourglass._tools.cli.loading import load
    from hourglass._worker.resolver import Resolver
    from hourglass.client import IdConflictPolicy, IdReusePolicy
    from hourglass.worker import Worker

    _log_what_no_picture_shows(seen=picture.is_seen() and not (quiet or json))
    place, name = _split(source)
    loaded = load([place])
    workflow = _chosen(loaded, name, place)
    signature = Resolver(modules=loaded.modules, built_in=BUILT_IN).workflow(workflow).signature
    values = _meant(signature, arguments or [])
    with ExitStack() as stack:
        client = stack.enter_context(engine.connect(makes_file=True))
        stack.enter_context(Worker(client, _QUEUE, modules=loaded.modules, verify="always"))
        options: dict[str, Any] = {} if id is None else {"id": id}
        reuse = IdReusePolicy.ALLOW_DUPLICATE if again else IdReusePolicy.REJECT_DUPLICATE
        try:
            handle = client.start_workflow(
                workflow,
                *values,
                task_queue=_QUEUE,
                id_conflict_policy=IdConflictPolicy.USE_EXISTING,
                id_reuse_policy=reuse,
                **options,
            )
        except WorkflowAlreadyStartedError as error:
            where = engine.options
            raise UsageError(_closed_already(client, error.workflow_id, where)) from None
        try:
            _follow(client, handle, quiet or json)
            connecting.answer(_result(handle, engine.options), json)
        except KeyboardInterrupt:
            console.note(f"{handle.id} stays open; the same command with --id {handle.id} continues it")
            raise


def _closed_already(client: Client, workflow_id: str, where: str) -> str:
    closed = client.get_workflow_handle(workflow_id).describe()
    status = closed.status.name.lower().replace("_", " ")
    at = "" if closed.close_time is None else f" at {connecting.clock(closed.close_time)}"
    show = f"hourglass show {shlex.quote(workflow_id)} {where}".rstrip()
    return (
        f"{workflow_id} is already closed ({status}{at}). Running it again would repeat all its steps: confirm with --again, "
        f"or choose another --id. To see what it did: {show}"
    )


def _log_what_no_picture_shows(*, seen: bool) -> None:
    """Log problems that stop a run only once. Log failed attempts only if no picture shows them."""
    logging.getLogger("hourglass").setLevel(logging.CRITICAL)
    attempts = logging.getLogger("hourglass.worker")
    attempts.setLevel(logging.CRITICAL if seen else logging.WARNING)
    attempts.filters[:] = [lambda record: hasattr(record, "activity_id")]


def _split(source: str) -> tuple[str, str]:
    place, colon, name = source.rpartition(":")
    return (place, name) if colon and name.isidentifier() and len(place) > 1 else (source, "")


def _chosen(loaded: LoadedCode, name: str, place: str) -> str:
    names = ", ".join(loaded.workflows) or "none"
    if name:
        if name not in loaded.workflows:
            raise UsageError(f"{place} has no workflow {name!r}; its workflows are {names}")
        return name
    if len(loaded.workflows) != 1:
        raise UsageError(f"choose a workflow with {place}:NAME; its workflows are {names}")
    return loaded.workflows[0]


def _meant(signature: Signature, texts: list[str]) -> list[Any]:
    """Return the parsed arguments. An argument is parsed as JSON if it is valid JSON, but stays a str for a parameter of
    type str, for example an order number.

    Arguments are checked before the start, because wrong arguments would only park the run.
    """
    from hourglass.converter import default_converter

    values = connecting.values(texts)
    for at, (kind, text) in enumerate(zip(signature.types, texts, strict=False)):
        if kind is str and not isinstance(values[at], str):
            values[at] = text
    signature.decode(default_converter, signature.encode(default_converter, tuple(values), {}))
    return values


def _follow(client: Client, handle: WorkflowHandle[Any], quiet: bool) -> None:
    """Draw the run until it closes. If a bug in its code parks the run, end the command and print the line."""
    from hourglass._tools.timeline.values import hidden
    from hourglass._tools.timeline.watching import Watched

    watched = Watched(client, handle.id, handle.run_id, hidden, False)
    never = threading.Event()
    story, parked = None, False
    with picture.redrawn(None, quiet=quiet) as redraw:
        for story in watched.stories(lambda: never.wait(_PAUSE)):
            redraw(picture.Picture(story, width=None, limit=None))
            parked = bool(story.end is None and handle.describe().parked)
            if parked:
                break
    if story is not None and not quiet and picture.is_seen():
        picture.show(picture.Picture(story))
        console.show("")
    if parked:
        # Read the story once more, because the story that was drawn may be slightly older.
        raise WorkflowParked(_stopped(watched.story()))


def _stopped(story: Story) -> str:
    """Return the reason why a run is parked: the exception and the author's line."""
    from hourglass._tools.timeline.faults import place_of
    from hourglass._tools.timeline.text import near

    headline = f"{story.workflow_type} {story.workflow_id} is stopped by a bug in its code"
    if not story.faults:
        return headline
    fault = story.faults[-1]
    file, _, line = place_of(story.faults).rpartition(":")
    where = f'\n  File "{near(file)}", line {line}' if file else ""
    # The message of a KeyError is only the key.
    what = ": ".join(part for part in (fault.type, fault.message) if part)
    return (
        f"{headline}: {what}{where}\n  fix the bug, and run this command again with --id {story.workflow_id}"
    )


def _result(handle: WorkflowHandle[Any], where: str) -> Any:
    try:
        return handle.result()
    except WorkflowFailedError as error:
        cause = error.cause
        kind = "timed out" if cause is None or isinstance(cause, TimedOutError) else summary(cause)
        command = f"hourglass why {handle.id} {where}".rstrip()
        console.error(f"the workflow failed: {kind}\n  see {command}")
        raise typer.Exit(1) from error
