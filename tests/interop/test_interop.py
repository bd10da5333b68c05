"""Clients, activities, open runs and histories across Hourglass and temporalio on a server."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
import temporalio.client
import temporalio.worker
from temporalio.api.common.v1 import Payload as RawPayload
from temporalio.client import WorkflowHistory
from temporalio.common import RawValue

from hourglass.client import Client
from hourglass.errors import ActivityError, ApplicationError, WorkflowFailedError
from hourglass.replay import Replayer
from hourglass.testing import DevServer
from hourglass.worker import Worker

from . import ours, theirs
from .shared import PARCEL, Colour, Parcel

pytestmark = pytest.mark.server

OURS: dict[str, Any] = {
    "workflows": [ours.conversation, ours.calls_theirs, ours.catches_theirs, ours.relay],
    "activities": [ours.our_echo, ours.act, ours.our_failure],
}


@pytest.fixture
def client(quick_server: DevServer) -> Iterator[Client]:
    with Client.connect(quick_server.target) as client:
        yield client


@pytest.fixture
def queue() -> str:
    return f"interop-{uuid.uuid4().hex[:8]}"


def wait_for_events(handle: Any, event: str, count: int = 1) -> None:
    """Wait until the history has this many events of a type."""
    deadline = time.monotonic() + 30
    while [e["eventType"] for e in handle.history().events].count(f"EVENT_TYPE_{event}") < count:
        assert time.monotonic() < deadline, f"there never were {count} {event}"


def test_temporalio_client_starts_signals_and_queries_an_hourglass_workflow(
    quick_server: DevServer, client: Client, queue: str
) -> None:
    async def run_client() -> None:
        theirs_client = await temporalio.client.Client.connect(quick_server.target)
        handle = await theirs_client.start_workflow(
            "Conversation",
            args=[PARCEL, Colour.RED, PARCEL.at, PARCEL.id],
            id=queue,
            task_queue=queue,
            result_type=Parcel,
        )
        await handle.signal("say", args=["hello", Colour.GREEN])
        assert await handle.query("parcel_now", result_type=Parcel) == PARCEL
        assert await handle.query("said", "so far:") == ["so far:", "hello GREEN"]
        await handle.signal("say", args=["bye", Colour.RED])
        result = await handle.result()
        assert result.note == "hello GREEN, bye RED"
        assert (result.id, result.at) == (PARCEL.id, PARCEL.at)
        with pytest.raises(temporalio.client.WorkflowQueryFailedError, match="unknown query 'nothing'"):
            await handle.query("nothing")

    with Worker(client, queue, verify="always", **OURS):
        asyncio.run(run_client())


def test_hourglass_workflow_calls_a_temporalio_activity(
    quick_server: DevServer, client: Client, queue: str
) -> None:
    other = f"{queue}-theirs"
    with theirs.worker(quick_server.target, other), Worker(client, queue, verify="always", **OURS):
        assert client.execute_workflow(ours.calls_theirs, other, PARCEL, task_queue=queue) == PARCEL
        with pytest.raises(WorkflowFailedError) as caught:
            client.execute_workflow(ours.catches_theirs, other, task_queue=queue)
    error = caught.value.cause
    assert isinstance(error, ActivityError)
    assert isinstance(error.cause, ApplicationError)
    assert (error.cause.type, error.cause.message, list(error.cause.details)) == (
        "Closed",
        "not today",
        [{"until": "Monday"}],
    )


def test_temporalio_workflow_calls_an_hourglass_activity(
    quick_server: DevServer, client: Client, queue: str
) -> None:
    other = f"{queue}-theirs"
    with theirs.worker(quick_server.target, other), Worker(client, queue, **OURS):
        echoed = client.execute_workflow("CallsOurs", queue, PARCEL, task_queue=other, result_type=Parcel)
        assert echoed == PARCEL
        failure = client.execute_workflow("CatchesOurs", queue, task_queue=other)
    assert failure == ["LookupError", "nothing here"]


EXPECTED = ["first!", "one", "left!", "right!", "two", "last!"]


@pytest.mark.parametrize(("first", "second"), [("hourglass", "temporalio"), ("temporalio", "hourglass")])
def test_worker_of_one_library_continues_a_run_of_the_other(
    quick_server: DevServer, client: Client, queue: str, first: str, second: str
) -> None:
    def worker(library: str) -> AbstractContextManager[object]:
        if library == "temporalio":
            return theirs.worker(quick_server.target, queue)
        return Worker(client, queue, verify="always", **OURS)

    with worker(first):
        handle = client.start_workflow("Relay", task_queue=queue)
        wait_for_events(handle, "ACTIVITY_TASK_COMPLETED")
        handle.signal("baton", "one")
        wait_for_events(handle, "ACTIVITY_TASK_COMPLETED", 3)
    with worker(second):
        handle.signal("baton", "two")
        assert handle.result(timeout=60) == EXPECTED
    assert_replays_on_both(handle)


def assert_replays_on_both(handle: Any) -> None:
    """Check that the history replays with our function and with temporalio's class."""
    history = handle.history()
    with Replayer(workflows=[ours.relay]) as replayer:
        assert replayer.replay(history).ok

    async def replay() -> None:
        runner = temporalio.worker.UnsandboxedWorkflowRunner()
        judge = temporalio.worker.Replayer(workflows=[theirs.Relay], workflow_runner=runner)
        await judge.replay_workflow(WorkflowHistory.from_json(handle.id, history.to_json()))

    asyncio.run(replay())


def test_undecodable_payload_from_temporalio_parks_only_its_run(
    quick_server: DevServer, client: Client, queue: str
) -> None:
    async def start() -> None:
        theirs_client = await temporalio.client.Client.connect(quick_server.target)
        nonsense = RawPayload(metadata={"encoding": b"json/plain", "x": b"\xff"}, data=b"{nonsense")
        await theirs_client.start_workflow(
            "CatchesTheirs", RawValue(nonsense), id=queue, task_queue=queue, task_timeout=timedelta(seconds=1)
        )

    with Worker(client, queue, **OURS) as worker:
        asyncio.run(start())
        handle = client.get_workflow_handle(queue)
        wait_for_events(handle, "WORKFLOW_TASK_FAILED")
        assert "ArgumentError" in next(iter(worker.statistics().parked.values()))
        other = client.start_workflow("Relay", task_queue=queue)
        other.signal("baton", "one")
        other.signal("baton", "two")
        assert other.result(timeout=30) == EXPECTED
        handle.terminate("hopeless")
