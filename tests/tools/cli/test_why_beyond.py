"""`hourglass why` where the run's own steps do not say it: a slot that others hold, a pause, a local activity, a schedule."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import main
from hourglass import Client, RetryPolicy, Worker, activity, limits, workflow
from hourglass._history.codec import events_from
from hourglass._tools.diagnosis.asking import added, is_paused, with_slots
from hourglass._tools.diagnosis.diagnosis import Cause, Facts
from hourglass._tools.diagnosis.reasons import diagnose
from hourglass._tools.timeline.faults import Position, Waits
from hourglass._tools.timeline.timeline import build_story
from hourglass.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
)

released = threading.Event()
number = workflow.Channel("number", int)


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def stands() -> None:
    """Runs until it is let go."""
    released.wait(30)


@workflow.defn
def crane() -> None:
    """Holds a slot for an hour."""
    with limits.slot("crane"):
        workflow.sleep(3600)


@workflow.defn
def hourly() -> None:
    """One an hour."""
    limits.throttle("hourly", 1, per=3600)


@workflow.defn
def at_once() -> None:
    """Waits for a slot and for a timer."""
    workflow.spawn(lambda: workflow.sleep(7200))
    with limits.slot("crane"):
        pass


@workflow.defn
def counts() -> int:
    """Waits for a number."""
    return number.receive()


@workflow.defn
def locally() -> None:
    """Waits for a local activity."""
    stands.local()


@pytest.fixture
def target(tmp_path: Path) -> str:
    """An empty file."""
    return f"local:{tmp_path / 'b.db'}"


@pytest.fixture
def client(target: str) -> Iterator[Client]:
    """A client of it, with a worker."""
    released.clear()
    options: dict[str, Any] = {"workflows": [crane, hourly, at_once, counts, locally], "activities": [stands]}
    with Client.connect(target) as client, Worker(client, **options):
        yield client
        released.set()


@pytest.fixture
def ask(target: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """What is said of an id, once this is its cause."""

    def asked(workflow_id: str, cause: str, *options: str) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while True:
            capsys.readouterr()
            main(["why", workflow_id, "--json", "--target", target, *options])
            found: dict[str, Any] = json.loads(capsys.readouterr().out)
            if found["cause"] == cause:
                return found
            assert time.monotonic() < deadline, found

    return asked


# --- slots -----------------------------------------------------------------------------------------------------------


def test_why_slot_held_by_another_run(
    client: Client, ask: Callable[..., dict[str, Any]], target: str
) -> None:
    """The key, who holds it, who is before it, and the command that says why the holder takes so long."""
    client.start_workflow(crane, id="first")
    assert [each["cause"] for each in ask("first", "timer")["findings"]] == ["timer"]
    client.start_workflow(crane, id="second")
    ask("second", "lock")
    client.start_workflow(crane, id="third")
    found = ask("third", "lock")["findings"]
    assert [each["what"] for each in found] == ["waits for a slot of 'crane', held by other workflows"]
    assert found[0]["details"] == ["held by first; 1 at a time", "workflows ahead of it: 1"]
    assert [each["command"] for each in found[0]["do"]] == [f"hourglass why first --target {target}"]


def test_why_slot_hides_internal_timers(client: Client, ask: Callable[..., dict[str, Any]]) -> None:
    """The slot comes first, and the timers behind it are not told: only the author's own."""
    client.start_workflow(crane, id="first")
    ask("first", "timer")
    client.start_workflow(at_once, id="both")
    found = ask("both", "lock")["findings"]
    assert [each["what"] for each in found] == [
        "waits for a slot of 'crane', held by other workflows",
        "waits for a timer",
    ]


def test_why_keeper_that_does_not_answer() -> None:
    """Without its answer the key is told all the same, nobody is accused, and the keeper is the next to ask about."""
    facts = told(
        event(5, "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED", **to_keeper("ask")),
        event(6, "TIMER_STARTED", {"summary": text("waits for a slot of 'crane'")}, **ONE_MINUTE),
    )
    found = with_slots(diagnose(facts), facts, lambda keeper: None).findings[0]
    assert found.cause is Cause.LOCK
    assert [each.command for each in found.actions] == ["hourglass why hourglass.slots:crane"]
    assert found.details == ("the holder is unknown: the keeper of the limit does not respond",)


