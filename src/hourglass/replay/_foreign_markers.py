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
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from hourglass._engine.events import Payloads
from hourglass._temporal.failures import failure_from
from hourglass._temporal.foreign import payloads_from_bytes, payloads_from_json
from hourglass._temporal.payloads import payloads_from
from hourglass.converter import Failure, Payload
from hourglass.errors import HistoryError

_MILLISECOND = 1_000_000
_SECOND = 1_000_000_000


class VersionMark(msgspec.Struct, frozen=True):
    """The run took this version at this change."""

    event_id: int
    change_id: str
    version: int = 1

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


Mark: TypeAlias = VersionMark | LocalMark | EffectMark


def read_marker(event: Any) -> Mark:
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
        return read(event.event_id, attributes)
    except (ValueError, TypeError, KeyError, IndexError):
        raise HistoryError(f"event {event.event_id}: the marker {name!r} cannot be read") from None


def _detail(attributes: Any, *keys: str) -> Payloads:
    for key in keys:
        if key in attributes.details:
            return payloads_from(attributes.details[key].payloads)
    return ()


def _json(attributes: Any, *keys: str) -> Any:
    found = _detail(attributes, *keys)
    if not found:
        return None
    if found[0].encoding not in ("json/plain", "json/protobuf", ""):
        raise ValueError(found[0].encoding)
    return json.loads(found[0].data)


def _version(event_id: int, attributes: Any) -> Mark:
    change = _json(attributes, "change-id", "changeId")
    if not isinstance(change, str):
        raise TypeError(change)
    return VersionMark(event_id, change, int(_json(attributes, "version")))


def _core_patch(event_id: int, attributes: Any) -> Mark:
    data = _json(attributes, "patch-data")
    if data is None:  # as Core wrote it in its first years
        return VersionMark(event_id, _detail(attributes, "patch_id")[0].data.decode(), 0)
    return VersionMark(event_id, data["id"], 0)


def _local(event_id: int, attributes: Any) -> Mark:
    data = _json(attributes, "data") if "activityId" not in attributes.details else None
    if isinstance(data, dict) and "ActivityID" in data:
        return _go_local(event_id, attributes, data)
    return _java_local(event_id, attributes)


def _end(attributes: Any, *keys: str) -> dict[str, Any]:
    result = _detail(attributes, *keys)
    failure = failure_from(attributes.failure) if attributes.HasField("failure") else None
    return {"result": result[0] if result and failure is None else None, "failure": failure}


def _go_local(event_id: int, attributes: Any, data: dict[str, Any]) -> Mark:
    return LocalMark(
        event_id=event_id,
        activity_type=data.get("ActivityType") or "",
        activity_id=data["ActivityID"],
        time_ns=_time_ns(data.get("ReplayTime") or ""),
        attempt=int(data.get("Attempt") or 1),
        backoff=max(int(data.get("Backoff") or 0), 0) / _SECOND,  # -1: never again
        **_end(attributes, "result"),
    )


def _java_local(event_id: int, attributes: Any) -> Mark:
    meta = _json(attributes, "meta") or {}
    return LocalMark(
        event_id=event_id,
        activity_type=_json(attributes, "type") or "",
        activity_id=_json(attributes, "activityId") or "",
        arguments=_detail(attributes, "input") if "input" in attributes.details else None,
        time_ns=int(_json(attributes, "time") or 0) * _MILLISECOND,
        attempt=int(meta.get("atpt") or 1),
        backoff=float(meta.get("backoff") or 0),
        original_schedule_ns=int(meta.get("firstSkd") or 0) * _MILLISECOND,
        **_end(attributes, "result", "data"),
    )


def _core_local(event_id: int, attributes: Any) -> Mark:
    data = _json(attributes, "data")
    backoff = data.get("backoff") or {}
    return LocalMark(
        event_id=event_id,
        activity_type=data.get("activity_type") or "",
        activity_id=data.get("activity_id") or "",
        time_ns=_core_ns(data.get("complete_time")),
        attempt=int(data.get("attempt") or 1),
        backoff=_core_ns(backoff) / _SECOND,
        original_schedule_ns=_core_ns(data.get("original_schedule_time")),
        **_end(attributes, "result"),
    )


def _core_ns(value: Any) -> int:
    """Core writes times and durations as seconds and nanoseconds, or as text."""
    if isinstance(value, dict):
        return int(value.get("seconds") or 0) * _SECOND + int(value.get("nanos") or 0)
    if isinstance(value, str) and value.endswith("s"):
        return round(float(value[:-1]) * _SECOND)
    return _time_ns(value) if isinstance(value, str) else 0


def _effect(event_id: int, attributes: Any) -> Mark:
    data = _detail(attributes, "data")
    return EffectMark(event_id, data[0] if data else None)


def _mutable_effect(event_id: int, attributes: Any) -> Mark:
    data = _detail(attributes, "data")
    if len(data) == 2:  # Go: the name, and the payloads of the value, encoded once more
        read = payloads_from_bytes if data[1].encoding == "binary/protobuf" else payloads_from_json
        inner = read(data[1].data)
        return EffectMark(event_id, inner[0] if inner else None, json.loads(data[0].data))
    name = _json(attributes, "id", "side-effect-id")
    return EffectMark(event_id, data[0] if data else None, name if isinstance(name, str) else "")


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
