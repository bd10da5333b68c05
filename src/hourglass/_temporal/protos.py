"""Conversion between our values and protobuf: payloads, durations, times, versions. Pure,
and on the hot path. The options of activities and workflows are in `specs`, failures in
`failures`.

Reading an unset message field returns defaults without creating it, so presence is checked only where it has a meaning.
Values are written directly into the message that will be sent, because copying costs more than the fields themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from temporalio.api.common.v1 import Payloads as PayloadsMessage

from hourglass._evaluator.specs import (
    AutoUpgradeVersioningOverride,
    OneTimeVersioningOverride,
    Payloads,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass.converter import Payload

_ENCODINGS: dict[bytes, str] = {
    name.encode(): name
    for name in ("json/plain", "binary/null", "binary/plain", "json/protobuf", "binary/protobuf")
}
_ENCODING_BYTES: dict[str, bytes] = {name: raw for raw, name in _ENCODINGS.items()}

NANOS = 1_000_000_000
NO_PAYLOADS: dict[str, Payload] = {}  # shared: never modified


def payload_from(message: Any) -> Payload:
    """Decode a payload message."""
    metadata = message.metadata
    raw = metadata.get("encoding", b"")
    encoding = _ENCODINGS.get(raw)
    if encoding is None:
        encoding = raw.decode("utf-8", "surrogateescape")
    if len(metadata) == (1 if raw else 0):
        return Payload(message.data, encoding)
    extra = {key: value for key, value in metadata.items() if key != "encoding"}
    return Payload(message.data, encoding, extra or None)


def payloads_from(messages: Iterable[Any]) -> Payloads:
    """Decode payload messages, in order."""
    payloads = []
    for message in messages:
        payloads.append(payload_from(message))
    return tuple(payloads)


def payloads_from_bytes(data: bytes) -> Payloads:
    """Decode a serialized Payloads message. Raises `ValueError`."""
    try:
        return payloads_from(PayloadsMessage.FromString(data).payloads)
    except Exception:
        raise ValueError("not a serialized Payloads message") from None


def payload_map_from(messages: Mapping[str, Any]) -> dict[str, Payload]:
    """Return named payloads, sorted by name: the order of protobuf's maps differs between processes."""
    return {key: payload_from(messages[key]) for key in sorted(messages)} if messages else NO_PAYLOADS


def put_payload(message: Any, payload: Payload) -> None:
    """Write a payload into an empty message."""
    message.data = payload.data
    encoding = payload.encoding
    if encoding:
        raw = _ENCODING_BYTES.get(encoding)
        message.metadata["encoding"] = encoding.encode("utf-8", "surrogateescape") if raw is None else raw
    if payload.metadata:
        for key, value in payload.metadata.items():
            message.metadata[key] = value


def put_payloads(messages: Any, payloads: Payloads) -> None:
    """Append payloads to a repeated field."""
    for payload in payloads:
        put_payload(messages.add(), payload)


def put_payload_map(messages: Any, payloads: Mapping[str, Payload]) -> None:
    """Add named payloads to a map field. Without payloads, the message that contains the field stays unset."""
    for key, payload in payloads.items():
        put_payload(messages[key], payload)


def seconds_from(duration: Any) -> float:
    """Return a duration in seconds, or 0 if it is unset."""
    nanos = duration.nanos
    return float(duration.seconds + nanos / NANOS if nanos else duration.seconds)


def put_seconds(duration: Any, seconds: float) -> None:
    """Write a duration, even if it is 0."""
    full_seconds = int(seconds)
    if full_seconds == seconds:  # true of nearly all durations
        duration.seconds = full_seconds
    else:
        put_nanos(duration, round(seconds * NANOS))


def put_nanos(message: Any, nanos: int) -> None:
    """Write nanoseconds into a duration or a timestamp."""
    message.seconds, message.nanos = divmod(nanos, NANOS)


def nanos_from(timestamp: Any) -> int:
    """Return a time in nanoseconds since the epoch, or 0 if it is unset."""
    return int(timestamp.seconds * NANOS + timestamp.nanos)


_PIN = 1  # PINNED_OVERRIDE_BEHAVIOR_PINNED


def put_override(message: Any, override: VersioningOverride) -> None:
    """Write an override to the current fields and, if possible, to the fields that servers before 1.29 read."""
    match override:
        case PinnedVersioningOverride(version):
            message.behavior = int(VersioningBehavior.PINNED)
            message.pinned_version = version.to_canonical_string()
            _put_version(message.pinned.version, version)
            message.pinned.behavior = _PIN
        case OneTimeVersioningOverride(version):
            _put_version(message.one_time.target_deployment_version, version)
        case _:
            message.behavior = int(VersioningBehavior.AUTO_UPGRADE)
            message.auto_upgrade = True


def _put_version(message: Any, version: WorkerDeploymentVersion) -> None:
    message.deployment_name = version.deployment_name
    message.build_id = version.build_id


def override_from(message: Any) -> VersioningOverride | None:
    """Decode an override. Return None if it is not set."""
    match message.WhichOneof("override"):
        case "pinned":
            return PinnedVersioningOverride(version_from(message.pinned.version))
        case "one_time":
            return OneTimeVersioningOverride(version_from(message.one_time.target_deployment_version))
        case "auto_upgrade":
            return AutoUpgradeVersioningOverride()
        case _:
            return None


def version_from(message: Any) -> WorkerDeploymentVersion:
    """Decode a deployment version."""
    return WorkerDeploymentVersion(message.deployment_name, message.build_id)
