"""Managing runs and activities on both engines: pause, resume, delete, fork, reset, complete by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from hourglass import ApplicationError, Client, Replayer, Worker, activity, workflow
from hourglass.client import PendingActivityInfo, WorkflowHandle, WorkflowStatus
from hourglass.errors import ServiceError, UsageError, WorkflowAlreadyStartedError, WorkflowNotFoundError
from hourglass.testing import DevServer

QUEUE = "managing"
step_calls: list[str] = []
repaired = threading.Event()
entered = threading.Semaphore(0)
may_end = threading.Event()

go = workflow.Channel("go", str)


@activity.defn
def step(name: str) -> str:
    step_calls.append(name)
    return name.upper()


@activity.defn(start_to_close_timeout=60)
def failing() -> str:
    if not repaired.is_set():
        raise ApplicationError("broken", next_retry_delay=600)
    return "mended"


@activity.defn(start_to_close_timeout=60)
def blocking() -> str:
    """Block until the test sets `may_end`."""
    entered.release()
    may_end.wait(30)
    return "held"


@workflow.defn
def order() -> list[str]:
    first = step("charge")
    signal_value = go.receive()
    return [first, signal_value, step("pack"), step("ship")]


@workflow.defn
def waits_for_failing() -> str:
    return failing()


@workflow.defn
def waits_for_blocking() -> list[str]:
    return [blocking(), step("after")]


@workflow.defn
def parent() -> str:
    step("before")
    return str(workflow.execute_child_workflow(order, id="child-of-parent")) + step("later")


@pytest.fixture(params=["memory", "file", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    step_calls.clear()
    repaired.clear()
    may_end.clear()
    if request.param == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    else:
        target = "local:" if request.param == "memory" else f"local:{tmp_path / 'managing.db'}"
    with (
        Client.connect(target) as client,
        Worker(
            client,
            QUEUE,
            workflows=[order, waits_for_failing, waits_for_blocking, parent],
            activities=[step, failing, blocking],
        ),
    ):
        yield client


def event_types(handle: WorkflowHandle[Any]) -> list[str]:
    return [event["eventType"].removeprefix("EVENT_TYPE_") for event in handle.history().events]


def start(client: Client, run: Any, id: str) -> WorkflowHandle[Any]:
    """Start a workflow with an id that is unique on a shared server."""
    return client.start_workflow(run, id=f"{id}-{client.target}"[-60:], task_queue=QUEUE)


def pending(handle: WorkflowHandle[Any]) -> PendingActivityInfo:
    until(lambda: len(handle.describe().pending_activities) == 1)
    return handle.describe().pending_activities[0]


def test_paused_run_records_signals_and_handles_them_after_resume(client: Client) -> None:
    handle = start(client, order, "rests")
    until(lambda: event_types(handle).count("WORKFLOW_TASK_COMPLETED") == 2)
    handle.pause("a count")
    assert handle.describe().status is WorkflowStatus.PAUSED
    handle.signal(go, "now")
    until(lambda: "WORKFLOW_EXECUTION_SIGNALED" in event_types(handle))
    assert event_types(handle)[-2:] == ["WORKFLOW_EXECUTION_PAUSED", "WORKFLOW_EXECUTION_SIGNALED"]
    until(lambda: handle.id in {run.id for run in client.list_workflows("ExecutionStatus = 'Paused'")})
    assert handle.id not in {run.id for run in client.list_workflows("ExecutionStatus = 'Running'")}
    assert step_calls == ["charge"]
    handle.unpause()
    assert handle.result(30) == ["CHARGE", "now", "PACK", "SHIP"]
    assert step_calls == ["charge", "pack", "ship"]
    with Replayer(workflows=[order]) as replayer:
        assert replayer.replay(handle.history()).ok


def test_pausing_a_paused_run_or_resuming_a_running_one_raises_failed_precondition(client: Client) -> None:
    handle = start(client, order, "twice")
    with pytest.raises(ServiceError, match="not paused") as refused:
        handle.unpause()
    assert refused.value.status == "FAILED_PRECONDITION"
    handle.pause()
    with pytest.raises(ServiceError, match="already paused") as refused:
        handle.pause()
    assert refused.value.status == "FAILED_PRECONDITION"
    handle.terminate()
    with pytest.raises(WorkflowNotFoundError):
        handle.unpause()


def test_activity_attempt_completes_while_its_run_is_paused(client: Client) -> None:
    handle = start(client, waits_for_blocking, "attempt")
    assert entered.acquire(timeout=30)
    handle.pause()
    may_end.set()
    until(lambda: event_types(handle)[-1] == "ACTIVITY_TASK_COMPLETED")
    handle.unpause()
    assert handle.result(30) == ["held", "AFTER"]


def test_resetting_an_activity_in_backoff_retries_it_immediately(client: Client) -> None:
    """Without the reset, its next attempt would start ten minutes later."""
    handle = start(client, waits_for_failing, "reset")
    until(lambda: pending(handle).attempt == 2)
    repaired.set()
    client.get_activity_handle(workflow_id=handle.id, activity_id=pending(handle).id).reset()
    assert handle.result(30) == "mended"


def test_activity_in_backoff_can_be_completed_but_not_failed_by_a_client(client: Client) -> None:
    handle = start(client, waits_for_failing, "by-hand")
    until(lambda: pending(handle).attempt == 2)
    activity_handle = client.get_activity_handle(workflow_id=handle.id, activity_id=pending(handle).id)
    with pytest.raises(ServiceError) as refused:
        activity_handle.fail(ApplicationError("no"))
    assert refused.value.status == "NOT_FOUND"
    activity_handle.complete("by hand")
    assert handle.result(30) == "by hand"
    with pytest.raises(ServiceError):
        activity_handle.reset()


def test_deleted_run_is_not_found_and_its_id_can_be_reused(client: Client) -> None:
    handle = start(client, order, "deleted")
    handle.delete()
    until(lambda: not _exists(handle))
    again = start(client, order, "deleted")
    again.signal(go, "x")
    assert again.result(30)[1] == "x"
    # A server that lists its end only after it was deleted lists it for good.
    until(lambda: (again.id, "COMPLETED") in {(run.id, run.status.name) for run in client.list_workflows()})
    again.delete()
    until(lambda: not _exists(again))
    until(lambda: again.id not in {run.id for run in client.list_workflows()})
    with pytest.raises(WorkflowNotFoundError):
        again.delete()


def _exists(handle: WorkflowHandle[Any]) -> bool:
    try:
        handle.describe()
    except WorkflowNotFoundError:
        return False
    return True


def test_fork_repeats_only_the_steps_after_its_event(client: Client) -> None:
    handle = start(client, order, "forked")
    handle.signal(go, "now")
    assert handle.result(30) == ["CHARGE", "now", "PACK", "SHIP"]
    before = event_types(handle)
    ends = [event_id for event_id, name in enumerate(before, 1) if name == "WORKFLOW_TASK_COMPLETED"]
    forked = handle.fork(id=handle.id + "-fork", event_id=ends[-3])
    assert forked.result(30) == ["CHARGE", "now", "PACK", "SHIP"]
    assert step_calls == ["charge", "pack", "ship", "pack", "ship"]
    assert event_types(handle) == before
    with Replayer(workflows=[order]) as replayer:
        assert replayer.replay(forked.history()).ok
    with pytest.raises(UsageError, match="needs a new workflow id"):
        handle.fork(id=handle.id, before="step")


def test_fork_before_a_signal_does_not_receive_that_signal(client: Client) -> None:
    handle = start(client, order, "unsignalled")
    until(lambda: "ACTIVITY_TASK_SCHEDULED" in event_types(handle))
    handle.signal(go, "first")
    handle.result(30)
    forked = handle.fork(id=handle.id + "-fork", before="step")
    with pytest.raises(WorkflowAlreadyStartedError):
        handle.fork(id=forked.id, before="step")
    forked.signal(go, "second")
    assert forked.result(30)[1] == "second"


def test_paused_run_stays_paused_after_the_file_is_reopened(tmp_path: Path) -> None:
    step_calls.clear()
    target = f"local:{tmp_path / 'kept.db'}"

    def worker(client: Client) -> Worker:
        return Worker(client, QUEUE, workflows=[order], activities=[step])

    with Client.connect(target) as client:
        handle = client.start_workflow(order, id="kept", task_queue=QUEUE)
        handle.pause("overnight")
    with Client.connect(target) as client, worker(client):
        handle = client.get_workflow_handle("kept", workflow=order)
        handle.signal(go, "morning")
        assert handle.describe().status is WorkflowStatus.PAUSED
        assert "WORKFLOW_TASK_STARTED" not in event_types(handle)
    with Client.connect(target) as client, worker(client):
        handle = client.get_workflow_handle("kept", workflow=order)
        handle.unpause()
        assert handle.result(30) == ["CHARGE", "morning", "PACK", "SHIP"]
    assert step_calls == ["charge", "pack", "ship"]


def test_fork_at_an_event_with_an_open_child_is_rejected(client: Client) -> None:
    handle = start(client, parent, "adopts")
    until(lambda: "CHILD_WORKFLOW_EXECUTION_STARTED" in event_types(handle))
    client.get_workflow_handle("child-of-parent").signal(go, "on")
    handle.result(30)
    ends = [
        event_id for event_id, name in enumerate(event_types(handle), 1) if name == "WORKFLOW_TASK_COMPLETED"
    ]
    with pytest.raises(ServiceError, match="child"):
        handle.fork(id=handle.id + "-fork", event_id=ends[-3])
