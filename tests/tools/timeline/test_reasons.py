"""Why a run stands as it does, from histories made by hand: what no engine can be brought to at will."""

from __future__ import annotations

from hourglass._tools.diagnosis.diagnosis import Cause, Diagnosis, Facts, PollerFacts, QueueFacts
from hourglass._tools.diagnosis.reasons import diagnose
from hourglass._tools.timeline.faults import Waits, authors_place, positions
from hourglass._tools.timeline.spans import Fault
from hourglass._tools.timeline.timeline import Pending, build_story

from .histories import Made, S, failure


def told(
    made: Made,
    *queues: QueueFacts,
    waited: float = 60,
    pending: tuple[Pending, ...] = (),
    died: str = "",
) -> Diagnosis:
    """The diagnosis of an open run, so many seconds after its last event."""
    now = made.at + round(waited * S)
    story = build_story(made.read, now=now, pending=pending)
    return diagnose(
        Facts(story=story, now=now, events=made.read, queues={each.name: each for each in queues}, died=died)
    )


def test_outdated_pollers_are_recognised() -> None:
    """A server still names workers that polled before the task was there and did not take it: they are gone."""
    made = Made().wait(1)
    made.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
    before = QueueFacts(name="default", workflow_pollers=(PollerFacts("7@host", made.at - 20 * S),))
    found = told(made, before)
    assert found.cause is Cause.NO_WORKER
    assert found.findings[0].details == ("7@host was last seen 1 min 20 s ago",)
    assert found.wrong
    since = QueueFacts(name="default", workflow_pollers=(PollerFacts("7@host", made.at + 50 * S),))
    assert told(made, since).cause is Cause.WORKER_BUSY
    assert told(made, before, waited=2).cause is Cause.WORKER_BUSY


def test_similar_problems_are_one_finding() -> None:
    """A hundred activities that fail in the same way are one cause, with a count."""
    made = Made().wait(1).task()
    for _ in range(100):
        made.schedule("charge")
    pending = tuple(
        Pending(activity_id=str(each), attempt=3, faults=(Fault("ValueError", "closed"),))
        for each in range(1, 200)
    )
    found = told(made, pending=pending)
    assert [(each.cause, each.count) for each in found.findings] == [(Cause.ACTIVITY_FAILS, 100)]
    assert found.findings[0].attempts == 2


def test_worst_problem_comes_first() -> None:
    """A failing activity before a running one, a child and a timer."""
    made = Made().wait(1).task()
    made.add("TIMER_STARTED", timerId="1", startToFireTimeout="100s", workflowTaskCompletedEventId="4")
    made.add("START_CHILD_WORKFLOW_EXECUTION_INITIATED", workflowType={"name": "ship"}, workflowId="ship-1")
    made.schedule("charge")
    found = told(
        made, pending=(Pending(activity_id="6", attempt=2, faults=(Fault("ValueError", "closed"),)),)
    )
    assert [each.cause for each in found.findings] == [Cause.ACTIVITY_FAILS, Cause.CHILD, Cause.TIMER]
    assert found.findings[2].until == made.at + 100 * S


def test_delayed_start_is_explained() -> None:
    """It has not begun, and is not meant to."""
    found = told(Made(firstWorkflowTaskBackoff="3600s"))
    assert found.cause is Cause.DELAYED
    assert not found.wrong


def test_running_task_is_explained() -> None:
    """A task that a worker has taken: by whom, since when."""
    made = Made().wait(1)
    scheduled = made.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
    made.add("WORKFLOW_TASK_STARTED", scheduledEventId=str(scheduled), identity="7@host")
    found = told(made, waited=1)
    assert (found.cause, found.findings[0].since) == (Cause.CODE_RUNS, made.at)
    assert "7@host" in found.findings[0].what


def with_task_timeout() -> Made:
    """Return a history of which a worker took the task and never answered."""
    made = Made().wait(1)
    scheduled = made.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
    started = made.add("WORKFLOW_TASK_STARTED", scheduledEventId=str(scheduled))
    made.wait(10).add(
        "WORKFLOW_TASK_TIMED_OUT",
        scheduledEventId=str(scheduled),
        startedEventId=str(started),
        timeoutType="TIMEOUT_TYPE_START_TO_CLOSE",
    )
    return made


def test_task_timeouts_are_explained() -> None:
    """A worker that took the task and never answered: its code hangs."""
    assert told(with_task_timeout()).cause is Cause.HUNG


def test_dead_process_is_explained() -> None:
    """The history has but a task that timed out; who looks from the same machine knows of the deaths, and says so."""
    found = told(with_task_timeout(), died="2× while the workflow's code was executing, last 3 s ago")
    assert found.cause is Cause.KILLS
    assert "the worker's process died while it was executing" in found.findings[0].what
    assert found.findings[0].faults[0].message.startswith("2× while")


def test_rejected_task_is_explained() -> None:
    """What is neither a bug of the code nor a hang is said as what it is."""
    made = Made().wait(1)
    scheduled = str(made.add("WORKFLOW_TASK_SCHEDULED", attempt=1))
    made.add("WORKFLOW_TASK_STARTED", scheduledEventId=scheduled)
    made.add(
        "WORKFLOW_TASK_FAILED",
        scheduledEventId=scheduled,
        cause="WORKFLOW_TASK_FAILED_CAUSE_BAD_SCHEDULE_ACTIVITY_ATTRIBUTES",
        failure={"message": "a timeout is missing", "serverFailureInfo": {}},
    )
    found = told(made)
    assert found.cause is Cause.TASK_FAILS
    assert found.findings[0].faults[0].message == "a timeout is missing"


def test_recovered_run_is_not_parked() -> None:
    """Failed tasks of the past are no cause of today."""
    made = Made().wait(1).task_fails("boom").task()
    made.schedule("charge")
    assert told(made).cause is Cause.ACTIVITY_QUEUED


def test_payloads_are_not_shown() -> None:
    """Details of failures, arguments and results stay out of what is said."""
    made = Made(input={"payloads": [{"data": "c2VjcmV0"}]}).wait(1).task()
    made.activity("charge", fails="declined").task()
    made.add("WORKFLOW_EXECUTION_FAILED", failure=failure("declined"))
    found = told(made)
    assert found.cause is Cause.FAILED
    assert "secret" not in repr(found.findings)


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


def test_positions_of_fibers_are_shown() -> None:
    """From the text of a stack, of any machine: each fiber, its author's line, what it waits in."""
    first, second = positions(_STACK)
    assert (first.fiber, first.waits, first.limited) == ("workflow", Waits.SIGNAL, True)
    assert first.place.endswith("app.py:27")
    assert first.code == "return decision.receive(timeout=3600)"
    assert (second.fiber, second.waits, second.call) == ("packer", Waits.LOCK, "get")
    assert authors_place("nothing that looks like a stack") == ""
    assert positions("") == ()
