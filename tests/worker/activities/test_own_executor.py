"""Activities in a user's executor that is full, shut down or of the wrong kind."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from threading import current_thread
from typing import Any

import pytest

from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass.errors import UsageError, WorkflowFailedError


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def thread_name(number: int) -> str:
    return current_thread().name.partition("_")[0]


@workflow.defn
def fan_out(count: int) -> list[str]:
    """Start this many activities at the same time."""
    return sorted(set(workflow.map(thread_name, range(count))))


def run(executor: Any, count: int) -> list[str]:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[fan_out], activities=[thread_name], activity_executor=executor),
    ):
        return client.execute_workflow(fan_out, count)


def test_excess_activities_wait_in_the_users_executor() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        assert run(executor, 5) == ["mine"]


def test_executor_that_is_shut_down_fails_the_attempt() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(WorkflowFailedError) as raised:
        run(executor, 1)
    assert "shutdown" in str(raised.value.cause.__cause__)


class CancellingExecutor(Executor):
    """An executor that cancels every job."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()
        future.cancel()
        return future


def test_executor_that_cancels_a_job_fails_the_attempt() -> None:
    with pytest.raises(WorkflowFailedError):
        run(CancellingExecutor(), 1)


@pytest.mark.parametrize("executor", [ProcessPoolExecutor, 4])
def test_activity_executor_must_be_a_thread_pool(executor: Any) -> None:
    value = executor() if isinstance(executor, type) else executor
    with Client.connect("local:") as client, pytest.raises(UsageError, match="activity_executor"):
        Worker(client, workflows=[fan_out], activity_executor=value)
