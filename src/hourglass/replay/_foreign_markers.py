"""The markers of SDKs that are not built on Core, and Core's own, as data. Pure.

Must not know: what is done with them. A marker that is none of these is a `HistoryError` that names it: running a workflow past
something that its SDK wrote down for it would be a replay of something else.

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
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from hourglass._engine.specs import Payloads
from hourglass._temporal.expectations import payloads_from_bytes, payloads_from_json
from hourglass._temporal.payloads import failure_from, payloads_from
from hourglass.converter import Failure, Payload
from hourglass.errors import HistoryError, HourglassError

_MILLISECOND = 1_000_000
_SECOND = 1_000_000_000
_READABLE = frozenset({"json/plain", "json/protobuf", "binary/protobuf", ""})


class VersionMark(msgspec.Struct, frozen=True):
    """The run took this version at this change."""

    event_id: int
    change_id: str
    version: int = 1
    is_deprecated: bool = False
    """Whether the code need not ask for it any more."""

    @property
    def patches(self) -> tuple[str, ...]:
        """The patches that say so: the change itself, and each later version of it."""
        if self.version < 0:
            return ()
        return (self.change_id, *[f"{self.change_id}-{number}" for number in range(1, self.version + 1)])


class LocalMark(msgspec.Struct, frozen=True, kw_only=True):
    """A local activity ended, or (with a backoff) waits for its next attempt. An empty type or id is not known."""

    event_id: int
    activity_type: str = ""
    activity_id: str = ""
    seq: int = 0
    """Core's number for it, 0 where Core had no hand in it."""
    arguments: Payloads | None = None
    time_ns: int = 0
    attempt: int = 1
    backoff: float = 0.0
    original_schedule_ns: int = 0
    result: Payload | None = None
    failure: Failure | None = None


class EffectMark(msgspec.Struct, frozen=True):
    """A value that the workflow's code came by in a way that is not deterministic."""

    event_id: int
    value: Payload | None
    name: str = ""
    call: int = 0
    """The how-manieth call of that name it was, from 1; 0 where that is not known."""


Mark: TypeAlias = VersionMark | LocalMark | EffectMark


Decode: TypeAlias = Callable[[Sequence[Payload]], Sequence[Payload]]


class _Details:
    """The details of a marker, by name. What describes it may have gone through a codec; what it holds is left as it is."""

    def __init__(self, event_id: int, attributes: Any, decode: Decode | None) -> None:
        self.event_id = event_id
        self.attributes = attributes
        self._decode = decode

    def __contains__(self, key: str) -> bool:
        return key in self.attributes.details

    def payloads(self, *keys: str) -> Payloads:
        """The payloads of the first of these that is there."""
        for key in keys:
            if key in self:
                return payloads_from(self.attributes.details[key].payloads)
        return ()

    def decoded(self, key: str) -> Payloads:
        """The payloads of this one as the code knew them."""
        found = self.payloads(key)
        if self._decode is None or all(each.encoding in _READABLE for each in found):
            return found
        return tuple(self._decode(found))

    def json(self, *keys: str) -> Any:
        """The value of the first of these that is there."""
        found = self.payloads(*keys)
        return json.loads(self.plain(found[0]).data) if found else None

    def plain(self, payload: Payload) -> Payload:
        """A payload that describes the marker, as its SDK understood it."""
        if payload.encoding not in _READABLE and self._decode is not None:
            payload = self._decode([payload])[0]
        if payload.encoding not in _READABLE:
            raise ValueError(payload.encoding)
        return payload

    def end(self, *keys: str) -> dict[str, Any]:
        """How what the marker tells of ended."""
        result = self.payloads(*keys)
        there = self.attributes.HasField("failure")
        failure = failure_from(self.attributes.failure) if there else None
        return {"result": result[0] if result and failure is None else None, "failure": failure}


def read_marker(event: Any, decode: Decode | None = None) -> Mark:
    """A marker as data. Raises `HistoryError` where it is of no known kind or cannot be read."""
    attributes = event.marker_recorded_event_attributes
    name = attributes.marker_name
    read = _READ.get(name)
    if read is None:
        raise HistoryError(
            f"event {event.event_id} is a marker {name!r}, which Hourglass cannot replay: known are "
            + ", ".join(sorted(_READ))
        )
    try:
        return read(_Details(event.event_id, attributes, decode))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, HourglassError):
        raise HistoryError(f"event {event.event_id}: the marker {name!r} cannot be read") from None


def _version(details: _Details) -> Mark:
    change = details.json("change-id", "changeId")
    if not isinstance(change, str):
        raise TypeError(change)
    return VersionMark(details.event_id, change, int(details.json("version")))


def _core_patch(details: _Details) -> Mark:
    data = details.json("patch-data")
    if data is None:  # as Core wrote it in its first years
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
        time_ns=_time_ns(data.get("ReplayTime") or ""),
        attempt=int(data.get("Attempt") or 1),
        backoff=max(int(data.get("Backoff") or 0), 0) / _SECOND,  # -1: never again
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
        time_ns=_core_ns(data.get("complete_time")),
        attempt=int(data.get("attempt") or 1),
        backoff=_core_ns(data.get("backoff")) / _SECOND,
        original_schedule_ns=_core_ns(data.get("original_schedule_time")),
        **details.end("result"),
    )


def _core_ns(value: Any) -> int:
    """Core writes times and durations as seconds and nanoseconds, or as text."""
    if isinstance(value, dict):
        return int(value.get("seconds") or 0) * _SECOND + int(value.get("nanos") or 0)
    if isinstance(value, str) and value.endswith("s"):
        return round(float(value[:-1]) * _SECOND)
    return _time_ns(value) if isinstance(value, str) else 0


def _effect(details: _Details) -> Mark:
    data = details.payloads("data")
    return EffectMark(details.event_id, data[0] if data else None)


def _mutable_effect(details: _Details) -> Mark:
    data = details.payloads("data")
    if len(data) == 2:  # Go: the name, and the payloads of the value, encoded once more
        name, value = details.plain(data[0]), details.plain(data[1])
        read = payloads_from_bytes if value.encoding == "binary/protobuf" else payloads_from_json
        inner = read(value.data)
        call = details.json("mutable-side-effect-call-counter")
        return EffectMark(
            details.event_id, inner[0] if inner else None, json.loads(name.data), int(call or 0)
        )
    named = details.json("id", "side-effect-id")
    return EffectMark(details.event_id, data[0] if data else None, named if isinstance(named, str) else "")


def _time_ns(text: str) -> int:
    if not text or text.startswith("0001-"):
        return 0
    whole, _, fraction = text.rstrip("Z").partition(".")
    if "+" in fraction or "-" in fraction:  # Go writes the local zone
        sign = "+" if "+" in fraction else "-"
        fraction, _, zone = fraction.partition(sign)
        zone = sign + zone
    else:
        zone = "+00:00" if text.endswith("Z") else ""
    seconds = datetime.fromisoformat(whole + zone).timestamp()
    return int(seconds) * _SECOND + int((fraction + "000000000")[:9])


_READ = {
    "Version": _version,
    "LocalActivity": _local,
    "SideEffect": _effect,
    "MutableSideEffect": _mutable_effect,
    "core_patch": _core_patch,
    "core_local_activity": _core_local,
}
