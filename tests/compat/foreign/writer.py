"""Writes histories of SDKs that could not be recorded here: early Go, Java, and servers for tests.

The formats (markers and their details, ids, spellings, omissions) are those that these SDKs are known to write; the runs are
invented. A history is a sequence of steps, one method call each; `json` returns its text.
"""

from __future__ import annotations

import base64
import json
from typing import Any

_START = 1_700_000_000


def payload(value: Any, encoding: str = "json/plain") -> dict[str, Any]:
    """Return a value as a payload in JSON."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return {"metadata": {"encoding": _base64(encoding.encode())}, "data": _base64(data)}


def payloads(*values: Any) -> dict[str, Any]:
    """Return values as payloads in JSON."""
    return {"payloads": [payload(value) for value in values]}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Writer:
    """Builds a history. `ids` selects the ids of activities and timers: `events`, `count` or `uuids`."""

    def __init__(
        self, workflow_type: str, *arguments: Any, sdk: str = "temporal-go", ids: str = "events"
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self._ids = ids
        self._named = 0
        self._sdk = sdk
        self._task = 0
        self.add(
            "WORKFLOW_EXECUTION_STARTED",
            workflowType={"name": workflow_type},
            taskQueue={"name": "written"},
            input=payloads(*arguments),
            originalExecutionRunId="0195ed07-8876-7eb9-b722-ef99fadefce6",
            firstExecutionRunId="0195ed07-8876-7eb9-b722-ef99fadefce6",
            workflowId="written",
            attempt=1,
        )

    @staticmethod
    def in_task(workflow_type: str, *arguments: Any, **options: str) -> Writer:
        """Begin a history with a completed workflow task, whose commands follow."""
        writer = Writer(workflow_type, *arguments, **options)
        writer.task()
        return writer

    def add(self, kind: str, **attributes: Any) -> int:
        """Add an event; return its number."""
        number = len(self.events) + 1
        first, *rest = kind.lower().split("_")
        name = first + "".join(word.title() for word in rest) + "EventAttributes"
        self.events.append(
            {
                "eventId": str(number),
                "eventTime": f"2023-11-14T22:13:{20 + number % 40:02}.{number:09}Z",
                "eventType": f"EVENT_TYPE_{kind}",
                name: attributes,
            }
        )
        return number

    # --- tasks ------------------------------------------------------------------------------------------------------

    def task(self) -> None:
        """Add a completed workflow task, whose commands follow."""
        scheduled = self.add("WORKFLOW_TASK_SCHEDULED", taskQueue={"name": "written"})
        started = self.add("WORKFLOW_TASK_STARTED", scheduledEventId=str(scheduled))
        metadata = {"sdkMetadata": {"sdkName": self._sdk, "sdkVersion": "1.0.0"}} if self._sdk else {}
        self._task = self.add(
            "WORKFLOW_TASK_COMPLETED",
            scheduledEventId=str(scheduled),
            startedEventId=str(started),
            **metadata,
        )

    def asked(self, kind: str, **attributes: Any) -> int:
        """Add the event of a command of the last task."""
        return self.add(kind, workflowTaskCompletedEventId=str(self._task), **attributes)

    def _name(self) -> str:
        self._named += 1
        if self._ids == "events":
            return str(len(self.events) + 1)
        return str(self._named) if self._ids == "count" else f"9fd53ec4-1cb4-335d-92cf-{self._named:012}"

    # --- what a run asks for ----------------------------------------------------------------------------------------

    def activity(self, name: str, *arguments: Any) -> int:
        return self.asked(
            "ACTIVITY_TASK_SCHEDULED",
            activityId=self._name(),
            activityType={"name": name},
            taskQueue={"name": "written"},
            input=payloads(*arguments),
        )

    def activity_done(self, scheduled: int, *result: Any) -> None:
        started = self.add("ACTIVITY_TASK_STARTED", scheduledEventId=str(scheduled))
        self.add(
            "ACTIVITY_TASK_COMPLETED",
            scheduledEventId=str(scheduled),
            startedEventId=str(started),
            result=payloads(*result),
        )

    def timer(self, duration: str) -> int:
        return self.asked("TIMER_STARTED", timerId=self._name(), startToFireTimeout=duration)

    def fired(self, started: int) -> None:
        name = self.events[started - 1]["timerStartedEventAttributes"]["timerId"]
        self.add("TIMER_FIRED", timerId=name, startedEventId=str(started))

    def signal(self, name: str, *arguments: Any) -> None:
        self.add("WORKFLOW_EXECUTION_SIGNALED", signalName=name, input=payloads(*arguments))

    def completed(self, *result: Any) -> None:
        self.asked("WORKFLOW_EXECUTION_COMPLETED", **({"result": payloads(*result)} if result else {}))

    def task_completes_run(self, *result: Any) -> None:
        """Add a workflow task that completes the run."""
        self.task()
        self.completed(*result)

    # --- markers ----------------------------------------------------------------------------------------------------

    def marker(self, name: str, failure: dict[str, Any] | None = None, **details: dict[str, Any]) -> int:
        """Add a marker. An underscore in the name of a detail stands for a dash where Go writes one."""
        more = {} if failure is None else {"failure": failure}
        return self.asked("MARKER_RECORDED", markerName=name, details=details, **more)

    def go_version(self, change: str, version: int) -> None:
        """Add the marker and the search attribute of Go's `GetVersion`."""
        self.marker("Version", **{"change-id": payloads(change), "version": payloads(version)})
        self._index(change, version)

    def java_version(self, change: str, version: int, *, indexed: bool = False) -> None:
        """Add the marker of Java's `getVersion`."""
        self.marker("Version", changeId=payloads(change), version=payloads(version))
        if indexed:
            self._index(change, version)

    def _index(self, change: str, version: int) -> None:
        fields = {"TemporalChangeVersion": payload([f"{change}-{version}"])}
        self.asked("UPSERT_WORKFLOW_SEARCH_ATTRIBUTES", searchAttributes={"indexedFields": fields})

    def go_local(self, number: int, name: str, *result: Any, **more: Any) -> None:
        """Add the marker of the `number`-th local activity in Go."""
        data = {
            "ActivityID": str(number),
            "ActivityType": name,
            "ReplayTime": more.get("time", "2023-11-14T22:14:20.70309514+01:00"),
            "Attempt": more.get("attempt", 1),
            "Backoff": more.get("backoff", 0),
        }
        details = {"data": payloads(data)} | ({"result": payloads(*result)} if result else {})
        self.marker("LocalActivity", more.get("failure"), **details)

    def java_local(self, name: str, arguments: list[Any], *result: Any, **more: Any) -> None:
        """Add the marker of a local activity in Java."""
        details = {
            "activityId": payloads("f470b811-8d56-33d0-8da1-f786750036dc"),
            "type": payloads(name),
            "time": payloads((_START + 3600) * 1000),
            "input": payloads(*arguments),
            "meta": payloads({"firstSkd": _START * 1000, "atpt": 1, "backoff": more.get("backoff")}),
        }
        if result:
            details["result"] = payloads(*result)
        self.marker("LocalActivity", more.get("failure"), **details)

    def json(self, **more: Any) -> str:
        """Return the history as JSON."""
        return json.dumps({"events": self.events, **more})


def failure(message: str, kind: str = "Oops") -> dict[str, Any]:
    """Return an application failure as Go writes it."""
    return {"message": message, "source": "GoSDK", "applicationFailureInfo": {"type": kind}}
