"""Clients of the in-memory engine: each has its own engine, which exists only in the process that created it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hourglass.client import WorkflowStatus
from hourglass.errors import (
    TerminatedError,
    WorkflowAlreadyStartedError,
    WorkflowFailedError,
    WorkflowNotFoundError,
)

Do = Callable[[Any], Any]


@pytest.fixture
def client(face: Any) -> Iterator[Any]:
    made = face.do(face.kind.connect("local:", identity="me"))
    yield made
    face.do(made.close())


def test_local_client_reports_target_namespace_and_identity(client: Any) -> None:
    assert (client.target, client.namespace, client.identity) == ("local:", "default", "me")


def test_workflow_can_be_started_described_listed_and_terminated_without_a_worker(
    face: Any, client: Any, do: Do
) -> None:
    handle = do(client.start_workflow("wf", 1, id="x", memo={"note": 1}))
    with pytest.raises(WorkflowAlreadyStartedError):
        do(client.start_workflow("wf", id="x"))
    description = do(handle.describe())
    assert (description.status, description.workflow_type, description.memo) == (
        WorkflowStatus.RUNNING,
        "wf",
        {"note": 1},
    )
    assert [execution.id for execution in face.collect(client.list_workflows())] == ["x"]
    assert do(client.count_workflows("ExecutionStatus = 'Running'")) == 1
    do(handle.signal("anything", 1))
    do(handle.terminate("enough"))
    with pytest.raises(WorkflowFailedError, match="enough") as caught:
        do(handle.result(timeout=60))
    assert isinstance(caught.value.cause, TerminatedError)
    with pytest.raises(WorkflowNotFoundError):
        do(client.get_workflow_handle("y").describe())


def test_local_clients_do_not_share_workflows(face: Any, client: Any, do: Do) -> None:
    do(client.start_workflow("wf", id="x"))
    other = do(face.kind.connect("local:"))
    assert do(other.count_workflows()) == 0
    do(other.start_workflow("wf", id="x"))
    do(other.close())


FORK = """
import os, sys
from hourglass.client import Client
client = Client.connect("local:")
client.start_workflow("wf", id="x")
child = os.fork()
if child == 0:
    try:
        client.count_workflows()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
assert client.count_workflows() == 1
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_local_client_raises_usage_error_in_a_forked_child() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "UsageError this client was connected before the process forked" in done.stdout
