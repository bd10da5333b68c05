"""Diagnoses of runs from constructed histories: situations that cannot be produced with an engine on demand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hourglass._tools.diagnosis.diagnosis import Cause, Diagnosis, Facts
from hourglass._tools.diagnosis.reasons import diagnose
from hourglass._tools.timeline.faults import Position, Waits, authors_place, is_authors, positions
from hourglass._tools.timeline.spans import Fault
from hourglass._tools.timeline.terminal import lines
from hourglass._tools.timeline.timeline import Pending, build_story
from hourglass.client import TaskQueueDescription
from hourglass.client._deployments import PollerInfo

from .histories import TASK, HistoryBuilder, S, facts_of, failure, history_event


def queue_polled_at(moment: int) -> TaskQueueDescription:
    """Return a queue that a worker has polled for workflow tasks at this time."""
    seen = datetime.fromtimestamp(moment / S, UTC)
    poller = PollerInfo(identity="7@host", last_seen=seen)
    return TaskQueueDescription(name="default", workflow_pollers=(poller,), activity_pollers=(), served=())


def diagnose_open_run(
    history: HistoryBuilder,
    *queues: TaskQueueDescription,
    waited: float = 60,
    pending: tuple[Pending, ...] = (),
    died: str = "",
) -> Diagnosis:
    """Diagnose an open run some seconds after its last event."""
    now = history.at + round(waited * S)
    story = build_story(history.read, now=now, pending=pending)
    return diagnose(
        Facts(
            story=story, now=now, events=history.read, queues={each.name: each for each in queues}, died=died
        )
    )


def test_diagnosis_ignores_pollers_last_seen_before_the_task() -> None:
    """A server still lists workers that are gone."""
    history = HistoryBuilder().wait(1)
    history.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
    before = queue_polled_at(history.at - 20 * S)
    diagnosis = diagnose_open_run(history, before)
    assert diagnosis.cause is Cause.NO_WORKER
    assert diagnosis.findings[0].details == ("7@host was last seen 1 min 20 s ago",)
    assert diagnosis.wrong
    since = queue_polled_at(history.at + 50 * S)
    assert diagnose_open_run(history, since).cause is Cause.WORKER_BUSY
    assert diagnose_open_run(history, before, waited=2).cause is Cause.WORKER_BUSY


def test_diagnosis_merges_equal_activity_failures_into_one_finding() -> None:
    history = HistoryBuilder().wait(1).task()
    for _ in range(100):
        history.schedule("charge")
    pending = tuple(
        Pending(activity_id=str(each), attempt=3, faults=(Fault("ValueError", "closed"),))
        for each in range(1, 200)
    )
    diagnosis = diagnose_open_run(history, pending=pending)
    assert [(each.cause, each.count) for each in diagnosis.findings] == [(Cause.ACTIVITY_FAILS, 100)]
    assert diagnosis.findings[0].attempts == 2


def test_diagnosis_lists_failing_activity_before_child_and_timer() -> None:
    history = HistoryBuilder().wait(1).task()
    history.add("TIMER_STARTED", timerId="1", startToFireTimeout="100s", workflowTaskCompletedEventId="4")
    history.add(
        "START_CHILD_WORKFLOW_EXECUTION_INITIATED", workflowType={"name": "ship"}, workflowId="ship-1"
    )
    history.schedule("charge")
    diagnosis = diagnose_open_run(
        history, pending=(Pending(activity_id="6", attempt=2, faults=(Fault("ValueError", "closed"),)),)
    )
    assert [each.cause for each in diagnosis.findings] == [Cause.ACTIVITY_FAILS, Cause.CHILD, Cause.TIMER]
    assert diagnosis.findings[2].until == history.at + 100 * S


def test_diagnosis_of_a_delayed_start_is_no_problem() -> None:
    diagnosis = diagnose_open_run(HistoryBuilder(firstWorkflowTaskBackoff="3600s"))
    assert diagnosis.cause is Cause.DELAYED
    assert not diagnosis.wrong


def test_diagnosis_of_a_running_task_names_its_worker_and_start() -> None:
    history = HistoryBuilder().wait(1)
    scheduled = history.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
    history.add("WORKFLOW_TASK_STARTED", scheduledEventId=str(scheduled), identity="7@host")
    diagnosis = diagnose_open_run(history, waited=1)
    assert (diagnosis.cause, diagnosis.findings[0].since) == (Cause.CODE_RUNS, history.at)
    assert "7@host" in diagnosis.findings[0].what


def history_with_task_timeout() -> HistoryBuilder:
    """Return a history with a workflow task that a worker started and never completed."""
    history = HistoryBuilder().wait(1)
    scheduled = history.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
    started = history.add("WORKFLOW_TASK_STARTED", scheduledEventId=str(scheduled))
    history.wait(10).add(
        "WORKFLOW_TASK_TIMED_OUT",
        scheduledEventId=str(scheduled),
        startedEventId=str(started),
        timeoutType="TIMEOUT_TYPE_START_TO_CLOSE",
    )
    return history


def test_diagnosis_of_a_timed_out_task_is_hung_code() -> None:
    assert diagnose_open_run(history_with_task_timeout()).cause is Cause.HUNG


def test_diagnosis_reports_the_death_of_a_local_worker_process() -> None:
    """The history has only a timed-out task; the process on the same machine knows more."""
    diagnosis = diagnose_open_run(
        history_with_task_timeout(), died="2× while the workflow's code was executing, last 3 s ago"
    )
    assert diagnosis.cause is Cause.KILLS
    assert "the worker's process died while it was executing" in diagnosis.findings[0].what
    assert diagnosis.findings[0].faults[0].message.startswith("2× while")


def test_diagnosis_shows_the_servers_reason_for_a_rejected_task() -> None:
    history = HistoryBuilder().wait(1)
    scheduled = str(history.add("WORKFLOW_TASK_SCHEDULED", attempt=1))
    history.add("WORKFLOW_TASK_STARTED", scheduledEventId=scheduled)
    history.add(
        "WORKFLOW_TASK_FAILED",
        scheduledEventId=scheduled,
        cause="WORKFLOW_TASK_FAILED_CAUSE_BAD_SCHEDULE_ACTIVITY_ATTRIBUTES",
        failure={"message": "a timeout is missing", "serverFailureInfo": {}},
    )
    diagnosis = diagnose_open_run(history)
    assert diagnosis.cause is Cause.TASK_FAILS
    assert diagnosis.findings[0].faults[0].message == "a timeout is missing"


def test_diagnosis_ignores_failed_tasks_before_a_successful_one() -> None:
    history = HistoryBuilder().wait(1).task_fails("boom").task()
    history.schedule("charge")
    assert diagnose_open_run(history).cause is Cause.ACTIVITY_QUEUED


def test_diagnosis_contains_no_payloads() -> None:
    history = HistoryBuilder(input={"payloads": [{"data": "c2VjcmV0"}]}).wait(1).task()
    history.activity("charge", fails="declined").task()
    history.add("WORKFLOW_EXECUTION_FAILED", failure=failure("declined"))
    diagnosis = diagnose_open_run(history)
    assert diagnosis.cause is Cause.FAILED
    assert "secret" not in repr(diagnosis.findings)


_STACK = """workflow
  File "/srv/venv/lib/python3.12/site-packages/hourglass/_evaluator/body.py", line 62, in _call
    return body(a)
  File "C:\\\\shop\\\\app.py", line 27, in checkout
    return decision.receive(timeout=3600)
  File "/srv/venv/lib/python3.12/site-packages/hourglass/workflow/_references.py", line 54, in receive
    wait_with_timeout(fiber, arrival, limit)
  File "/srv/venv/lib/python3.12/site-packages/hourglass/workflow/_tasks.py", line 248, in wait_with_timeout
    wait_until(waiter)

packer
  File "/shop/pack.py", line 3, in pack
    boxes.get()
  File "/srv/hourglass/workflow/_locks.py", line 9, in get
    wait_for(waiter)
"""


def test_stack_text_is_parsed_into_fibers_lines_and_waits() -> None:
    first, second = positions(_STACK)
    assert (first.fiber, first.waits, first.limited) == ("workflow", Waits.SIGNAL, True)
    assert first.place.endswith("app.py:27")
    assert first.code == "return decision.receive(timeout=3600)"
    assert (second.fiber, second.waits, second.call) == ("packer", Waits.LOCK, "get")
    assert authors_place("nothing that looks like a stack") == ""
    assert positions("") == ()


OTHER_QUEUE = {
    "elsewhere": TaskQueueDescription(
        name="elsewhere", workflow_pollers=(), activity_pollers=(), served=("default",)
    )
}
SERVED = {"default": queue_polled_at(9 * 10**18)}


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