def test_why_throttled(client: Client, ask: Callable[..., dict[str, Any]]) -> None:
    """One wait, at the author's line, not the lock and the timer that it is made of, and no signal of ours to be sent by hand."""
    client.start_workflow(hourly, id="first").result()
    client.start_workflow(hourly, id="second")
    found = ask("second", "lock")["findings"]
    assert [each["what"] for each in found] == ["waits for a turn of 'hourly'"]
    assert found[0]["do"] == [{"text": "Nothing: the workflow gets its turn automatically.", "command": ""}]


def test_why_start_with_wrong_arguments(client: Client, ask: Callable[..., dict[str, Any]]) -> None:
    """The code is not blamed for what the run was given."""
    client.start_workflow("crane", 1, 2, 3, id="wrong")
    found = ask("wrong", "undecodable")["findings"][0]
    assert found["what"] == "cannot continue, because its code does not accept its arguments"


def test_why_returned_slot_is_ignored() -> None:
    """A timer of the same words is a slot only while the key is asked for."""
    facts = told(
        event(5, "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED", **to_keeper("ask")),
        event(6, "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED", **to_keeper("give_back")),
        event(7, "TIMER_STARTED", {"summary": text("waits for a slot of 'crane'")}, **ONE_MINUTE),
    )
    assert with_slots(diagnose(facts), facts, lambda keeper: None).cause is not Cause.LOCK


# --- paused ----------------------------------------------------------------------------------------------------------


def test_why_paused_run() -> None:
    """That it is paused, by whom and why, and the command that lets it continue, on either engine."""
    facts = told(event(5, "WORKFLOW_EXECUTION_PAUSED", identity="ann@desk", reason="audit first"))
    found = added(diagnose(facts), facts, "--address localhost:7233")
    assert (found.cause, found.wrong) == (Cause.PAUSED, True)
    assert len(found.findings) == 1
    assert found.findings[0].details == ("by ann@desk", "reason: audit first")
    assert found.findings[0].actions[0].command == "hourglass resume order-1"


def test_why_resumed_run() -> None:
    """Somebody let it continue: it is said no more."""
    events = told(event(5, "WORKFLOW_EXECUTION_PAUSED"), event(6, "WORKFLOW_EXECUTION_UNPAUSED")).events
    assert is_paused(events) is None
    assert is_paused(events[:-1]) is events[-2]


def test_why_paused_activity_on_a_server() -> None:
    """Temporal's command is told where the server is, also if that was not said on our command line."""
    scheduled = event(5, "ACTIVITY_TASK_SCHEDULED", activityId="7", activityType={"name": "weigh"})
    facts = told(scheduled)
    paused = replace(facts.story.spans[-1], paused=True, target="7")
    facts = replace(facts, story=replace(facts.story, spans=(*facts.story.spans[:-1], paused)))
    found = added(diagnose(facts), facts, "--address prod:7233 --namespace shop").findings[0]
    assert found.cause is Cause.PAUSED
    assert [each.command for each in found.actions] == [
        "temporal activity unpause --workflow-id order-1 --activity-id 7 --address prod:7233 --namespace shop"
    ]


# --- signals ---------------------------------------------------------------------------------------------------------


def test_why_undecodable_signal(client: Client, ask: Callable[..., dict[str, Any]]) -> None:
    """It came, was dropped, and is still waited for: that, and where more is said."""
    handle = client.start_workflow(counts, id="counts-1")
    assert ask("counts-1", "signal")["findings"][0]["details"] == []
    handle.signal("number", "three")
    deadline = time.monotonic() + 30
    while not (details := ask("counts-1", "signal")["findings"][0]["details"]):
        assert time.monotonic() < deadline
    assert details[0].startswith("the last signal 'number' had no effect: the worker drops signals")


# --- local activities ------------------------------------------------------------------------------------------------


