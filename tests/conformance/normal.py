"""What of a history is the same on every engine: its events with their attributes, less names, times and identities.

Must not know: engines, scenarios. A history is reduced to plain data that can be compared by `==`, and shown when it differs.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any

from hourglass.replay import History

from .world import kinds

# Who did it and when, and how a server keeps its books: another run's are others.
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
    """A value without what differs from run to run."""
    match value:
        case {"metadata": dict(metadata), "data": str(data)}:
            return {"metadata": plain(metadata), "data": _NAMES.sub("…", b64decode(data).decode("latin-1"))}
        case dict():
            cleaned = {key: plain(each) for key, each in value.items() if key not in _IGNORED}
            # An empty message, zero and an absent field are the same thing on the wire.
            return {
                key: each for key, each in cleaned.items() if each not in ({}, [], "", 0, "0", "0s", False)
            }
        case list() | tuple():
            return [plain(each) for each in value]
        case str():
            return _NAMES.sub("…", value)
        case _:
            return value


def exact_events(history: History) -> list[tuple[str, Any]]:
    """Every event in order: its kind, and what it says, with the groups that it belongs to."""
    bodies: list[dict[str, Any]] = [
        next((each for key, each in event.items() if key.endswith("EventAttributes")), {})
        | {"eventGroupMarkers": event.get("eventGroupMarkers", [])}
        for event in history.events
    ]
    return [(kind, _judged(kind, plain(body))) for kind, body in zip(kinds(history), bodies, strict=True)]


def _judged(kind: str, body: Any) -> Any:
    if kind == "MARKER_RECORDED" and body["markerName"] == "core_local_activity":
        return {**body, "details": _local_activity(body["details"])}
    # To which of a worker's two queues a task goes is a matter of the engine's cache.
    return {**body, "taskQueue": None} if kind == "WORKFLOW_TASK_SCHEDULED" else body


def _local_activity(details: Any) -> Any:
    """A local activity's marker without its times."""
    data = json.loads(details["data"]["payloads"][0]["data"])
    for name in ("complete_time", "original_schedule_time"):
        data[name] = data[name] is not None
    return {**details, "data": data}


def differences(mine: History, theirs: History) -> list[str]:
    """Where two histories say different things, one line for each place."""
    ours, others = exact_events(mine), exact_events(theirs)
    if kinds(mine) != kinds(theirs):
        return [f"{kinds(mine)} instead of {kinds(theirs)}"]
    found: list[str] = []
    for number, ((kind, here), (_, there)) in enumerate(zip(ours, others, strict=True), 1):
        _compare(f"{number} {kind}", here, there, found)
    return found


def _compare(place: str, here: Any, there: Any, found: list[str]) -> None:
    if isinstance(here, dict) and isinstance(there, dict):
        for key in sorted(here.keys() | there.keys()):
            _compare(f"{place}.{key}", here.get(key), there.get(key), found)
    elif here != there:
        found.append(f"{place}: {str(here)[:200]} instead of {str(there)[:200]}")
