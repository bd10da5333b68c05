"""Both clients with a Temporal dev server and a worker of Temporal's Python SDK."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import temporalio.activity
import temporalio.client
import temporalio.worker
import temporalio.workflow
from temporalio.exceptions import ApplicationError as TheirApplicationError

from hourglass.client import AsyncClient
from hourglass.errors import (
    ApplicationError,
    ConnectionFailedError,
    NamespaceNotFoundError,
    QueryFailedError,
    WorkflowFailedError,
    WorkflowNotFoundError,
)
from hourglass.testing import dev_server

pytestmark = pytest.mark.server

QUEUE = "peer"
Do = Callable[[Any], Any]


@temporalio.workflow.defn(name="Peer")
class Peer:
    """A workflow of Temporal's SDK that behaves as its first argument says."""

    def __init__(self) -> None:
        self.items: list[str] = []

    @temporalio.workflow.run
    async def run(self, action: str, value: Any = None) -> Any:
        match action:
            case "echo":
                return value
            case "fail":
                raise TheirApplicationError("no money", {"short": 3}, type="Broke")
            case "wait":
                await temporalio.workflow.wait_condition(lambda: "go" in self.items)
                return self.items

    @temporalio.workflow.signal
    def put(self, *items: str) -> None:
        self.items += items

    @temporalio.workflow.query
    def count(self) -> int:
        return len(self.items)

    @temporalio.workflow.query
    def broken(self) -> int:
        raise ValueError("cannot say")


@contextmanager
def peer_worker(target: str) -> Iterator[None]:
    """Run Temporal's worker on an event loop in a thread."""
    started = threading.Event()
    stop: asyncio.Event
    loop: asyncio.AbstractEventLoop

    async def main() -> None:
        nonlocal stop, loop
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        client = await temporalio.client.Client.connect(target)
        async with temporalio.worker.Worker(
            client,
            task_queue=QUEUE,
            workflows=[Peer],
            workflow_runner=temporalio.worker.UnsandboxedWorkflowRunner(),
        ):
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(60)
    yield
    loop.call_soon_threadsafe(stop.set)
    thread.join()


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with dev_server() as server, peer_worker(server.target):
        yield server.target


@pytest.fixture
def client(face: Any, target: str) -> Iterator[Any]:
    made = face.do(face.kind.connect(target))
    yield made
    face.do(made.close())


def unique_id() -> str:
    return f"test-{uuid.uuid4()}"


def test_temporalio_workflow_started_by_name_returns_its_result(client: Any, do: Do) -> None:
    handle = do(client.start_workflow("Peer", "echo", {"a": [1, None]}, id=unique_id(), task_queue=QUEUE))
    assert do(handle.result(timeout=60)) == {"a": [1, None]}
    assert handle.run_id == handle.first_execution_run_id


def test_failure_of_temporalio_workflow_keeps_type_message_and_details(client: Any, do: Do) -> None:
    with pytest.raises(WorkflowFailedError, match="no money") as caught:
        do(client.execute_workflow("Peer", "fail", task_queue=QUEUE))
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.message, cause.type, list(cause.details)) == ("no money", "Broke", [{"short": 3}])


def test_signals_and_queries_reach_a_temporalio_workflow(client: Any, do: Do) -> None:
    handle = do(client.start_workflow("Peer", "wait", task_queue=QUEUE))
    assert do(handle.query("count", result_type=int)) == 0
    do(handle.signal("put", "a", "b"))
    assert do(handle.query("count")) == 2
    with pytest.raises(QueryFailedError, match="cannot say"):
        do(handle.query("broken"))
    with pytest.raises(QueryFailedError, match="unknown"):
        do(handle.query("unknown"))
    do(handle.signal("put", "go"))
    assert do(handle.result(timeout=60)) == ["a", "b", "go"]


def test_history_of_many_pages_is_parsed_by_temporalio(client: Any, do: Do) -> None:
    handle = do(client.start_workflow("Peer", "wait", task_queue=QUEUE))
    for number in range(300):
        do(handle.signal("put", str(number)))
    do(handle.signal("put", "go"))
    do(handle.result(timeout=60))
    history = do(handle.history())
    assert (history.workflow_id, history.run_id, history.workflow_type) == (handle.id, handle.run_id, "Peer")
    signals = [e for e in history.events if e["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED"]
    assert len(signals) == 301
    theirs = temporalio.client.WorkflowHistory.from_json(handle.id, history.to_json())
    assert len(theirs.events) == len(history.events)


def test_repeated_start_with_the_same_request_id_returns_the_same_run(client: Any, do: Do) -> None:
    name = unique_id()
    runs = {
        do(client.start_workflow("Peer", "wait", id=name, task_queue=QUEUE, request_id="r")).run_id
        for _ in range(2)
    }
    assert len(runs) == 1
    do(client.get_workflow_handle(name).terminate())


def test_requests_for_an_unknown_workflow_raise_not_found_on_a_server(client: Any, do: Do) -> None:
    handle = client.get_workflow_handle("nobody")
    for call in (handle.describe, handle.cancel, handle.terminate, handle.result):
        with pytest.raises(WorkflowNotFoundError, match="nobody"):
            do(call())
    with pytest.raises(WorkflowNotFoundError, match="nobody"):
        do(handle.signal("put", "x"))


def test_connect_to_unknown_namespace_raises_namespace_not_found(face: Any, target: str) -> None:
    with pytest.raises(NamespaceNotFoundError, match="'nowhere'"):
        face.do(face.kind.connect(target, namespace="nowhere"))


def test_connect_to_unreachable_server_raises_after_the_timeout(face: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can answer there
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionFailedError, match=f"127.0.0.1:{port}"):
            face.do(face.kind.connect(f"127.0.0.1:{port}", timeout=2))


async def test_async_client_waits_for_many_workflows_concurrently(target: str) -> None:
    async with await AsyncClient.connect(target) as client:
        result = await asyncio.gather(
            *(client.execute_workflow("Peer", "echo", n, task_queue=QUEUE) for n in range(20))
        )
    assert result == list(range(20))


SCRIPT = """
import os, sys
from hourglass.client import Client
client = Client.connect()
handle = client.start_workflow("Peer", "echo", 5, task_queue="peer")
assert handle.result(timeout=60) == 5
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        assert handle.result(timeout=60) == 5
        assert client.execute_workflow("Peer", "echo", 6, task_queue="peer") == 6
        assert client.identity.startswith(f"{os.getpid()}@")
        assert Client.connect().execute_workflow("Peer", "echo", 7, task_queue="peer") == 7
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert handle.describe().workflow_type == "Peer"
sys.exit(4)
"""


@pytest.mark.parametrize("variant", ["plain", "fork"])
def test_script_with_unclosed_client_exits_with_its_own_code(target: str, variant: str) -> None:
    """In the variant `fork`, a forked child also uses the client."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, variant],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"TEMPORAL_ADDRESS": target},
    )
    assert done.returncode == 4, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
