"""`hourglass why` for causes outside the run's own steps: slots held by others, pauses, local activities, schedules."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.tools.timeline.histories import TASK, facts_of, history_event, payload

from command_line import main
from hourglass import Client, RetryPolicy, Worker, activity, limits, workflow
from hourglass._tools.diagnosis.asking import added, is_paused, with_slots
from hourglass._tools.diagnosis.diagnosis import Cause
from hourglass._tools.diagnosis.reasons import diagnose
from hourglass._tools.timeline.faults import Position, Waits
from hourglass.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
)

released = threading.Event()
number = workflow.Channel("number", int)


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def blocks_until_released() -> None:
    released.wait(30)


@workflow.defn
def holds_crane_slot() -> None:
    with limits.slot("crane"):
        workflow.sleep(3600)


@workflow.defn
def runs_hourly() -> None:
    limits.throttle("hourly", 1, per=3600)


@workflow.defn
def waits_for_slot_and_timer() -> None:
    workflow.spawn(lambda: workflow.sleep(7200))
    with limits.slot("crane"):
        pass


@workflow.defn
def waits_for_number() -> int:
    return number.receive()


@workflow.defn
def runs_local_activity() -> None:
    blocks_until_released.local()


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"local:{tmp_path / 'b.db'}"


@pytest.fixture
def client(target: str) -> Iterator[Client]:
    released.clear()
    options: dict[str, Any] = {
        "workflows": [
            holds_crane_slot,
            runs_hourly,
            waits_for_slot_and_timer,
            waits_for_number,
            runs_local_activity,
        ],
        "activities": [blocks_until_released],
    }
    with Client.connect(target) as client, Worker(client, **options):
        yield client
        released.set()


@pytest.fixture
def wait_for_cause(target: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return a function that repeats `hourglass why` until it reports the cause."""

    def repeat_why(workflow_id: str, cause: str, *options: str) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while True:
            capsys.readouterr()
            main(["why", workflow_id, "--json", "--target", target, *options])
            found: dict[str, Any] = json.loads(capsys.readouterr().out)
            if found["cause"] == cause:
                return found
            assert time.monotonic() < deadline, found

    return repeat_why


# --- slots -----------------------------------------------------------------------------------------------------------


def test_why_command_names_the_holder_of_a_slot_and_the_runs_before(
    client: Client, wait_for_cause: Callable[..., dict[str, Any]], target: str
) -> None:
    client.start_workflow(holds_crane_slot, id="first")
    assert [each["cause"] for each in wait_for_cause("first", "timer")["findings"]] == ["timer"]
    client.start_workflow(holds_crane_slot, id="second")
    wait_for_cause("second", "lock")
    client.start_workflow(holds_crane_slot, id="third")
    found = wait_for_cause("third", "lock")["findings"]
    assert [each["what"] for each in found] == ["waits for a slot of 'crane', held by other workflows"]
    assert found[0]["details"] == ["held by first; 1 at a time", "workflows ahead of it: 1"]
    assert [each["command"] for each in found[0]["do"]] == [f"hourglass why first --target {target}"]


def test_why_of_a_run_waiting_for_a_slot_hides_internal_timers(
    client: Client, wait_for_cause: Callable[..., dict[str, Any]]
) -> None:
    client.start_workflow(holds_crane_slot, id="first")
    wait_for_cause("first", "timer")
    client.start_workflow(waits_for_slot_and_timer, id="both")
    found = wait_for_cause("both", "lock")["findings"]
    assert [each["what"] for each in found] == [
        "waits for a slot of 'crane', held by other workflows",
        "waits for a timer",
    ]


def test_why_of_a_slot_with_unknown_holder_suggests_asking_its_keeper() -> None:
    facts = facts_of(
        *TASK,
        history_event(5, "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED", **signal_to_keeper("ask")),
        history_event(6, "TIMER_STARTED", {"summary": payload("waits for a slot of 'crane'")}, **ONE_MINUTE),
    )
    found = with_slots(diagnose(facts), facts, lambda keeper: None).findings[0]
    assert found.cause is Cause.LOCK
    assert [each.command for each in found.actions] == ["hourglass why hourglass.slots:crane"]
    assert found.details == ("the holder is unknown: the keeper of the limit does not respond",)


def test_why_of_a_throttled_run_reports_one_wait(
    client: Client, wait_for_cause: Callable[..., dict[str, Any]]
) -> None:
    client.start_workflow(runs_hourly, id="first").result()
    client.start_workflow(runs_hourly, id="second")
    found = wait_for_cause("second", "lock")["findings"]
    assert [each["what"] for each in found] == ["waits for a turn of 'hourly'"]
    assert found[0]["do"] == [{"text": "Nothing: the workflow gets its turn automatically.", "command": ""}]


def test_why_of_a_start_with_wrong_arguments_does_not_blame_the_code(
    client: Client, wait_for_cause: Callable[..., dict[str, Any]]
) -> None:
    client.start_workflow("holds_crane_slot", 1, 2, 3, id="wrong")
    found = wait_for_cause("wrong", "undecodable")["findings"][0]
    assert found["what"] == "cannot continue, because its code does not accept its arguments"


def test_why_ignores_a_slot_that_was_returned() -> None:
    facts = facts_of(
        *TASK,
        history_event(5, "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED", **signal_to_keeper("ask")),
        history_event(6, "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED", **signal_to_keeper("give_back")),
        history_event(7, "TIMER_STARTED", {"summary": payload("waits for a slot of 'crane'")}, **ONE_MINUTE),
    )
    assert with_slots(diagnose(facts), facts, lambda keeper: None).cause is not Cause.LOCK


