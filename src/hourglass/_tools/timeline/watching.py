"""The story of a run known to a client, or of a history file.

Histories are in Temporal's JSON form. A codec decodes failure messages, and also payloads if the user has requested to see
them. A payload that the codec cannot decode stays unchanged, because a history may contain values that are older than the
codec or that another codec encoded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any

import msgspec

from hourglass._history.codec import events_from_text
from hourglass._history.events import HistoryEvent
from hourglass._tools.timeline import svg
from hourglass._tools.timeline.faults import authors_place
from hourglass._tools.timeline.spans import Fault, Kind, Story
from hourglass._tools.timeline.text import clean, harmless, nanoseconds
from hourglass._tools.timeline.timeline import Pending, build_story, nest
from hourglass._tools.timeline.values import Decode, Peek, hidden
from hourglass.converter import Failure, Payload, decoded, map_failures
from hourglass.errors import ApplicationError, HistoryError, UsageError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass.client import Client
    from hourglass.client._values import PendingActivityInfo, WorkflowDescription
    from hourglass.converter import Codec
    from hourglass.replay import History


def decoder(codec: Codec) -> Decode:
    """Return a function that decodes a payload with the codec."""

    def decode(payload: Payload) -> Payload:
        try:
            (opened,) = decoded(codec, [payload])
        except Exception:  # the author's codec may raise any error, and the data may come from anywhere
            return payload
        return opened

    return decode


def unsealed(events: tuple[HistoryEvent, ...], decode: Decode) -> tuple[HistoryEvent, ...]:
    """Return the events with decoded failure messages and stacks."""
    return tuple(map_failures(event, lambda failure: _with_message(failure, decode)) for event in events)


def _with_message(failure: Failure, decode: Decode) -> Failure:
    cause = None if failure.cause is None else _with_message(failure.cause, decode)
    failure = failure if cause is failure.cause else msgspec.structs.replace(failure, cause=cause)
    if failure.encoded_attributes is None:
        return failure
    try:
        document = json.loads(decode(failure.encoded_attributes).data)
        message, stack_trace = str(document["message"]), str(document.get("stack_trace", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return failure
    return msgspec.structs.replace(failure, message=message, stack_trace=stack_trace, encoded_attributes=None)


HIDDEN = "(hidden)"


def without_messages(events: tuple[HistoryEvent, ...]) -> tuple[HistoryEvent, ...]:
    """Return the events without failure messages and stacks, encoded or not."""
    return tuple(map_failures(event, _hide_message) for event in events)


def _hide_message(failure: Failure) -> Failure:
    cause = None if failure.cause is None else _hide_message(failure.cause)
    return msgspec.structs.replace(
        failure, message=HIDDEN, stack_trace="", encoded_attributes=None, cause=cause
    )


def _hide_last_failures(description: WorkflowDescription) -> WorkflowDescription:
    pending = tuple(
        replace(
            activity,
            last_failure=None if activity.last_failure is None else _hide_error(activity.last_failure),
        )
        for activity in description.pending_activities
    )
    return replace(description, pending_activities=pending)


def _hide_error(error: BaseException) -> BaseException:
    """Return an error with the type of the innermost cause, and without its message."""
    while error.__cause__ is not None:
        error = error.__cause__
    kind = getattr(error, "type", None)
    return ApplicationError(HIDDEN, type=kind if isinstance(kind, str) else type(error).__name__)


MOST_CHILDREN = 50


def is_file(named: str) -> bool:
    """Whether a name is a file name and not a workflow id."""
    return named == "-" or named.endswith((".json", ".jsonl")) or Path(named).is_file()


def story_of_file(named: str, peek: Peek = hidden, codec: Codec | None = None) -> Story:
    """Return the story of a history in a file, or from stdin if the name is `-`."""
    try:
        text = sys.stdin.buffer.read() if named == "-" else Path(named).read_bytes()
    except OSError as error:
        raise UsageError(f"the history {named} cannot be read: {error.strerror}") from error
    try:
        events = events_from_text(text)
        return build_story(events if codec is None else unsealed(events, decoder(codec)), peek=peek)
    except HistoryError as error:
        raise HistoryError(f"{named}: {error}") from None


@dataclass(frozen=True)
class Watched:
    """A run known to a client."""

    client: Client
    workflow_id: str
    run_id: str | None = None
    peek: Peek = hidden
    children: bool = False
    failures: bool = True
    """Whether failure messages are displayed. With a codec they are encoded, like payloads."""

    def story(self) -> Story:
        """Return the run's story up to now."""
        return self.story_from(*self.fetch())

    def stories(self, pause: Callable[[], object]) -> Iterator[Story]:
        """Yield the run's current story repeatedly until the run has closed."""
        previous: tuple[int, tuple[HistoryEvent, ...]] | None = None
        while True:
            description, events = self.fetch(previous)
            previous = description.history_length, events
            story = self.story_from(description, events)
            yield story
            if story.end is not None:
                return
            pause()

    def fetch(
        self, previous: tuple[int, tuple[HistoryEvent, ...]] | None = None
    ) -> tuple[WorkflowDescription, tuple[HistoryEvent, ...]]:
        """Return the description and the events of the run, which are at least as recent as the description."""
        handle = self.client.get_workflow_handle(self.workflow_id, run_id=self.run_id)
        description = handle.describe()
        if previous is not None and previous[0] == description.history_length:
            return description, previous[1]
        run_handle = self.client.get_workflow_handle(self.workflow_id, run_id=description.run_id)
        events = run_handle.history()._lenient_events
        if not self.failures:
            return _hide_last_failures(description), without_messages(events)
        codec = self.client.codec
        return description, events if codec is None else unsealed(events, decoder(codec))

    def story_from(self, description: WorkflowDescription, events: tuple[HistoryEvent, ...]) -> Story:
        """Return the run's story from a description and events."""
        story = story_of(description, events, self.peek)
        return nest(story, dict(self._children(story))) if self.children else story

    def _children(self, story: Story) -> Iterator[tuple[str, Story]]:
        started = [
            child_span for child_span in story.spans if child_span.kind is Kind.CHILD and child_span.target
        ]
        for span in started[:MOST_CHILDREN]:
            child = replace(self, workflow_id=span.child_id, run_id=span.target)
            try:
                yield span.target, child.story()
            except WorkflowNotFoundError:
                continue  # the child's history was already deleted, or is in another namespace


