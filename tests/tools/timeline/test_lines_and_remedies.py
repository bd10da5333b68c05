"""Diagnoses and pictures: lines of user code only, remedies that help, and a complete legend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hourglass._history.codec import events_from
from hourglass._tools.diagnosis.diagnosis import Cause, Facts, PollerFacts, QueueFacts
from hourglass._tools.diagnosis.reasons import diagnose
from hourglass._tools.timeline.faults import Position, Waits, is_authors
from hourglass._tools.timeline.terminal import lines
from hourglass._tools.timeline.timeline import build_story

OTHER_QUEUE = {"elsewhere": QueueFacts(name="elsewhere", served=("default",))}
SERVED = {"default": QueueFacts(name="default", workflow_pollers=(PollerFacts("w", 9 * 10**18),))}


def history_event(at: int, kind: str, **attributes: Any) -> dict[str, Any]:
    return {
        "eventId": str(at),
        "eventType": f"EVENT_TYPE_{kind}",
        "eventTime": f"2026-01-01T00:00:{at:02}Z",
        "attributes": attributes,
    }


def facts_of(*more: dict[str, Any], queue: str = "default", **begun: Any) -> Facts:
    started = history_event(
        1, "WORKFLOW_EXECUTION_STARTED", workflowType={"name": "order"}, taskQueue={"name": queue}, **begun
    )
    events = events_from([started, *more])
    now = events[-1].time_ns + 60_000_000_000
    return Facts(story=replace(build_story(events, now=now), workflow_id="order-1"), now=now, events=events)


TASK = (
    history_event(2, "WORKFLOW_TASK_SCHEDULED"),
    history_event(3, "WORKFLOW_TASK_STARTED"),
    history_event(4, "WORKFLOW_TASK_COMPLETED"),
)


@pytest.mark.parametrize(
    "part", ["limits/_slots.py", "progress/_following.py", "contrib/opentelemetry.py", "worker.py"]
)
def test_diagnosis_ignores_stack_frames_of_hourglass(part: str) -> None:
    """Also in a source checkout, where they are not in site-packages."""
    assert not is_authors(f"/home/ann/hourglass/src/hourglass/{part}")
    assert is_authors(f"/home/ann/shop/{part}")


def test_diagnosis_of_a_timer_in_a_spawned_task_shows_the_timers_line() -> None:
    positions = (
        Position(fiber="workflow", place="a.py:9", code="task.result()", waits=Waits.TASK),
        Position(fiber="nap", place="a.py:5", code="workflow.sleep(60)", waits=Waits.TIMER),
    )
    facts = facts_of(*TASK, history_event(5, "TIMER_STARTED", timerId="1", startToFireTimeout="60s"))
    finding = diagnose(replace(facts, positions=positions)).findings[0]
    assert finding.details == ("the code waits at a.py:5: workflow.sleep(60)",)


def test_diagnosis_without_activity_worker_suggests_a_worker_with_its_code() -> None:
    scheduled = history_event(
        5,
        "ACTIVITY_TASK_SCHEDULED",
        activityId="1",
        activityType={"name": "weigh"},
        taskQueue={"name": "elsewhere"},
    )
    facts = replace(facts_of(*TASK, scheduled), queues={**OTHER_QUEUE, **SERVED})
    finding = diagnose(facts).findings[0]
    assert finding.cause is Cause.NO_ACTIVITY_WORKER
    assert finding.actions[0].text == "Start a worker with the activity's code on that queue:"


def test_diagnosis_of_a_child_on_a_wrong_queue_suggests_resetting_the_parent() -> None:
    """A child that is started by hand would have no parent."""
    parent = {"parentWorkflowExecution": {"workflowId": "month"}}
    facts = replace(
        facts_of(history_event(2, "WORKFLOW_TASK_SCHEDULED"), queue="elsewhere", **parent), queues=OTHER_QUEUE
    )
    finding = diagnose(facts).findings[0]
    assert finding.cause is Cause.WRONG_QUEUE
    assert finding.actions[-1].command == "hourglass reset month --before order"


def test_legend_contains_the_waiting_style_of_the_runs_own_row() -> None:
    text_lines = ["".join(text for text, _ in line) for line in lines(facts_of(*TASK).story, 80)]
    assert "╌ waits" in text_lines[-1]
