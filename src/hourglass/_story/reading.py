"""Histories in JSON as events: what `temporal workflow show -o json` writes, Temporal's web UI exports, SDKs and Hourglass give.

Lenient, because a picture of most is better than none: unknown kinds of events, missing attributes and payloads that the web UI
has decoded are no reason to refuse. What is no history at all raises `HistoryError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from hourglass._story.text import S
from hourglass.errors import HistoryError

Json: TypeAlias = Mapping[str, Any]

_CAPITALS = re.compile(r"(?<!^)(?=[A-Z])")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?$")
_DURATION = re.compile(r"(-?)(\d+)(?:\.(\d{1,9}))?s$")


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `kind` is its type without prefix, such as `TIMER_FIRED`."""

    id: int
    time: int
    kind: str
    attributes: Json
    metadata: Json


def events_from_text(text: str | bytes) -> tuple[Event, ...]:
    """The events of a history: an object with `events`, a list, or a JSON object per line. Raises `HistoryError`."""
    return events_from(_events_of(_load(text)))


def events_from(documents: Iterable[Any]) -> tuple[Event, ...]:
    """Events from their JSON objects. Raises `HistoryError`."""
    events = tuple(_event(each, at) for at, each in enumerate(documents, 1))
    if not events:
        raise HistoryError("this history has no events")
    return events


def nanoseconds(value: object) -> int:
    """A moment as protobuf's JSON, or as an object of seconds and nanos; 0 where there is none."""
    match value:
        case str():
            return _nanoseconds(value)
        case {"seconds": seconds}:
            return number(seconds) * S + number(_get(value, "nanos"))
    return 0


def span_of(value: object) -> int:
    """A duration as protobuf's JSON, or as an object of seconds and nanos; 0 where there is none."""
    if isinstance(value, str) and (found := _DURATION.match(value)):
        sign, seconds, fraction = found.groups()
        return (-1 if sign else 1) * (int(seconds) * S + int((fraction or "").ljust(9, "0")))
    return nanoseconds(value) if isinstance(value, Mapping) else 0


def number(value: object) -> int:
    """An integer, which protobuf's JSON may write as text; 0 where there is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return 0
    try:
        return int(value)
    except (ValueError, OverflowError):
        return 0


def inner(value: object, *path: str) -> Any:
    """What stands at the end of a path of keys, or None."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def text(value: object, *path: str) -> str:
    """The text at the end of a path of keys; empty where there is none."""
    found = inner(value, *path)
    return clean(found) if isinstance(found, str) else ""


def clean(value: str) -> str:
    """In one line and without control characters: what a history says must not speak to a terminal."""
    return "".join(each if each.isprintable() else " " for each in value).strip()


def _load(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise HistoryError("this JSON is nested too deeply for a history") from None
    except ValueError as error:
        lines = [each for each in text.splitlines() if each.strip()]
        if len(lines) > 1:
            try:
                return [json.loads(each) for each in lines]
            except (ValueError, RecursionError):
                pass
        raise HistoryError(f"a history must be JSON: {error}") from None


def _events_of(document: Any) -> list[Any]:
    for found in (document, inner(document, "events"), inner(document, "history", "events")):
        if isinstance(found, list):
            return found
    raise HistoryError("a history in JSON is an object with a list of events")


def _event(document: Any, at: int) -> Event:
    if not isinstance(document, Mapping) or "eventType" not in document:
        raise HistoryError(f"event {at} is no event: it has no eventType")
    kind = str(document["eventType"])
    kind = kind.removeprefix("EVENT_TYPE_") if "_" in kind else _CAPITALS.sub("_", kind).upper()
    attributes = next(
        (each for key, each in document.items() if key.endswith("EventAttributes")),
        document.get("attributes"),
    )
    time = nanoseconds(document.get("eventTime"))
    if not time:
        raise HistoryError(f"event {at} does not tell when it happened (eventTime)")
    return Event(
        number(document.get("eventId")) or at,
        time,
        clean(kind),
        attributes if isinstance(attributes, Mapping) else {},
        _get(document, "userMetadata") or {},
    )


def _get(value: object, key: str) -> Any:
    found = inner(value, key)
    return found if isinstance(found, (Mapping, int, str)) else None


def _nanoseconds(value: str) -> int:
    found = _TIME.match(value.strip())
    if found is None:
        return 0
    day, clock, fraction, zone = found.groups()
    try:
        whole = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in (None, 'Z') else zone}")
        seconds = int((whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    except (ValueError, OverflowError):
        return 0
    return seconds * S + int((fraction or "")[:9].ljust(9, "0"))
