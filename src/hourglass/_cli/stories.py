"""The story of what was named on the command line: a run that a client knows, or a file with a history.

Histories are in Temporal's JSON form. Where a codec is given, payloads pass it if the person at the command line
asked to see them, messages of failures always. What a codec refuses stays as it is: a history may hold values from
before the codec, or of another one.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hourglass._story.faults import authors_place
from hourglass._story.reading import Event, events_from, events_from_text
from hourglass._story.spans import Fault, Kind, Story
from hourglass._story.timeline import Pending, nest, tell
from hourglass._story.values import Peek, hidden
from hourglass.errors import HistoryError, UsageError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass._story.reading import Event
    from hourglass.client import Client
    from hourglass.client._values import PendingActivityInfo, WorkflowDescription
    from hourglass.converter import Codec


# --- histories through a codec ----------------------------------------------------------------------------------------


Decode: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def decoder(codec: Codec) -> Decode:
    """From a payload in JSON form to what it was before the codec."""
    from hourglass.converter import Payload

    def decode(payload: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            entries = {name: base64.b64decode(text) for name, text in payload["metadata"].items()}
            encoding = entries.pop("encoding", b"").decode()
            sealed = Payload(base64.b64decode(payload.get("data", "")), encoding, entries or None)
            (opened,) = codec.decode([sealed])
        except Exception:  # the author's codec, and data of any origin
            return payload
        named = {"encoding": opened.encoding.encode(), **(opened.metadata or {})}
        return {
            "metadata": {name: base64.b64encode(each).decode() for name, each in named.items()},
            "data": base64.b64encode(opened.data).decode(),
        }

    return decode


def unsealed(events: tuple[Event, ...], decode: Decode) -> tuple[Event, ...]:
    """The same events, with the messages and stacks of failures that were encoded."""
    return tuple(replace(each, attributes=_opened(each.attributes, decode)) for each in events)


def _opened(node: Any, decode: Decode) -> Any:
    if isinstance(node, list):
        return [_opened(each, decode) for each in node]
    if not isinstance(node, dict):
        return node
    found = {name: _opened(each, decode) for name, each in node.items()}
    return _with_message(found, decode) if "encodedAttributes" in found else found


def _with_message(failure: dict[str, Any], decode: Decode) -> dict[str, Any]:
    try:
        said = json.loads(base64.b64decode(decode(failure["encodedAttributes"]).get("data", "")))
        told = {"message": str(said["message"]), "stackTrace": str(said.get("stack_trace", ""))}
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return failure
    rest = {name: each for name, each in failure.items() if name != "encodedAttributes"}
    return {**rest, **told}


# --- stories ----------------------------------------------------------------------------------------------------------


MOST_CHILDREN = 50


def is_file(named: str) -> bool:
    """Whether a file is meant, not the id of a workflow."""
    return named == "-" or named.endswith((".json", ".jsonl")) or Path(named).is_file()


def story_of_file(named: str, peek: Peek = hidden, codec: Codec | None = None) -> Story:
    """The story of a history in a file, or on stdin for `-`."""
    try:
        text = sys.stdin.buffer.read() if named == "-" else Path(named).read_bytes()
    except OSError as error:
        raise UsageError(f"the history {named} cannot be read: {error.strerror}") from error
    try:
        events = events_from_text(text)
        return tell(events if codec is None else unsealed(events, decoder(codec)), peek=peek)
    except HistoryError as error:
        raise HistoryError(f"{named}: {error}") from None


@dataclass(frozen=True)
class Watched:
    """A run that a client knows."""

    client: Client
    workflow_id: str
    run_id: str | None = None
    peek: Peek = hidden
    children: bool = False

    def story(self) -> Story:
        """Its story up to now."""
        return self.tell(*self.look())

    def stories(self, pause: Callable[[], object]) -> Iterator[Story]:
        """Its story again and again, until it has closed."""
        known: tuple[int, tuple[Event, ...]] | None = None
        while True:
            description, events = self.look(known)
            known = description.history_length, events
            story = self.tell(description, events)
            yield story
            if story.end is not None:
                return
            pause()

    def look(
        self, known: tuple[int, tuple[Event, ...]] | None = None
    ) -> tuple[WorkflowDescription, tuple[Event, ...]]:
        """The description first: a history that is read after it knows at least as much."""
        handle = self.client.get_workflow_handle(self.workflow_id, run_id=self.run_id)
        description = handle.describe()
        if known is not None and known[0] == description.history_length:
            return description, known[1]
        one = self.client.get_workflow_handle(self.workflow_id, run_id=description.run_id)
        events = events_from(one.history().events)
        codec = self.client.codec
        return description, events if codec is None else unsealed(events, decoder(codec))

    def tell(self, description: WorkflowDescription, events: tuple[Event, ...]) -> Story:
        """Its story, from what a look has shown."""
        story = tell(
            events,
            now=time.time_ns(),
            pending=[_pending(each) for each in description.pending_activities],
            task_attempt=description.task_attempt,
            peek=self.peek,
        )
        return nest(story, dict(self._children(story))) if self.children else story

    def _children(self, story: Story) -> Iterator[tuple[str, Story]]:
        started = [each for each in story.spans if each.kind is Kind.CHILD and each.target]
        for span in started[:MOST_CHILDREN]:
            child = Watched(self.client, span.child_id, span.target, self.peek, children=True)
            try:
                yield span.target, child.story()
            except WorkflowNotFoundError:
                continue  # its history is gone already, or in another namespace


def _pending(info: PendingActivityInfo) -> Pending:
    state = str(info.state).upper()
    return Pending(
        activity_id=info.id,
        attempt=info.attempt,
        max_attempts=info.maximum_attempts,
        faults=tuple(_faults(info.last_failure)),
        last_started=nanoseconds(info.last_started_time),
        next_attempt=nanoseconds(info.next_attempt_time),
        running="STARTED" in state or "CANCEL" in state,
        paused="PAUSE" in state,
    )


def _faults(error: BaseException | None) -> Iterator[Fault]:
    while error is not None:
        kind: Any = getattr(error, "type", None)
        trace: Any = getattr(error, "remote_traceback", "")
        yield Fault(
            kind if isinstance(kind, str) else type(error).__name__, str(error), authors_place(trace or "")
        )
        error = error.__cause__


def nanoseconds(moment: datetime | None) -> int | None:
    """A time as nanoseconds since the epoch."""
    if moment is None:
        return None
    past = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds) * 1_000
