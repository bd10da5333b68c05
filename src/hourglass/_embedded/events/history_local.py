"""The event by which a history tells of a local activity: a marker, in which Core writes down how it ended.

Must not know: JSON (see `history_local_json`), decisions, clocks. An attempt of a local activity leaves no trace;
one that ends for good, or that is to be tried again after a long pause, is one marker.
"""

from __future__ import annotations

from hourglass._embedded.events.history_base import Attributes
from hourglass._engine.commands import Command
from hourglass.converter import Failure, Payload

NO_INDEX = -1
"""In a marker that does not say in which activation of its task it was told."""


class MarkerRecorded(Attributes, frozen=True, kw_only=True, tag="LocalActivityMarkerRecorded"):
    """A local activity ended, or waits (`backoff_ns`) for its next attempt.

    `activation_index` is the place, among the activations of its task, of the one that the run heard it in: a replay
    tells it in the same one.
    """

    seq: int
    activity_id: str
    activity_type: str
    task_completed_event_id: int
    attempt: int = 0
    complete_ns: int = 0
    backoff_ns: int = 0
    original_schedule_ns: int = 0
    activation_index: int = NO_INDEX
    result: Payload | None = None
    failure: Failure | None = None
    summary: Payload | None = None


class RecordLocalActivity(Command, frozen=True):
    """Core's own command: write this marker (but for the task that it belongs to)."""

    marker: MarkerRecorded


LOCAL_KINDS: tuple[type[Attributes], ...] = (MarkerRecorded,)
