"""Payloads, durations, times and retry policies to protobuf and back. Pure, and on the hot path.

Reading an unset message field yields defaults without creating it, so presence is asked only where it means
something. Writing goes straight into the message that will be sent: copies cost more than the fields
themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hourglass._engine.events import Payloads, RetryRule
from hourglass.converter import Payload

_KNOWN: dict[bytes, str] = {
    name.encode(): name
    for name in ("json/plain", "binary/null", "binary/plain", "json/protobuf", "binary/protobuf")
}
_BYTES: dict[str, bytes] = {name: raw for raw, name in _KNOWN.items()}

_NANOS = 1_000_000_000
_NONE: dict[str, Payload] = {}  # shared by all that have none; data is never changed


def payload_from(message: Any) -> Payload:
    """A payload as data."""
    metadata = message.metadata
    raw = metadata.get("encoding", b"")
    encoding = _KNOWN.get(raw)
    if encoding is None:
        encoding = raw.decode("utf-8", "surrogateescape")
    if len(metadata) == (1 if raw else 0):
        return Payload(message.data, encoding)
    rest = {key: value for key, value in metadata.items() if key != "encoding"}
    return Payload(message.data, encoding, rest or None)


def payloads_from(messages: Iterable[Any]) -> Payloads:
    """Payloads as data, in order."""
    return tuple([payload_from(message) for message in messages])


def payload_map_from(messages: Mapping[str, Any]) -> dict[str, Payload]:
    """Named payloads as data."""
    return {key: payload_from(messages[key]) for key in messages} if messages else _NONE


def put_payload(message: Any, payload: Payload) -> None:
    """Write a payload into an empty message."""
    message.data = payload.data
    encoding = payload.encoding
    if encoding:
        raw = _BYTES.get(encoding)
        message.metadata["encoding"] = encoding.encode("utf-8", "surrogateescape") if raw is None else raw
    if payload.metadata:
        for key, value in payload.metadata.items():
            message.metadata[key] = value


def put_payloads(messages: Any, payloads: Payloads) -> None:
    """Append payloads to a repeated field."""
    for payload in payloads:
        put_payload(messages.add(), payload)


def put_payload_map(messages: Any, payloads: Mapping[str, Payload]) -> None:
    """Add named payloads to a map field."""
    for key, payload in payloads.items():
        put_payload(messages[key], payload)


def seconds_from(duration: Any) -> float:
    """A duration in seconds; 0 where it is unset."""
    nanos = duration.nanos
    return float(duration.seconds + nanos / _NANOS if nanos else duration.seconds)


def put_seconds(duration: Any, seconds: float) -> None:
    """Write a duration, also that of 0."""
    whole = int(seconds)
    if whole == seconds:  # nearly all are
        duration.seconds = whole
    else:
        put_nanos(duration, round(seconds * _NANOS))


def put_nanos(message: Any, nanos: int) -> None:
    """Write nanoseconds into a duration or a timestamp."""
    message.seconds, message.nanos = divmod(nanos, _NANOS)


def nanos_from(timestamp: Any) -> int:
    """A time in nanoseconds since the epoch; 0 where it is unset."""
    return int(timestamp.seconds * _NANOS + timestamp.nanos)


def retry_rule_from(policy: Any) -> RetryRule:
    """A retry policy as data."""
    return RetryRule(
        initial_interval=seconds_from(policy.initial_interval),
        backoff_coefficient=policy.backoff_coefficient,
        maximum_interval=seconds_from(policy.maximum_interval),
        maximum_attempts=policy.maximum_attempts,
        non_retryable_error_types=tuple(policy.non_retryable_error_types),
    )


def put_retry_rule(policy: Any, rule: RetryRule) -> None:
    """Write a retry policy."""
    put_seconds(policy.initial_interval, rule.initial_interval)
    policy.backoff_coefficient = rule.backoff_coefficient
    if rule.maximum_interval:
        put_seconds(policy.maximum_interval, rule.maximum_interval)
    policy.maximum_attempts = rule.maximum_attempts
    if rule.non_retryable_error_types:
        policy.non_retryable_error_types.extend(rule.non_retryable_error_types)
