"""What of a history is the same on every engine: its events with their attributes, less names, times and identities.

Must not know: engines, scenarios. A history is reduced to plain data that can be compared by `==`, and shown when it differs.
"""

from __future__ import annotations

import re
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
        "inheritedBuildId",
        "lastHeartbeatTime",
        "meteringMetadata",
        "newExecutionRunId",
        "namespaceId",
        "originalExecutionRunId",
        "parentWorkflowNamespaceId",
        "requestId",
        "runId",
        "sdkMetadata",
        "stackTrace",
        "suggestContinueAsNew",
        "taskId",
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
        case dict():
            cleaned = {key: plain(each) for key, each in value.items() if key not in _IGNORED}
            # An empty message, zero and an absent field are the same thing on the wire.
            return {key: each for key, each in cleaned.items() if each not in ({}, [], "", 0, "0", "0s", False)}
        case list() | tuple():
            return [plain(each) for each in value]
        case str():
            return _NAMES.sub("…", value)
        case _:
            return value


def exact_events(history: History) -> list[tuple[str, Any]]:
    """Every event in order: its kind, and what it says."""
    bodies = [
        next((each for key, each in event.items() if key.endswith("EventAttributes")), {})
        for event in history.events
    ]
    return list(zip(kinds(history), map(plain, bodies), strict=True))
