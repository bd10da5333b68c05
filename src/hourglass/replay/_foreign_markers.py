"""Markers of Core and of SDKs that are not built on Core, as data, and workflow tasks with their markers. Pure.

Must not know: how replay uses markers. Any other marker raises a `HistoryError` that names the marker, because ignoring a
recorded value would replay a different execution.

| marker | Go | Java |
|---|---|---|
| `Version` | `change-id`, `version` | `changeId`, `version` |
| `LocalActivity` | `data` (id, type, time, attempt …), `result` | `activityId`, `type`, `time`, `input`, `result`, `meta` |
| `SideEffect` | `data` | `data` |
| `MutableSideEffect` | `side-effect-id`, `data` (id and value) | `id`, `data` |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from hourglass._evaluator.specs import Payloads
from hourglass._history import events as h
from hourglass._history import times
from hourglass._history.codec import LOCAL_MARKER, PATCH_MARKER, load_json
from hourglass._history.shapes import read_duration, read_moment, read_payloads
from hourglass._history.walk import WorkflowTask, tasks_of
from hourglass.converter import Failure, Payload
from hourglass.errors import HistoryError, HourglassError

_MILLISECOND = 1_000_000
_SECOND = 1_000_000_000
_READABLE = frozenset({"json/plain", "json/protobuf", "binary/protobuf", ""})


class VersionMark(msgspec.Struct, frozen=True):
    """A recorded decision: the run uses this version of a change."""

    event_id: int
    change_id: str
    version: int = 1
    is_deprecated: bool = False
    """Whether the patch is deprecated, so that the code no longer needs to check it."""

    @property
    def patches(self) -> tuple[str, ...]:
        """The equivalent patches: the change itself, and one for each later version of it."""
        if self.version < 0:
            return ()
        return (self.change_id, *[f"{self.change_id}-{number}" for number in range(1, self.version + 1)])


class LocalMark(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded result of a local activity's attempt. The activity is closed, or, with `backoff`, the next attempt is due
    later.

    An empty type or id is unknown.
    """

    event_id: int
    activity_type: str = ""
    activity_id: str = ""
    seq: int = 0
    """Core's sequence number, 0 if another SDK recorded it."""
    arguments: Payloads | None = None
    time_ns: int = 0
    attempt: int = 1
    backoff: float = 0.0
    original_schedule_ns: int = 0
    result: Payload | None = None
    failure: Failure | None = None


class EffectMark(msgspec.Struct, frozen=True):
    """A recorded value that the workflow's code computed nondeterministically."""

    value: Payload | None
    name: str = ""
    call: int = 0
    """The number of the call with that name, from 1; 0 if unknown."""


Mark: TypeAlias = VersionMark | LocalMark | EffectMark


Decode: TypeAlias = Callable[[Sequence[Payload]], Sequence[Payload]]


class _Details:
    """The details of a marker, by name. The codec decodes values that describe the marker, but not the author's values."""

    def __init__(self, event_id: int, marker: h.ForeignMarkerRecorded, decode: Decode | None) -> None:
        self.event_id = event_id
        self._marker = marker
        self._decode = decode

    def __contains__(self, key: str) -> bool:
        return key in self._marker.details

    def payloads(self, *keys: str) -> Payloads:
        """Return the payloads of the first key that exists."""
        for key in keys:
            if key in self:
                return self._marker.details[key]
        return ()

    def decoded(self, key: str) -> Payloads:
        """Return the decoded payloads of a key."""
        payloads = self.payloads(key)
        if self._decode is None or all(payload.encoding in _READABLE for payload in payloads):
            return payloads
        return tuple(self._decode(payloads))

    def json(self, *keys: str) -> Any:
        """Return the JSON value of the first key that exists, or None."""
        payloads = self.payloads(*keys)
        return json.loads(self.plain(payloads[0]).data) if payloads else None

    def plain(self, payload: Payload) -> Payload:
        """Decode a payload that describes the marker. Raise `ValueError` if its encoding is unknown."""
        if payload.encoding not in _READABLE and self._decode is not None:
            payload = self._decode([payload])[0]
        if payload.encoding not in _READABLE:
            raise ValueError(payload.encoding)
        return payload

    def end(self, *keys: str) -> dict[str, Any]:
        """Return the result and the failure, for the constructor of a mark."""
        result = self.payloads(*keys)
        failure = self._marker.failure
        return {"result": result[0] if result and failure is None else None, "failure": failure}


class MarkedTask(WorkflowTask, frozen=True, kw_only=True):
    """A workflow task with the content of its markers."""

    marks: tuple[Mark, ...] = ()


def marked_tasks(events: Sequence[h.HistoryEvent], decode: Decode | None = None) -> list[MarkedTask]:
    """Return the tasks of a history, in order. Raise `HistoryError`."""
    return [
        MarkedTask(
            **msgspec.structs.asdict(task),
            marks=tuple(read_marker(marker, decode) for marker in task.markers),
        )
        for task in tasks_of(events)
    ]


