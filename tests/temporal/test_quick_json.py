"""The quick reader of JSON makes of every event what protobuf's own reader makes of it, or leaves it to that one."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent

from hourglass._temporal import quick_json
from hourglass._temporal.histories import _event, _event_in_full
from hourglass.errors import HistoryError

RECORDED = sorted((Path(__file__).parents[1] / "compat").rglob("*.json"))


def recorded_events() -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """Every event of every recorded history."""
    for path in RECORDED:
        document = json.loads(path.read_bytes())
        if isinstance(document, dict) and isinstance(document.get("events"), list):
            for number, event in enumerate(document["events"], 1):
                yield path, number, event


def test_recorded_events_are_read_alike() -> None:
    """All of them, quickly, and to the same message."""
    count = 0
    for path, number, event in recorded_events():
        quick = quick_json.build(HistoryEvent, event)
        assert quick == _event_in_full(event, number), (path.name, number)
        count += 1
    assert count > 1000


ACTIVITY: dict[str, Any] = {
    "eventId": "5",
    "eventTime": "2024-02-29T23:59:59.123456789Z",
    "eventType": "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED",
    "taskId": "1048587",
    "activityTaskScheduledEventAttributes": {
        "activityId": "1",
        "activityType": {"name": "echo"},
        "taskQueue": {"name": "q", "kind": "TASK_QUEUE_KIND_NORMAL"},
        "header": {"fields": {"trace": {"metadata": {"encoding": "YmluYXJ5L3BsYWlu"}, "data": "AAE="}}},
        "input": {"payloads": [{"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "MQ=="}]},
        "startToCloseTimeout": "30.5s",
        "workflowTaskCompletedEventId": "4",
        "retryPolicy": {"initialInterval": "1s", "backoffCoefficient": 2, "maximumAttempts": 3},
        "useWorkflowBuildId": True,
    },
}


def changed(path: str, value: Any, *, also: dict[str, Any] | None = None) -> dict[str, Any]:
    """The event with another value somewhere, and perhaps more at its top."""
    event = copy.deepcopy(ACTIVITY)
    place = event
    *names, last = path.split(".")
    for name in names:
        place = place[name]
    place[last] = value
    return event | (also or {})


A = "activityTaskScheduledEventAttributes"
TASK_STARTED = {"workflowTaskStartedEventAttributes": {"scheduledEventId": "2"}}
ODD = [
    changed("eventId", 5),
    changed("eventId", 5.0),
    changed("eventId", "5.0"),
    changed("eventId", " 5"),
    changed("eventId", "٥"),
    changed("eventId", "99999999999999999999"),
    changed("eventId", None),
    changed("eventId", True),
    changed("eventType", 10),
    changed("eventType", "ActivityTaskScheduled"),
    changed("eventType", "NobodyKnows"),
    changed("eventType", "10"),
    changed("eventTime", "2024-02-30T00:00:00Z"),
    changed("eventTime", "2024-02-29T23:59:59+01:00"),
    changed("eventTime", "2024-02-29T24:00:00Z"),
    changed("eventTime", "2024-02-29"),
    changed("eventTime", "0001-01-01T00:00:00Z"),
    changed("eventTime", 0),
    changed(f"{A}.startToCloseTimeout", "-1.5s"),
    changed(f"{A}.startToCloseTimeout", "1e3s"),
    changed(f"{A}.startToCloseTimeout", "99999999999s"),
    changed(f"{A}.startToCloseTimeout", "0s"),
    changed(f"{A}.startToCloseTimeout", "30"),
    changed(f"{A}.activityId", 1),
    changed(f"{A}.activityId", "\ud800"),
    changed(f"{A}.activityType", "echo"),
    changed(f"{A}.activityType", {}),
    changed(f"{A}.activityType", None),
    changed(f"{A}.input.payloads", {}),
    changed(f"{A}.input.payloads", [None]),
    changed(f"{A}.input.payloads", []),
    changed(f"{A}.input.payloads", [{"data": "_-8"}]),
    changed(f"{A}.input.payloads", [{"data": "MQ"}]),
    changed(f"{A}.input.payloads", [{"data": "M Q=="}]),
    changed(f"{A}.input.payloads", [{"data": ""}]),
    changed(f"{A}.header.fields", []),
    changed(f"{A}.header", {"fields": {"a": None}}),
    changed(f"{A}.retryPolicy.backoffCoefficient", "NaN"),
    changed(f"{A}.retryPolicy.backoffCoefficient", "2.5"),
    changed(f"{A}.retryPolicy.backoffCoefficient", True),
    changed(f"{A}.retryPolicy.maximumAttempts", 2**40),
    changed(f"{A}.useWorkflowBuildId", "true"),
    changed("activity_task_scheduled_event_attributes", ACTIVITY[A]),
    changed("fieldOfTheFuture", {"deep": [1, None]}),
    changed("eventId", "5", also=TASK_STARTED),
    changed("event_id", "5"),
    changed("links", [{"workflowEvent": {"namespace": "n", "eventRef": {"eventId": "1"}}}]),
    changed("userMetadata", {"summary": {"data": "MQ=="}}),
    {},
]


def outcome(read: Any, event: dict[str, Any]) -> Any:
    """The message, or the words of the refusal."""
    try:
        return read(event, 1)
    except HistoryError as error:
        return str(error)


@pytest.mark.parametrize("event", ODD, ids=range(len(ODD)))
def test_odd_events_are_read_or_refused_alike(event: dict[str, Any]) -> None:
    """Values that are spelled unusually, or wrong."""
    assert outcome(_event, event) == outcome(_event_in_full, event)


def test_causes_are_read_to_any_depth_that_protobuf_reads() -> None:
    """A chain of causes that is too long for the quick reader is left to the other."""
    for depth in (10, 40, 60, 90, 150):
        failure: dict[str, Any] = {"message": "innermost"}
        for _ in range(depth):
            failure = {"message": "outer", "cause": failure}
        event = {
            "eventId": "7",
            "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_FAILED",
            "workflowExecutionFailedEventAttributes": {"failure": failure},
        }
        assert outcome(_event, event) == outcome(_event_in_full, event)


@given(
    seconds=st.integers(-62135596800, 253402300799),
    nanos=st.integers(0, 999_999_999),
    length=st.integers(0, 315_576_000_000),
    data=st.binary(max_size=20),
)
def test_times_durations_and_bytes_are_read_as_they_are_written(
    seconds: int, nanos: int, length: int, data: bytes
) -> None:
    """What protobuf writes is read back."""
    time, duration = Timestamp(seconds=seconds, nanos=nanos), Duration(seconds=length, nanos=nanos)
    assert quick_json._timestamp(time.ToJsonString(), 0) == {"seconds": seconds, "nanos": nanos}
    if length < 10**11:
        assert quick_json._duration(duration.ToJsonString(), 0) == {"seconds": length, "nanos": nanos}
    encoded = json.loads(quick_text(data)).get("data", "")
    assert quick_json.build(Payload, {"data": encoded}) == Payload(data=data)


def quick_text(data: bytes) -> str:
    """A payload in JSON, by protobuf's own writer."""
    from google.protobuf import json_format

    return json_format.MessageToJson(Payload(data=data))
