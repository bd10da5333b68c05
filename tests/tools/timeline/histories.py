"""A builder of histories: each method adds events, and only some of them advance the clock."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hourglass._history.codec import events_from
from hourglass._history.events import HistoryEvent
from hourglass._tools.diagnosis.diagnosis import Facts
from hourglass._tools.timeline.timeline import build_story

S = 10**9
"""A second, in nanoseconds."""

START = 1_788_000_000 * S


def payload(value: object) -> dict[str, Any]:
    data = base64.b64encode(json.dumps(value).encode()).decode()
    return {"metadata": {"encoding": base64.b64encode(b"json/plain").decode()}, "data": data}


def failure(message: str, type: str = "ValueError", cause: dict[str, Any] | None = None) -> dict[str, Any]:
    builder: dict[str, Any] = {"message": message, "applicationFailureInfo": {"type": type}}
    return builder if cause is None else {**builder, "cause": cause}


def history_event(
    at: int, kind: str, metadata: dict[str, Any] | None = None, **attributes: Any
) -> dict[str, Any]:
    return {
        "eventId": str(at),
        "eventType": f"EVENT_TYPE_{kind}",
        "eventTime": f"2026-01-01T00:00:{at:02}Z",
        "userMetadata": metadata or {},
        "attributes": attributes,
    }


TASK = (
    history_event(2, "WORKFLOW_TASK_SCHEDULED"),
    history_event(3, "WORKFLOW_TASK_STARTED"),
    history_event(4, "WORKFLOW_TASK_COMPLETED"),
)
"""A completed workflow task."""


def facts_of(*more: dict[str, Any], queue: str = "default", **begun: Any) -> Facts:
    """Return the facts of an open run with these events after its start."""
    kind, attributes = {"workflowType": {"name": "order"}}, {"taskQueue": {"name": queue}, **begun}
    events = events_from([history_event(1, "WORKFLOW_EXECUTION_STARTED", **kind, **attributes), *more])
    now = events[-1].time_ns + 60 * S
    return Facts(story=replace(build_story(events, now=now), workflow_id="order-1"), now=now, events=events)


class HistoryBuilder:
    """A history under construction; `at` is the clock in nanoseconds."""

    def __init__(
        self, workflow_type: str = "checkout", workflow_id: str = "order-1", **attributes: Any
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.at = START
        self.add(
            "WORKFLOW_EXECUTION_STARTED",
            workflowType={"name": workflow_type},
            workflowId=workflow_id,
            originalExecutionRunId="6a1f0c52-run",
            taskQueue={"name": "default"},
            **attributes,
        )

    def wait(self, seconds: float) -> HistoryBuilder:
        self.at += round(seconds * S)
        return self

    def add(self, kind: str, **attributes: Any) -> int:
        """Add an event and return its id."""
        words = [each.capitalize() for each in kind.split("_")]
        key = words[0].lower() + "".join(words[1:]) + "EventAttributes"
        seconds, rest = divmod(self.at, S)
        time = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
        self.events.append(
            {
                "eventId": str(len(self.events) + 1),
                "eventTime": time,
                "eventType": f"EVENT_TYPE_{kind}",
                key: attributes,
            }
        )
        return len(self.events)

    def task(self, seconds: float = 0.004, queued: float = 0.002) -> HistoryBuilder:
        scheduled = self.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
        self.wait(queued)
        started = self.add("WORKFLOW_TASK_STARTED", scheduledEventId=str(scheduled))
        self.wait(seconds)
        self.add("WORKFLOW_TASK_COMPLETED", scheduledEventId=str(scheduled), startedEventId=str(started))
        return self

    def task_fails(self, message: str = "boom", seconds: float = 0.01) -> HistoryBuilder:
        scheduled = self.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
        started = self.add("WORKFLOW_TASK_STARTED", scheduledEventId=str(scheduled))
        self.wait(seconds)
        self.add(
            "WORKFLOW_TASK_FAILED",
            scheduledEventId=str(scheduled),
            startedEventId=str(started),
            cause="WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE",
            failure=failure(message),
        )
        return self

    def schedule(self, name: str, **attributes: Any) -> int:
        return self.add(
            "ACTIVITY_TASK_SCHEDULED",
            activityId=str(len(self.events)),
            activityType={"name": name},
            taskQueue={"name": "default"},
            workflowTaskCompletedEventId="4",
            **attributes,
        )

    def activity(
        self, name: str, seconds: float = 0.2, queued: float = 0.02, attempt: int = 1, fails: str = ""
    ) -> HistoryBuilder:
        scheduled = self.schedule(name, input={"payloads": [payload("secret")]})
        self.wait(queued)
        last = {"lastFailure": failure("not yet", "TimeoutError")} if attempt > 1 else {}
        self.add("ACTIVITY_TASK_STARTED", scheduledEventId=str(scheduled), attempt=attempt, **last)
        self.wait(seconds)
        if fails:
            self.add(
                "ACTIVITY_TASK_FAILED",
                scheduledEventId=str(scheduled),
                failure=failure(fails),
                retryState="RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED",
            )
        else:
            self.add(
                "ACTIVITY_TASK_COMPLETED",
                scheduledEventId=str(scheduled),
                result={"payloads": [payload({"token": "secret"})]},
            )
        return self

    def timer(self, seconds: float) -> HistoryBuilder:
        started = self.add(
            "TIMER_STARTED",
            timerId="1",
            startToFireTimeout=f"{seconds:.9f}s",
            workflowTaskCompletedEventId="4",
        )
        self.wait(seconds)
        self.add("TIMER_FIRED", startedEventId=str(started))
        return self

    def child(self, name: str, seconds: float = 1.0, run_id: str = "child-run") -> HistoryBuilder:
        asked = str(
            self.add(
                "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
                workflowType={"name": name},
                workflowId=f"{name}-1",
                workflowTaskCompletedEventId="4",
            )
        )
        self.wait(0.01)
        execution = {"workflowId": f"{name}-1", "runId": run_id}
        self.add("CHILD_WORKFLOW_EXECUTION_STARTED", initiatedEventId=asked, workflowExecution=execution)
        self.wait(seconds)
        self.add("CHILD_WORKFLOW_EXECUTION_COMPLETED", initiatedEventId=asked)
        return self

    def signal(self, name: str) -> HistoryBuilder:
        self.add("WORKFLOW_EXECUTION_SIGNALED", signalName=name, input={"payloads": [payload("secret")]})
        return self

    def complete(self) -> HistoryBuilder:
        self.task()
        self.add("WORKFLOW_EXECUTION_COMPLETED", result={"payloads": [payload("secret")]})
        return self

    def fail(self, message: str) -> HistoryBuilder:
        """Fail the run because of a failed activity."""
        self.task()
        outer = {
            "message": "Activity task failed",
            "activityFailureInfo": {"activityType": {"name": "ship"}},
            "cause": failure(message),
        }
        self.add("WORKFLOW_EXECUTION_FAILED", failure=outer)
        return self

    @property
    def read(self) -> tuple[HistoryEvent, ...]:
        """The parsed events."""
        return events_from(self.events)

    @property
    def text(self) -> str:
        """The history as JSON."""
        return json.dumps({"events": self.events})


def order_history(days: float = 30) -> HistoryBuilder:
    """Return the history of a checkout with retries, a signal, a long timer, a child and a failure."""
    builder = HistoryBuilder().wait(0.01)
    builder.task().activity("reserve_stock", 0.18).task()
    builder.activity("charge_card", 0.4, queued=3.9, attempt=3).task()
    builder.wait(0.6).signal("address_changed").task().child("invoice", 1.2).task()
    builder.timer(days * 86_400).task().activity("ask_for_review", 0.7).task()
    return builder.activity("ship", 0.9, fails="no carrier serves this address").fail(
        "no carrier serves this address"
    )


def fan_out_history(spans: int) -> HistoryBuilder:
    """Return a history of activities with different names in batches of five; some fail."""
    builder = HistoryBuilder("fan_out", f"fan-{spans}").wait(0.01).task()
    for number in range(spans):
        fails = f"item {number} is broken" if number % 17 == 5 else ""
        builder.activity(f"process_item_{number}", 0.02 + 0.01 * (number % 7), fails=fails)
        if number % 5 == 4:
            builder.task()
    return builder.complete()
