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
calls: list[str] = []
mended = threading.Event()
entered = threading.Semaphore(0)
may_end = threading.Event()

go = workflow.Channel("go", str)


@activity.defn
def step(name: str) -> str:
    calls.append(name)
    return name.upper()


@activity.defn(start_to_close_timeout=60)
def broken() -> str:
    if not mended.is_set():
        raise ApplicationError("broken", next_retry_delay=600)
    return "mended"


@activity.defn(start_to_close_timeout=60)
def held() -> str:
    """Block until the test sets `may_end`."""
    entered.release()
    may_end.wait(30)
    return "held"


@workflow.defn
def order() -> list[str]:
    first = step("charge")
    word = go.receive()
    return [first, word, step("pack"), step("ship")]


@workflow.defn
def waits_for_broken() -> str:
    return broken()


@workflow.defn
def holds() -> list[str]:
    return [held(), step("after")]


@workflow.defn
def parent() -> str:
    step("before")
    return str(workflow.execute_child_workflow(order, id="child-of-parent")) + step("later")


@pytest.fixture(params=["memory", "file", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    calls.clear()
    mended.clear()
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
            workflows=[order, waits_for_broken, holds, parent],
            activities=[step, broken, held],
        ),
    ):
        yield client


def names(handle: WorkflowHandle[Any]) -> list[str]:
    return [event["eventType"].removeprefix("EVENT_TYPE_") for event in handle.history().events]


def start(client: Client, run: Any, id: str) -> WorkflowHandle[Any]:
    """Start a workflow with an id that is unique on a shared server."""
    return client.start_workflow(run, id=f"{id}-{client.target}"[-60:], task_queue=QUEUE)


def pending(handle: WorkflowHandle[Any]) -> PendingActivityInfo:
    until(lambda: len(handle.describe().pending_activities) == 1)
    return handle.describe().pending_activities[0]


def test_paused_run_continues_after_resume(client: Client) -> None:
    handle = start(client, order, "rests")
    until(lambda: names(handle).count("WORKFLOW_TASK_COMPLETED") == 2)
    handle.pause("a count")
    assert handle.describe().status is WorkflowStatus.PAUSED
    handle.signal(go, "now")
    until(lambda: "WORKFLOW_EXECUTION_SIGNALED" in names(handle))
    assert names(handle)[-2:] == ["WORKFLOW_EXECUTION_PAUSED", "WORKFLOW_EXECUTION_SIGNALED"]
    until(lambda: handle.id in {run.id for run in client.list_workflows("ExecutionStatus = 'Paused'")})
    assert handle.id not in {run.id for run in client.list_workflows("ExecutionStatus = 'Running'")}
    assert calls == ["charge"]
    handle.unpause()
    assert handle.result(30) == ["CHARGE", "now", "PACK", "SHIP"]
    assert calls == ["charge", "pack", "ship"]
    with Replayer(workflows=[order]) as replayer:
        assert replayer.replay(handle.history()).ok


def test_redundant_pause_and_resume_are_rejected(client: Client) -> None:
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


def test_running_attempt_completes_while_its_run_is_paused(client: Client) -> None:
    handle = start(client, holds, "attempt")
    assert entered.acquire(timeout=30)
    handle.pause()
    may_end.set()
    until(lambda: names(handle)[-1] == "ACTIVITY_TASK_COMPLETED")
    handle.unpause()
    assert handle.result(30) == ["held", "AFTER"]


def test_activity_in_backoff_is_reset(client: Client) -> None:
    """Without the reset, its next attempt would start ten minutes later."""
    handle = start(client, waits_for_broken, "reset")
    until(lambda: pending(handle).attempt == 2)
    mended.set()
    client.get_activity_handle(workflow_id=handle.id, activity_id=pending(handle).id).reset()
    assert handle.result(30) == "mended"


def test_pending_activity_is_completed_by_hand(client: Client) -> None:
    handle = start(client, waits_for_broken, "by-hand")
    until(lambda: pending(handle).attempt == 2)
    found = client.get_activity_handle(workflow_id=handle.id, activity_id=pending(handle).id)
    with pytest.raises(ServiceError) as refused:
        found.fail(ApplicationError("no"))
    assert refused.value.status == "NOT_FOUND"
    found.complete("by hand")
    assert handle.result(30) == "by hand"
    with pytest.raises(ServiceError):
        found.reset()


def test_run_is_deleted(client: Client) -> None:
    handle = start(client, order, "deleted")
    handle.delete()
    until(lambda: not _is_there(handle))
    again = start(client, order, "deleted")
    again.signal(go, "x")
    assert again.result(30)[1] == "x"
    # A server that lists its end only after it was deleted lists it for good.
    until(lambda: (again.id, "COMPLETED") in {(run.id, run.status.name) for run in client.list_workflows()})
    again.delete()
    until(lambda: not _is_there(again))
    until(lambda: again.id not in {run.id for run in client.list_workflows()})
    with pytest.raises(WorkflowNotFoundError):
        again.delete()


def _is_there(handle: WorkflowHandle[Any]) -> bool:
    try:
        handle.describe()
    except WorkflowNotFoundError:
        return False
    return True


def test_fork_does_not_repeat_earlier_steps(client: Client) -> None:
    handle = start(client, order, "forked")
    handle.signal(go, "now")
    assert handle.result(30) == ["CHARGE", "now", "PACK", "SHIP"]
    before = names(handle)
    ends = [place for place, name in enumerate(before, 1) if name == "WORKFLOW_TASK_COMPLETED"]
    forked = handle.fork(id=handle.id + "-fork", event_id=ends[-3])
    assert forked.result(30) == ["CHARGE", "now", "PACK", "SHIP"]
    assert calls == ["charge", "pack", "ship", "pack", "ship"]
    assert names(handle) == before
    with Replayer(workflows=[order]) as replayer:
        assert replayer.replay(forked.history()).ok
    with pytest.raises(UsageError, match="of its own"):
        handle.fork(id=handle.id, before="step")


def test_fork_before_a_signal_does_not_receive_it(client: Client) -> None:
    handle = start(client, order, "unsignalled")
    until(lambda: "ACTIVITY_TASK_SCHEDULED" in names(handle))
    handle.signal(go, "first")
    handle.result(30)
    forked = handle.fork(id=handle.id + "-fork", before="step")
    with pytest.raises(WorkflowAlreadyStartedError):
        handle.fork(id=forked.id, before="step")
    forked.signal(go, "second")
    assert forked.result(30)[1] == "second"


def test_pause_is_stored_in_the_file(tmp_path: Path) -> None:
    calls.clear()
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
        assert "WORKFLOW_TASK_STARTED" not in names(handle)
    with Client.connect(target) as client, worker(client):
        handle = client.get_workflow_handle("kept", workflow=order)
        handle.unpause()
        assert handle.result(30) == ["CHARGE", "morning", "PACK", "SHIP"]
    assert calls == ["charge", "pack", "ship"]


def test_fork_with_an_open_child_is_rejected(client: Client) -> None:
    handle = start(client, parent, "adopts")
    until(lambda: "CHILD_WORKFLOW_EXECUTION_STARTED" in names(handle))
    client.get_workflow_handle("child-of-parent").signal(go, "on")
    handle.result(30)
    ends = [place for place, name in enumerate(names(handle), 1) if name == "WORKFLOW_TASK_COMPLETED"]
    with pytest.raises(ServiceError, match="child"):
        handle.fork(id=handle.id + "-fork", event_id=ends[-3])
