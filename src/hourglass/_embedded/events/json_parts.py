"""Pieces of Temporal's JSON that events of many kinds are written with: times, durations, queues, policies.

Must not know: events. Protobuf's JSON rules hold (see `history_json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from hourglass._embedded.events.failure_json import payload_json
from hourglass._engine.events import RetryRule
from hourglass.converter import Payload

Json: TypeAlias = dict[str, Any]


def time_json(ns: int) -> str:
    """Nanoseconds since the epoch as RFC 3339."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def duration_json(seconds: float) -> str:
    """Seconds as protobuf writes a duration."""
    return nanoseconds_json(round(seconds * 1_000_000_000))


def nanoseconds_json(ns: int) -> str:
    """Nanoseconds as protobuf writes a duration."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    return f"{seconds}.{fraction:09d}".rstrip("0").rstrip(".") + "s"


def trim(attributes: Json) -> Json:
    """Without what is unset: protobuf leaves defaults out."""
    return {key: value for key, value in attributes.items() if value not in (None, "", "0", 0, False, {}, [])}


def fields_json(fields: Mapping[str, Payload], inner: str) -> Json | None:
    """Named payloads."""
    return {inner: {key: payload_json(value) for key, value in fields.items()}} if fields else None


def queue_json(name: str) -> Json:
    """A task queue."""
    return {"name": name, "kind": "TASK_QUEUE_KIND_NORMAL"}


def time_or_none(ns: int) -> str | None:
    """A time, unless it is unset."""
    return time_json(ns) if ns else None


def duration_or_none(seconds: float) -> str | None:
    """A duration, unless it is unset."""
    return duration_json(seconds) if seconds else None


def priority_json(key: int) -> Json | None:
    """A priority, unless it is unset."""
    return {"priorityKey": key} if key else None


def retry_json(rule: RetryRule | None) -> Json | None:
    """A retry policy as JSON."""
    if rule is None:
        return None
    return trim(
        {
            "initialInterval": duration_json(rule.initial_interval),
            "backoffCoefficient": rule.backoff_coefficient,
            "maximumInterval": duration_or_none(rule.maximum_interval),
            "maximumAttempts": rule.maximum_attempts,
            "nonRetryableErrorTypes": list(rule.non_retryable_error_types),
        }
    )
