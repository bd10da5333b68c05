"""What a stranger stumbled over in `why` and `show`: lines of ours taken for the author's, remedies that do not help, a legend
with a hole."""

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

ELSEWHERE = {"elsewhere": QueueFacts(name="elsewhere", served=("default",))}
SERVED = {"default": QueueFacts(name="default", workflow_pollers=(PollerFacts("w", 9 * 10**18),))}


def event(at: int, kind: str, **attributes: Any) -> dict[str, Any]:
    """An event of a history in JSON."""
    return {
        "eventId": str(at),
        "eventType": f"EVENT_TYPE_{kind}",
        "eventTime": f"2026-01-01T00:00:{at:02}Z",
        "attributes": attributes,
    }


def told(*more: dict[str, Any], queue: str = "default", **begun: Any) -> Facts:
    """What is known of an open run."""
    started = event(
        1, "WORKFLOW_EXECUTION_STARTED", workflowType={"name": "order"}, taskQueue={"name": queue}, **begun
    )
    events = events_from([started, *more])
    now = events[-1].time_ns + 60_000_000_000
    return Facts(story=replace(build_story(events, now=now), workflow_id="order-1"), now=now, events=events)


TASK = (
    event(2, "WORKFLOW_TASK_SCHEDULED"),
    event(3, "WORKFLOW_TASK_STARTED"),
    event(4, "WORKFLOW_TASK_COMPLETED"),
)


@pytest.mark.parametrize(
    "part", ["limits/_slots.py", "progress/_following.py", "contrib/opentelemetry.py", "worker.py"]
)
def test_our_own_frames_are_not_blamed(part: str) -> None:
    """Also in a checkout, where they are in no site-packages, their lines are not blamed."""
    assert not is_authors(f"/home/ann/hourglass/src/hourglass/{part}")
    assert is_authors(f"/home/ann/shop/{part}")


def test_line_of_a_timer_inside_a_task() -> None:
    """The body waits for a task, and the task for a timer: the line is the timer's."""
    positions = (
        Position(fiber="workflow", place="a.py:9", code="task.result()", waits=Waits.TASK),
        Position(fiber="nap", place="a.py:5", code="workflow.sleep(60)", waits=Waits.TIMER),
    )
    facts = told(*TASK, event(5, "TIMER_STARTED", timerId="1", startToFireTimeout="60s"))
    found = diagnose(replace(facts, positions=positions)).findings[0]
    assert found.details == ("the code waits at a.py:5: workflow.sleep(60)",)


def test_worker_for_an_activity_is_suggested() -> None:
    """It is the activity's code that a worker needs there."""
    scheduled = event(
        5,
        "ACTIVITY_TASK_SCHEDULED",
        activityId="1",
        activityType={"name": "weigh"},
        taskQueue={"name": "elsewhere"},
    )
    facts = replace(told(*TASK, scheduled), queues={**ELSEWHERE, **SERVED})
    found = diagnose(facts).findings[0]
    assert found.cause is Cause.NO_ACTIVITY_WORKER
    assert found.actions[0].text == "Start a worker with the activity's code on that queue:"


def test_child_on_the_wrong_queue() -> None:
    """Started again by hand it would be nobody's child: the remedy is the parent's."""
    parent = {"parentWorkflowExecution": {"workflowId": "month"}}
    facts = replace(told(event(2, "WORKFLOW_TASK_SCHEDULED"), queue="elsewhere", **parent), queues=ELSEWHERE)
    found = diagnose(facts).findings[0]
    assert found.cause is Cause.WRONG_QUEUE
    assert found.actions[-1].command == "hourglass reset month --before order"


def test_legend_of_a_run_that_only_waits() -> None:
    """What the run's own row shows is in the legend, too."""
    drawn = ["".join(text for text, _ in line) for line in lines(told(*TASK).story, 80)]
    assert "╌ waits" in drawn[-1]
