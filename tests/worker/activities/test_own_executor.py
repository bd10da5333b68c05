"""Activities in an executor of the author's: what becomes of them when it is full, shut down or of the wrong kind."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from threading import current_thread
from typing import Any

import pytest

from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass.errors import UsageError, WorkflowFailedError


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def where(number: int) -> str:
    """In which thread it runs."""
    return current_thread().name.partition("_")[0]


@workflow.defn
def spread(many: int) -> list[str]:
    """Asks so many at once."""
    return sorted(set(workflow.map(where, range(many))))


def run(executor: Any, many: int) -> list[str]:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[spread], activities=[where], activity_executor=executor),
    ):
        return client.execute_workflow(spread, many)


def test_excess_activities_wait_in_the_executor() -> None:
    """They wait in the executor's queue, and all run in its threads."""
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        assert run(executor, 5) == ["mine"]


def test_executor_that_was_shut_down_fails_the_attempt() -> None:
    """The attempt fails with the executor's error, and the worker lives."""
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(WorkflowFailedError) as raised:
        run(executor, 1)
    assert "shutdown" in str(raised.value.cause.__cause__)


class Forgetful(Executor):
    """Cancels what it is given."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()
        future.cancel()
        return future


def test_executor_that_drops_a_job_fails_the_attempt() -> None:
    """The attempt fails at once, not by its timeout."""
    with pytest.raises(WorkflowFailedError):
        run(Forgetful(), 1)


@pytest.mark.parametrize("executor", [ProcessPoolExecutor, 4])
def test_own_executor_must_use_threads(executor: Any) -> None:
    """Another executor is rejected with an error that names it, before anything starts."""
    given = executor() if isinstance(executor, type) else executor
    with Client.connect("local:") as client, pytest.raises(UsageError, match="activity_executor"):
        Worker(client, workflows=[spread], activity_executor=given)
