"""`History`: a recorded history in Temporal's JSON form, as used by `temporal workflow show --output json` and
every SDK.

The class can also read Temporal's binary form, which some tools store in `.bin` files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hourglass._history.codec import events_from_text
from hourglass._history.dialect import Dialect, dialect_of, is_of_embedded_engine, sdk_name
from hourglass._history.events import FINAL, HistoryEvent, WorkflowExecutionStarted
from hourglass._history.words import all_recorded
from hourglass.errors import HistoryError

if TYPE_CHECKING:
    from hourglass._evaluator.words import CommandSummary
    from hourglass._temporal.histories import Recorded
    from hourglass.replay._foreign_markers import MarkedTask


class HistoryFacts(msgspec.Struct, frozen=True):
    """The properties of a history that a replay needs before it begins."""

    workflow_type: str
    workflow_id: str
    run_id: str
    task_queue: str
    expected: tuple[CommandSummary, ...]
    dialect: Dialect
    may_be_python: bool
    """Whether Temporal's Python SDK may have written the history. Older histories do not name their SDK."""
    is_open: bool
    engine: str
    """The engine that wrote the history: "temporal", "embedded", or "" if unknown."""


def read_facts(events: tuple[HistoryEvent, ...], *, of_server: bool = False) -> HistoryFacts:
    """Return the facts of a valid history."""
    first = events[0].attributes
    assert isinstance(first, WorkflowExecutionStarted)
    return HistoryFacts(
        workflow_type=first.workflow_type,
        workflow_id=first.workflow_id,
        run_id=first.original_run_id,
        task_queue=first.spec.task_queue,
        expected=all_recorded(events),
        dialect=dialect_of(events),
        may_be_python=sdk_name(events) in ("", "temporal-python"),
        is_open=not isinstance(events[-1].attributes, FINAL),
        engine="temporal" if of_server else "embedded" if is_of_embedded_engine(events) else "",
    )


class History:
    """The history of one run. It is parsed and validated on first use, not when the object is created."""

    def __init__(self, workflow_id: str, text: str | bytes) -> None:
        self._workflow_id = workflow_id
        self._text = text

    @classmethod
    def from_json(cls, text: str | bytes, *, workflow_id: str = "") -> History:
        """Return a history from its JSON text, or from bytes in JSON or Temporal's binary form."""
        if not isinstance(text, (str, bytes)):
            raise HistoryError(f"a history must be str or bytes of JSON, not {type(text).__name__}")
        return cls(workflow_id, text)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, workflow_id: str = "") -> History:
        """Return a history from a file in JSON or Temporal's binary form."""
        try:
            return cls(workflow_id, Path(path).read_bytes())
        except OSError as error:
            raise HistoryError(f"the history {os.fspath(path)} cannot be read: {error.strerror}") from error

    @classmethod
    def from_events(cls, workflow_id: str, events: Iterable[bytes]) -> History:
        """Return a history from the JSON of its individual events."""
        return cls(workflow_id, b'{"events":[' + b",".join(events) + b"]}")

    @property
    def workflow_id(self) -> str:
        """The workflow id: the id passed to the constructor, or else the id in the history."""
        return self._workflow_id or self._facts.workflow_id or "replayed"

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._facts.run_id

    @property
    def workflow_type(self) -> str:
        """The workflow's type."""
        return self._facts.workflow_type

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The events as JSON objects."""
        events: list[dict[str, Any]] = json.loads(self.to_json())["events"]
        return events

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the history as JSON, in the current format of Temporal's tools."""
        from hourglass._temporal.histories import history_to_json

        return json.dumps(json.loads(history_to_json(self.encoded)), indent=indent, ensure_ascii=False)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write the history to a file, as JSON."""
        Path(path).write_text(self.to_json(indent=2), encoding="utf-8")

    @cached_property
    def _recorded(self) -> Recorded:
        """The parsed and validated history."""
        from hourglass._temporal.histories import read_history

        return read_history(self._text)

    @property
    def encoded(self) -> bytes:
        """The history as Temporal's protobuf message. Raise `HistoryError` if the history is malformed."""
        return self._recorded.encoded

    @property
    def replayable(self) -> bytes:
        """The history in the form that Core replays. The history of an open run is extended by the next workflow task. Raise
        `HistoryError` if there are no events to replay.
        """
        from hourglass._temporal.histories import check_replayable, with_next_task

        check_replayable(self._recorded.events)
        return with_next_task(self.encoded) if self._facts.is_open else self.encoded

    @cached_property
    def _lenient_events(self) -> tuple[HistoryEvent, ...]:
        """The events as data, without unknown parts. Raise `HistoryError` if the text is not a history."""
        if isinstance(self._text, bytes) and not self._text.lstrip().startswith((b"{", b"[")):
            return self._recorded.events  # Temporal's binary form
        return events_from_text(self._text)

    @cached_property
    def _facts(self) -> HistoryFacts:
        return read_facts(self._recorded.events, of_server=self._recorded.of_server)

    @cached_property
    def _tasks(self) -> list[MarkedTask]:
        """The workflow tasks, if their markers can be read without a codec. Raise `HistoryError` otherwise."""
        from hourglass.replay._foreign_markers import marked_tasks

        return marked_tasks(self._recorded.events)

    def __len__(self) -> int:
        return len(self._recorded.events)

    def __repr__(self) -> str:
        return f"<History of {self._workflow_id or 'a workflow'}>"
