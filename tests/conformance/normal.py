"""Histories as plain data: their events and attributes without identities, times and ids, comparable by `==`.

Knows neither engines nor scenarios.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any

from hourglass.replay import History

from .world import event_types

# Identities, times and internal fields of a server, which differ between runs.
_IGNORED = frozenset(
    {
        "binaryChecksum",
        "buildIdBasedVersioning",
        "eventId",
        "eventTime",
        "firstExecutionRunId",
        "historySizeBytes",
        "identity",
        "inheritBuildId",
        "inheritedAutoUpgradeInfo",
        "inheritedBuildId",
        "lastHeartbeatTime",
        "meteringMetadata",
        "newExecutionRunId",
        "namespaceId",
        "originalExecutionRunId",
        "parentWorkflowNamespaceId",
        "prevAutoResetPoints",
        "requestId",
        "revisionNumber",
        "runId",
        "sdkMetadata",
        "stackTrace",
        "suggestContinueAsNew",
        "taskId",
        "useWorkflowBuildId",
        "version",
        "workerMayIgnore",
        "workerVersion",
        "workflowExecutionExpirationTime",
        "workflowExecutionTimeout",
    }
)
_NAMES = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|conformance-[0-9a-f]{10}")


def plain(value: Any) -> Any:
    """Return the value without identities, times and ids, which differ between runs."""
    match value:
        case {"metadata": dict(metadata), "data": str(data)}:
            return {"metadata": plain(metadata), "data": _NAMES.sub("…", b64decode(data).decode("latin-1"))}
        case dict():
            cleaned = {key: plain(item) for key, item in value.items() if key not in _IGNORED}
            # An empty message, zero and an absent field are encoded alike.
            return {
                key: item for key, item in cleaned.items() if item not in ({}, [], "", 0, "0", "0s", False)
            }
        case list() | tuple():
            return [plain(item) for item in value]
        case str():
            return _NAMES.sub("…", value)
        case _:
            return value


def exact_events(history: History) -> list[tuple[str, Any]]:
    """Return the type and attributes of every event, with its event groups, in order."""
    bodies: list[dict[str, Any]] = [
        next((attributes for key, attributes in event.items() if key.endswith("EventAttributes")), {})
        | {"eventGroupMarkers": event.get("eventGroupMarkers", [])}
        for event in history.events
    ]
    return [
        (kind, _comparable_body(kind, plain(body)))
        for kind, body in zip(event_types(history), bodies, strict=True)
    ]


def _comparable_body(kind: str, body: Any) -> Any:
    if kind == "MARKER_RECORDED" and body["markerName"] == "core_local_activity":
        return {**body, "details": _local_activity(body["details"])}
    # Whether a task goes to the sticky queue depends on the engine's cache.
    return {**body, "taskQueue": None} if kind == "WORKFLOW_TASK_SCHEDULED" else body


def _local_activity(details: Any) -> Any:
    """Return the details of a local activity's marker without its times."""
    data = json.loads(details["data"]["payloads"][0]["data"])
    for name in ("complete_time", "original_schedule_time"):
        data[name] = data[name] is not None
    return {**details, "data": data}


def differences(first: History, second: History) -> list[str]:
    """Describe the differences between two histories, one line for each field."""
    first_events, second_events = exact_events(first), exact_events(second)
    if event_types(first) != event_types(second):
        return [f"{event_types(first)} instead of {event_types(second)}"]
    lines: list[str] = []
    for number, ((kind, here), (_, there)) in enumerate(zip(first_events, second_events, strict=True), 1):
        _compare(f"{number} {kind}", here, there, lines)
    return lines


def _compare(place: str, here: Any, there: Any, lines: list[str]) -> None:
    if isinstance(here, dict) and isinstance(there, dict):
        for key in sorted(here.keys() | there.keys()):
            _compare(f"{place}.{key}", here.get(key), there.get(key), lines)
    elif here != there:
        lines.append(f"{place}: {str(here)[:200]} instead of {str(there)[:200]}")
