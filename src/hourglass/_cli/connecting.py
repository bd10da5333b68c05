"""A client for one command: where it looks, what decodes the payloads, and words for what is not there.

A command that only looks makes no file: an empty folder stays empty. What is not found is told with what is there
instead.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from hourglass._cli import console
from hourglass.errors import ConnectionFailedError, HourglassError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass.client import Client

_NEWEST = 500


@contextmanager
def connected(
    target: str | None,
    namespace: str | None,
    codec: str | None = None,
    *,
    makes_file: bool = False,
    about: str | None = None,
    run_id: str | None = None,
    said_before: str = "",
) -> Iterator[Client]:
    """A client for one command. `about` is the workflow that it asks about, `run_id` the run and `said_before` the word
    before it on the command line, for what is said if there is none.
    """
    from hourglass._cli.codecs import codec_named
    from hourglass.client import Client

    if not makes_file and (missing := missing_file(target)) is not None:
        raise ConnectionFailedError(missing, status="NOT_FOUND")
    _say_who_is_missing(target)
    with Client.connect(target, namespace=namespace, codec=codec_named(codec)) as client:
        try:
            yield client
        except WorkflowNotFoundError as error:
            if about is None:
                raise
            told = _not_found(client, about, run_id, str(error)) + _swapped(client, about, said_before)
            raise WorkflowNotFoundError(told, status=error.status) from error


def missing_file(target: str | None) -> str | None:
    """What to say of a file of the embedded engine that is not there; None if it is, or none is meant."""
    from hourglass._runtime.targets import resolve

    where = resolve(target)
    if where.kind != "file" or Path(where.path).exists():
        return None
    told = f"there is no file {where.path}: no workflow has been started there yet"
    if where.origin == "the argument":
        return told
    return (
        f"{told}\n  That is where {where.origin} points; --target local:FILE or --target host:port look elsewhere."
        "\n  hourglass run FILE, start, worker and dev make the file."
    )


def options_of(target: str | None, namespace: str | None) -> str:
    """What was said on the command line about where to look, for the commands that are advised."""
    given = (("--target", target), ("--namespace", namespace))
    return " ".join(f"{name} {shlex.quote(value)}" for name, value in given if value)


def temporal_options(target: str | None, namespace: str | None) -> str:
    """What Temporal's own command needs to find the same server; it does not know our settings."""
    from hourglass._runtime.targets import resolve

    where = resolve(target, namespace=namespace)
    if where.kind != "temporal":
        return ""
    named = "" if where.namespace == "default" else f" --namespace {shlex.quote(where.namespace)}"
    return f"--address {shlex.quote(where.address)}{named}"


def similar(client: Client, workflow_id: str) -> list[str]:
    """Ids that somebody may have meant."""
    known = list(dict.fromkeys(each.id for each in islice(client.list_workflows(), _NEWEST)))
    inside = [each for each in known if workflow_id in each or each in workflow_id]
    return list(dict.fromkeys([*get_close_matches(workflow_id, known, 3, 0.7), *inside]))[:5]


def latest_run(client: Client, workflow_id: str, run_id: str | None) -> str | None:
    """The latest run of a workflow that has none of this id; None if it has, or if there is no such workflow."""
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


def _not_found(client: Client, workflow_id: str, run_id: str | None, said: str) -> str:
    try:
        run = client.get_workflow_handle(workflow_id).describe()
        latest = latest_run(client, workflow_id, run_id)
    except WorkflowNotFoundError:
        pass
    except HourglassError:
        return said
    else:
        if latest is not None:
            return f"{workflow_id} has no run {run_id!r} on {client.target}\n  its latest one is {latest}"
        if run.close_time is None:
            return said  # it is something of it that is not there
        closed = run.status.name.lower().replace("_", " ")
        return f"{workflow_id} has closed ({closed}): {said}"
    near = similar(client, workflow_id)
    hint = f"did you mean {', '.join(near)}?" if near else "hourglass list shows what there is"
    return f"there is no workflow {workflow_id!r} on {client.target}\n  {hint}"


def _swapped(client: Client, workflow_id: str, before: str) -> str:
    """People try the id first."""
    if not before:
        return ""
    try:
        client.get_workflow_handle(before).describe()
    except HourglassError:
        return ""
    return f"\n  there is a workflow {before!r}: the name comes first, then the id: {workflow_id} {before}"


# --- what the engine says while a command waits --------------------------------------------------------------------


class _Remarks(logging.Handler):
    """What is logged while a command waits, as remarks of the command."""

    def __init__(self, target: str | None) -> None:
        super().__init__(logging.WARNING)
        self._option = "" if target is None else f" --target {target}"

    def emit(self, record: logging.LogRecord) -> None:
        """Say it. That no worker is there is said in words of the command line."""
        path = getattr(record, "unserved_file", None)
        if path is not None:
            console.note(
                f"no worker is running on {path}: waiting for one"
                f"\n  start it in another terminal: hourglass worker FILE{self._option}"
            )
        else:
            console.note(record.getMessage())


def _say_who_is_missing(target: str | None) -> None:
    log = logging.getLogger("hourglass")
    if not any(isinstance(each, _Remarks) for each in log.handlers) and not logging.getLogger().handlers:
        log.addHandler(_Remarks(target))
        log.propagate = False