def read_marker(event: h.HistoryEvent, decode: Decode | None = None) -> Mark:
    """Return a marker as data. Raise `HistoryError` if the marker's kind is unknown or the marker is malformed."""
    match event.attributes:
        case h.MarkerRecorded(patch_id=patch_id, deprecated=deprecated):
            return VersionMark(event.id, patch_id, 0, deprecated)
        case h.LocalActivityMarkerRecorded() as local:
            return _own_local(event.id, local)
        case h.ForeignMarkerRecorded() as marker:
            return _read_foreign(event.id, marker, decode)
        case attributes:
            raise TypeError(attributes)


def _own_local(event_id: int, marker: h.LocalActivityMarkerRecorded) -> Mark:
    return LocalMark(
        event_id=event_id,
        activity_type=marker.activity_type,
        activity_id=marker.activity_id,
        seq=marker.seq,
        time_ns=marker.complete_ns,
        attempt=marker.attempt or 1,
        backoff=marker.backoff_ns / _SECOND,
        original_schedule_ns=marker.original_schedule_ns,
        result=marker.result if marker.failure is None else None,
        failure=marker.failure,
    )


def _read_foreign(event_id: int, marker: h.ForeignMarkerRecorded, decode: Decode | None) -> Mark:
    name = marker.marker_name
    read = _READ.get(name)
    if read is None:
        raise HistoryError(
            f"event {event_id} is a marker {name!r}, which Hourglass cannot replay; supported markers: "
            + ", ".join(sorted(_READ))
        )
    try:
        return read(_Details(event_id, marker, decode))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, HourglassError):
        raise HistoryError(f"event {event_id}: the marker {name!r} cannot be read") from None


def _version(details: _Details) -> Mark:
    change = details.json("change-id", "changeId")
    if not isinstance(change, str):
        raise TypeError(change)
    return VersionMark(details.event_id, change, int(details.json("version")))


def _core_patch(details: _Details) -> Mark:
    data = details.json("patch-data")
    if data is None:  # written by the first versions of Core
        return VersionMark(details.event_id, details.payloads("patch_id")[0].data.decode(), 0)
    return VersionMark(details.event_id, data["id"], 0, bool(data.get("deprecated")))


def _local(details: _Details) -> Mark:
    data = details.json("data") if "activityId" not in details else None
    if isinstance(data, dict) and "ActivityID" in data:
        return _go_local(details, data)
    return _java_local(details)


def _go_local(details: _Details, data: dict[str, Any]) -> Mark:
    return LocalMark(
        event_id=details.event_id,
        activity_type=data.get("ActivityType") or "",
        activity_id=data["ActivityID"],
        time_ns=max(times.moment(data.get("ReplayTime") or "") or 0, 0),  # year 1: unknown
        attempt=int(data.get("Attempt") or 1),
        backoff=max(int(data.get("Backoff") or 0), 0) / _SECOND,  # -1: no retry
        **details.end("result"),
    )


def _java_local(details: _Details) -> Mark:
    meta = details.json("meta") or {}
    activity_id = details.json("activityId")
    if not isinstance(activity_id, str):
        raise TypeError(activity_id)
    return LocalMark(
        event_id=details.event_id,
        activity_type=details.json("type") or "",
        activity_id=activity_id,
        arguments=details.decoded("input") if "input" in details else None,
        time_ns=int(details.json("time") or 0) * _MILLISECOND,
        attempt=int(meta.get("atpt") or 1),
        backoff=float(meta.get("backoff") or 0),
        original_schedule_ns=int(meta.get("firstSkd") or 0) * _MILLISECOND,
        **details.end("result", "data"),
    )


def _core_local(details: _Details) -> Mark:
    data = details.json("data")
    return LocalMark(
        event_id=details.event_id,
        activity_type=data.get("activity_type") or "",
        activity_id=data.get("activity_id") or "",
        seq=int(data.get("seq") or 0),
        time_ns=read_moment(data.get("complete_time")),
        attempt=int(data.get("attempt") or 1),
        backoff=read_duration(data.get("backoff")) / _SECOND,
        original_schedule_ns=read_moment(data.get("original_schedule_time")),
        **details.end("result"),
    )


def _effect(details: _Details) -> Mark:
    data = details.payloads("data")
    return EffectMark(data[0] if data else None)


def _mutable_effect(details: _Details) -> Mark:
    data = details.payloads("data")
    if len(data) == 2:  # Go: the name, and the payloads of the value, encoded twice
        name, value = details.plain(data[0]), details.plain(data[1])
        inner = _encoded_once_more(value)
        call = details.json("mutable-side-effect-call-counter")
        return EffectMark(inner[0] if inner else None, json.loads(name.data), int(call or 0))
    named = details.json("id", "side-effect-id")
    return EffectMark(data[0] if data else None, named if isinstance(named, str) else "")


def _encoded_once_more(value: Payload) -> Payloads:
    if value.encoding != "binary/protobuf":
        return read_payloads(load_json(value.data))
    from hourglass._temporal.protos import payloads_from_bytes

    return payloads_from_bytes(value.data)


_READ = {
    "Version": _version,
    "LocalActivity": _local,
    "SideEffect": _effect,
    "MutableSideEffect": _mutable_effect,
    PATCH_MARKER: _core_patch,
    LOCAL_MARKER: _core_local,
}
