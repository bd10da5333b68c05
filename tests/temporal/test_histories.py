"""JSON histories: both spellings of enums, agreement with temporalio, and malformed histories."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, RetryState, TimeoutType
from temporalio.api.history.v1 import History
from temporalio.client import WorkflowHistory

from hourglass._temporal.histories import event_to_json, history_to_json, read_history
from hourglass.errors import HistoryError
from hourglass.replay import History as ReplayedHistory

STARTED = {
    "eventId": "1",
    "eventTime": "2026-01-01T00:00:00Z",
    "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED",
    "workflowExecutionStartedEventAttributes": {
        "workflowType": {"name": "Sample"},
        "taskQueue": {"name": "q", "kind": "TASK_QUEUE_KIND_NORMAL"},
        "originalExecutionRunId": "0191-run",
        "input": {"payloads": [{"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "MQ=="}]},
        "memo": {"fields": {"TimerFired": {"data": "MQ=="}}},
    },
}
SCHEDULED = {
    "eventId": "2",
    "eventType": "EVENT_TYPE_WORKFLOW_TASK_SCHEDULED",
    "workflowTaskScheduledEventAttributes": {"taskQueue": {"name": "q"}, "attempt": 1},
}
TASK_STARTED = {
    "eventId": "2",
    "eventType": "EVENT_TYPE_WORKFLOW_TASK_STARTED",
    "workflowTaskStartedEventAttributes": {"scheduledEventId": "1"},
}
ACTIVITY_SCHEDULED = (
    {
        "eventId": "3",
        "eventType": "EVENT_TYPE_WORKFLOW_TASK_STARTED",
        "workflowTaskStartedEventAttributes": {"scheduledEventId": "2"},
    },
    {
        "eventId": "4",
        "eventType": "EVENT_TYPE_WORKFLOW_TASK_COMPLETED",
        "workflowTaskCompletedEventAttributes": {"scheduledEventId": "2", "startedEventId": "3"},
    },
    {
        "eventId": "5",
        "eventType": "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED",
        "activityTaskScheduledEventAttributes": {"activityId": "1", "workflowTaskCompletedEventId": "4"},
    },
)
FAILED = {
    "eventId": "6",
    "eventType": "EVENT_TYPE_ACTIVITY_TASK_FAILED",
    "activityTaskFailedEventAttributes": {
        "scheduledEventId": "5",
        "retryState": "RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED",
        "failure": {
            "message": "outer",
            "cause": {"message": "inner", "timeoutFailureInfo": {"timeoutType": "TIMEOUT_TYPE_HEARTBEAT"}},
        },
    },
}


def text(*events: Any) -> str:
    return json.dumps({"events": events})


def old_spelling(modern: str) -> str:
    """Return the JSON with enums as older tools wrote them."""

    def camel(match: re.Match[str]) -> str:
        return '"' + "".join(word.capitalize() for word in match.group(2).split("_")) + '"'

    prefixes = "EVENT_TYPE|TASK_QUEUE_KIND|RETRY_STATE|TIMEOUT_TYPE"
    return re.sub(rf'"({prefixes})_([A-Z_]+)"', camel, modern)


def test_history_json_is_read_with_old_and_new_enum_names() -> None:
    modern = text(STARTED, SCHEDULED, *ACTIVITY_SCHEDULED, FAILED)
    old = old_spelling(modern)
    assert "WorkflowExecutionStarted" in old
    assert "Heartbeat" in old
    read = History.FromString(read_history(old).encoded)
    assert read == History.FromString(read_history(modern).encoded)
    assert read.events[0].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
    failed = read.events[5].activity_task_failed_event_attributes
    assert failed.retry_state == RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED
    assert failed.failure.cause.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT


def test_history_json_is_read_and_written_as_by_temporalio() -> None:
    for source in (
        text(STARTED, SCHEDULED, *ACTIVITY_SCHEDULED, FAILED),
        old_spelling(text(STARTED, SCHEDULED, *ACTIVITY_SCHEDULED, FAILED)),
    ):
        theirs = WorkflowHistory.from_json("w", source)
        ours = read_history(source).encoded
        assert ours == History(events=theirs.events).SerializeToString()
        assert json.loads(history_to_json(ours)) == json.loads(theirs.to_json())


def test_history_events_written_separately_are_read_as_one_history() -> None:
    source = text(STARTED, SCHEDULED, *ACTIVITY_SCHEDULED, FAILED)
    pieces = [event_to_json(event) for event in History.FromString(read_history(source).encoded).events]
    assert ReplayedHistory.from_events("w", pieces).replayable == ReplayedHistory.from_json(source).replayable


def test_unknown_fields_of_a_history_are_ignored() -> None:
    with_new_field = read_history(text({**STARTED, "newField": {"x": 1}}))
    assert with_new_field.encoded == read_history(text(STARTED)).encoded


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "list of events"),
        ("{}", "list of events"),
        ('{"events": 1}', "list of events"),
        ('{"events": []}', "no events"),
        ('{"events": [1]}', "event 1 is not a JSON object"),
        (
            text({**STARTED, "eventType": "EVENT_TYPE_NEVER_HEARD"}),
            "must begin with WorkflowExecutionStarted",
        ),
        (text(STARTED, {**SCHEDULED, "eventType": "NeverHeard"}), "event 2"),
        (
            text(STARTED, TASK_STARTED, {**FAILED, "eventId": "3"}),
            "event 3 must not follow WorkflowTaskStarted",
        ),
        (text({**STARTED, "eventId": "x"}), "event 1 cannot be decoded"),
        (text({**STARTED, "workflowExecutionStartedEventAttributes": 5}), "event 1 cannot be decoded"),
        (text({**STARTED, "eventId": "2"}), "has the event id 2"),
        (text(STARTED, FAILED), "event 2 of the history has the event id 6"),
        (text({**SCHEDULED, "eventId": "1"}), "must begin with WorkflowExecutionStarted"),
        (text(STARTED, {**STARTED, "eventId": "2"}), "is a second WorkflowExecutionStarted"),
        (
            text({"eventId": "1", "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED"}),
            "has no workflow type",
        ),
        (
            text(STARTED, {"eventId": "2", "eventType": "EVENT_TYPE_TIMER_FIRED"}),
            "event 2 .* wrong attributes: none",
        ),
        (
            text({**STARTED, "eventType": "EVENT_TYPE_TIMER_FIRED"}),
            "must begin with WorkflowExecutionStarted",
        ),
        (text({**STARTED, "workflowExecutionStartedEventAttributes": {}}), "has no workflow type"),
        (
            text({**STARTED, "workflowExecutionStartedEventAttributes": {"workflowType": {"name": "S"}}}),
            "has no task queue",
        ),
        (
            text(
                {
                    **STARTED,
                    "workflowExecutionStartedEventAttributes": {
                        "workflowType": {"name": "S"},
                        "taskQueue": {"name": "q"},
                    },
                }
            ),
            "has no run id",
        ),
    ],
)
def test_malformed_history_json_is_rejected(source: str, message: str) -> None:
    with pytest.raises(HistoryError, match=message):
        read_history(source)


def test_history_with_a_deeply_nested_failure_is_rejected() -> None:
    failure: dict[str, Any] = {"message": "m"}
    for _ in range(400):
        failure = {"cause": failure}
    deep = {**FAILED, "activityTaskFailedEventAttributes": {"failure": failure}}
    with pytest.raises(HistoryError, match="event 3 cannot be decoded"):
        read_history(text(STARTED, SCHEDULED, deep))


def test_bytes_that_are_not_a_history_are_rejected() -> None:
    with pytest.raises(HistoryError, match="is not valid JSON"):
        read_history(b"\xff\xff")


def test_history_without_a_workflow_task_cannot_be_replayed() -> None:
    with pytest.raises(HistoryError, match="nothing to replay"):
        ReplayedHistory.from_json(text(STARTED)).replayable