def story_of(
    description: WorkflowDescription, events: tuple[HistoryEvent, ...], peek: Peek = hidden
) -> Story:
    """Return the story of a run from its description and its events."""
    return build_story(
        events,
        now=time_ns(),
        pending=[_pending(activity) for activity in description.pending_activities],
        task_attempt=description.task_attempt,
        peek=peek,
    )


def picture(description: WorkflowDescription, history: History, codec: Codec | None) -> str:
    """Return a run as a picture for a notebook, without payloads."""
    events = history._lenient_events
    story = story_of(description, events if codec is None else unsealed(events, decoder(codec)))
    return f'<div style="overflow-x:auto">{svg.draw(story, limit=_IN_A_NOTEBOOK)}</div>'


_IN_A_NOTEBOOK = 60
"""The maximum number of rows in a notebook. Beyond that, equal spans share a row."""


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
        last_heartbeat=nanoseconds(info.last_heartbeat_time),
        worker=clean(info.last_worker_identity),
    )


def _faults(error: BaseException | None) -> Iterator[Fault]:
    while error is not None:
        kind: Any = getattr(error, "type", None)
        trace: Any = getattr(error, "remote_traceback", "")
        yield Fault(
            kind if isinstance(kind, str) else type(error).__name__,
            str(error),
            authors_place(trace or ""),
            harmless(trace or ""),
        )
        error = error.__cause__
