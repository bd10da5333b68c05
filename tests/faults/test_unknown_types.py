"""Type names that a worker does not know, or must not resolve."""

from __future__ import annotations

import sys
import uuid
from typing import Any

import pytest
from tests.waiting import until

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import Client
from hourglass.worker import Worker

from .histories import task_failures


@activity.defn
def known(number: int) -> int:
    return number


# Two seconds: an attempt that the server hands to a worker which is just leaving is tried again after that.
@activity.defn(
    name="later",
    start_to_close_timeout=2,
    retry_policy=RetryPolicy(initial_interval=0.05, backoff_coefficient=1),
)
def known_later(number: int) -> int:
    return number + 1


@workflow.defn
def fine() -> int:
    return known(1)


@workflow.defn
def mystery() -> str:
    return "solved"


@workflow.defn
def needs_later() -> int:
    return known_later(1)


def undecorated() -> str:
    raise AssertionError("a name from the wire must not call this")


@pytest.fixture
def queue() -> str:
    return f"faults-{uuid.uuid4().hex[:8]}"


def test_unknown_workflow_type_fails_the_task(
    client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A later worker that knows it continues the run."""
    with Worker(client, queue, workflows=[fine], activities=[known]):
        handle = client.start_workflow("mystery", task_queue=queue, task_timeout=1)
        (message, *_) = until(lambda: task_failures(handle))
        assert "workflow type 'mystery' is not registered" in message
        assert "registered workflows: fine" in message
        assert "workflows=[…]" in message
        assert client.execute_workflow(fine, task_queue=queue) == 1
        assert "cannot continue" in caplog.text
    with Worker(client, queue, workflows=[fine, mystery], activities=[known]):
        assert handle.result(timeout=30) == "solved"


def test_unknown_activity_type_fails_the_attempt(client: Client, queue: str) -> None:
    """The attempt is retried until a worker knows the type."""
    with Worker(client, queue, workflows=[fine, needs_later], activities=[known]):
        handle = client.start_workflow(needs_later, task_queue=queue)
        failure = until(
            lambda: [p.last_failure for p in handle.describe().pending_activities if p.last_failure]
        )
        assert "activity type 'later' is not registered" in str(failure[0])
        assert client.execute_workflow(fine, task_queue=queue) == 1
    with Worker(client, queue, workflows=[needs_later], activities=[known, known_later]):
        assert handle.result(timeout=30) == 2


@pytest.mark.parametrize(
    "name",
    [
        "this",
        "antigravity.webbrowser",
        "os.system",
        "subprocess.run",
        "tests.faults.test_unknown_types.undecorated",
        f"{__name__}.undecorated",
        f"{__name__}.sys.exit",
        f"{__name__}.Client.connect",
        f"{__name__}.__builtins__.eval",
        "../../etc/passwd",
        "a" * 900,
        "\u202egnp.exe",
        "mystery\n2026 ERROR forged line",
    ],
)
def test_type_names_outside_the_registered_modules_are_unknown(
    name: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a name imports and calls nothing."""
    before = set(sys.modules)
    root: Any = sys.modules[__name__]
    with Client.connect("local:") as client, Worker(client, queue, modules=[root]):
        handle = client.start_workflow(name, task_queue=queue, task_timeout=1)
        (message, *_) = until(lambda: task_failures(handle))
        assert "is not registered with this worker" in message
        assert client.execute_workflow(mystery, task_queue=queue) == "solved"
        handle.terminate("enough")
    assert not {"this", "antigravity"} & (set(sys.modules) - before)
    assert "\n2026 ERROR forged line" not in caplog.text