def test_why_local_activity(client: Client, ask: Callable[..., dict[str, Any]]) -> None:
    """No history shows it: a task that takes so long is said to be at a local activity, and where the failures are."""
    client.start_workflow(locally, id="local-1")
    deadline = time.monotonic() + 30
    while True:
        found = ask("local-1", "code_runs")["findings"][0]
        if "local activity" in found["what"] + "".join(found["details"]):
            break
        assert time.monotonic() < deadline, found
    assert "the worker logs the reason" in "".join(found["details"])


def test_why_local_activity_names_its_line() -> None:
    """Where the run can be asked, the line is told."""
    stand = Position(
        fiber="workflow", place="a.py:3", code="weigh.local()", waits=Waits.ACTIVITY, call="local"
    )
    facts = told(event(5, "WORKFLOW_TASK_SCHEDULED"), event(6, "WORKFLOW_TASK_STARTED", identity="w@vm"))
    found = added(diagnose(facts), replace(facts, positions=(stand,)), "").findings[0]
    assert (
        found.what
        == "is being executed by a worker, w@vm, where a local activity is running or being retried"
    )
    assert (found.place, found.code) == ("a.py:3", "weigh.local()")


# --- no workflow -----------------------------------------------------------------------------------------------------


def test_why_schedule(client: Client, ask: Callable[..., dict[str, Any]], target: str) -> None:
    """An id that is a schedule's: that it is one, whether it is paused and why, and how to see what it started."""
    action = ScheduleActionStartWorkflow(crane, id="nightly-run")
    spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=3600)])
    handle = client.create_schedule("nightly", Schedule(action, spec))
    found = ask("nightly", "not_found")["findings"][0]
    assert found["what"] == "is a schedule, not a workflow"
    assert found["until"] is not None
    handle.pause(note="until the audit is over")
    found = ask("nightly", "not_found")["findings"][0]
    assert found["what"] == "is a schedule, not a workflow: it is paused (until the audit is over)"
    assert found["until"] is None
    assert "client.get_schedule_handle('nightly').unpause()" in found["do"][0]["text"]
    assert "STARTS_WITH" in found["do"][1]["command"]
    assert main(["why", "nightly", "--target", target]) == 1


def test_why_unknown_run(client: Client, ask: Callable[..., dict[str, Any]]) -> None:
    """The workflow is known and the run is not."""
    handle = client.start_workflow(crane, id="known")
    found = ask("known", "not_found", "--run-id", "123")["findings"][0]
    assert found["what"] == "has no run '123'"
    assert found["details"] == [f"its latest run is {handle.run_id}"]


# --- histories by hand -----------------------------------------------------------------------------------------------

ONE_MINUTE = {"timerId": "1", "startToFireTimeout": "60s"}


def to_keeper(signal: str) -> dict[str, Any]:
    """Attributes of a signal to the keeper of a key."""
    return {"workflowExecution": {"workflowId": "hourglass.slots:crane"}, "signalName": signal}


def text(said: str) -> dict[str, Any]:
    """A payload."""
    import base64

    def encoded(value: str) -> str:
        return base64.b64encode(value.encode()).decode()

    return {"metadata": {"encoding": encoded("json/plain")}, "data": encoded(json.dumps(said))}


def event(at: int, kind: str, metadata: dict[str, Any] | None = None, **attributes: Any) -> dict[str, Any]:
    """An event of a history in JSON."""
    return {
        "eventId": str(at),
        "eventType": f"EVENT_TYPE_{kind}",
        "eventTime": f"2026-01-01T00:00:{at:02}Z",
        "userMetadata": metadata or {},
        "attributes": attributes,
    }


def told(*more: dict[str, Any]) -> Facts:
    """What is known of an open run whose first task is over."""
    first = [
        event(1, "WORKFLOW_EXECUTION_STARTED", workflowType={"name": "order"}, taskQueue={"name": "default"}),
        event(2, "WORKFLOW_TASK_SCHEDULED"),
        event(3, "WORKFLOW_TASK_STARTED"),
        event(4, "WORKFLOW_TASK_COMPLETED"),
    ]
    events = events_from([*first, *more])
    now = events[-1].time_ns + 60_000_000_000
    story = replace(build_story(events, now=now), workflow_id="order-1")
    return Facts(story=story, now=now, events=events)