# --- paused ----------------------------------------------------------------------------------------------------------


def test_why_of_a_paused_run_shows_identity_reason_and_command() -> None:
    facts = facts_of(
        *TASK, history_event(5, "WORKFLOW_EXECUTION_PAUSED", identity="ann@desk", reason="audit first")
    )
    facts = replace(facts, options="--target localhost:7233 --namespace shop")
    found = added(diagnose(facts), facts, "--address localhost:7233")
    assert (found.cause, found.wrong) == (Cause.PAUSED, True)
    assert len(found.findings) == 1
    assert found.findings[0].details == ("by ann@desk", "reason: audit first")
    command = "hourglass resume order-1 --target localhost:7233 --namespace shop"
    assert found.findings[0].actions[0].command == command


def test_resumed_run_is_not_paused() -> None:
    events = facts_of(
        *TASK, history_event(5, "WORKFLOW_EXECUTION_PAUSED"), history_event(6, "WORKFLOW_EXECUTION_UNPAUSED")
    ).events
    assert is_paused(events) is None
    assert is_paused(events[:-1]) is events[-2]


def test_why_of_a_paused_activity_adds_the_server_address_to_the_command() -> None:
    scheduled = history_event(5, "ACTIVITY_TASK_SCHEDULED", activityId="7", activityType={"name": "weigh"})
    facts = facts_of(*TASK, scheduled)
    paused = replace(facts.story.spans[-1], paused=True, target="7")
    facts = replace(facts, story=replace(facts.story, spans=(*facts.story.spans[:-1], paused)))
    found = added(diagnose(facts), facts, "--address prod:7233 --namespace shop").findings[0]
    assert found.cause is Cause.PAUSED
    assert [each.command for each in found.actions] == [
        "temporal activity unpause --workflow-id order-1 --activity-id 7 --address prod:7233 --namespace shop"
    ]


# --- signals ---------------------------------------------------------------------------------------------------------


def test_why_reports_a_dropped_undecodable_signal(
    client: Client, wait_for_cause: Callable[..., dict[str, Any]]
) -> None:
    handle = client.start_workflow(waits_for_number, id="counts-1")
    assert wait_for_cause("counts-1", "signal")["findings"][0]["details"] == []
    handle.signal("number", "three")
    deadline = time.monotonic() + 30
    while not (details := wait_for_cause("counts-1", "signal")["findings"][0]["details"]):
        assert time.monotonic() < deadline
    assert details[0].startswith("the last signal 'number' had no effect: the worker drops signals")


# --- local activities ------------------------------------------------------------------------------------------------


def test_why_of_a_long_workflow_task_suggests_a_local_activity(
    client: Client, wait_for_cause: Callable[..., dict[str, Any]]
) -> None:
    """No history shows running local activities."""
    client.start_workflow(runs_local_activity, id="local-1")
    deadline = time.monotonic() + 30
    while True:
        found = wait_for_cause("local-1", "code_runs")["findings"][0]
        if "local activity" in found["what"] + "".join(found["details"]):
            break
        assert time.monotonic() < deadline, found
    assert "the worker logs the reason" in "".join(found["details"])


def test_why_shows_the_line_of_a_local_activity() -> None:
    stand = Position(
        fiber="workflow", place="a.py:3", code="weigh.local()", waits=Waits.ACTIVITY, call="local"
    )
    facts = facts_of(
        *TASK,
        history_event(5, "WORKFLOW_TASK_SCHEDULED"),
        history_event(6, "WORKFLOW_TASK_STARTED", identity="w@vm"),
    )
    found = added(diagnose(facts), replace(facts, positions=(stand,)), "").findings[0]
    assert (
        found.what
        == "is being executed by a worker, w@vm, where a local activity is running or being retried"
    )
    assert (found.place, found.code) == ("a.py:3", "weigh.local()")


# --- no workflow -----------------------------------------------------------------------------------------------------


def test_why_of_a_schedule_id_says_that_it_is_a_schedule(
    client: Client, wait_for_cause: Callable[..., dict[str, Any]], target: str
) -> None:
    action = ScheduleActionStartWorkflow(holds_crane_slot, id="nightly-run")
    spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=3600)])
    handle = client.create_schedule("nightly", Schedule(action, spec))
    found = wait_for_cause("nightly", "not_found")["findings"][0]
    assert found["what"] == "is a schedule, not a workflow"
    assert found["until"] is not None
    handle.pause(note="until the audit is over")
    found = wait_for_cause("nightly", "not_found")["findings"][0]
    assert found["what"] == "is a schedule, not a workflow: it is paused (until the audit is over)"
    assert found["until"] is None
    assert "client.get_schedule_handle('nightly').unpause()" in found["do"][0]["text"]
    assert "STARTS_WITH" in found["do"][1]["command"]
    assert main(["why", "nightly", "--target", target]) == 1


def test_why_of_an_unknown_run_id_names_the_latest_run(
    client: Client, wait_for_cause: Callable[..., dict[str, Any]]
) -> None:
    handle = client.start_workflow(holds_crane_slot, id="known")
    found = wait_for_cause("known", "not_found", "--run-id", "123")["findings"][0]
    assert found["what"] == "has no run '123'"
    assert found["details"] == [f"its latest run is {handle.run_id}"]


# --- histories by hand -----------------------------------------------------------------------------------------------

ONE_MINUTE = {"timerId": "1", "startToFireTimeout": "60s"}


def signal_to_keeper(signal: str) -> dict[str, Any]:
    return {"workflowExecution": {"workflowId": "hourglass.slots:crane"}, "signalName": signal}
