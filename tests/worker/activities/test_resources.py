"""Resources: what activities share, given or opened once for each worker, found by type."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hourglass import AsyncClient, Client, RetryPolicy, Worker, activity, workflow
from hourglass.errors import UsageError, WorkflowFailedError
from hourglass.testing import ActivityEnvironment, Environment

EVENTS: list[str] = []


class Pool:
    def __init__(self, name: str = "pool") -> None:
        self.name = name


class Mail(Pool):
    pass


@contextmanager
def pool() -> Iterator[Pool]:
    EVENTS.append("opened")
    try:
        yield Pool()
    finally:
        EVENTS.append("closed")


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def use() -> str:
    EVENTS.append("used")
    return activity.resource(Pool).name


@workflow.defn
def using() -> str:
    return use()


@pytest.fixture(autouse=True)
def no_events() -> None:
    EVENTS.clear()


def test_resource_is_opened_once_per_worker_start() -> None:
    """It is opened before the first activity and closed after the last; a worker that starts again opens it again."""
    with Client.connect("local:") as client:
        worker = Worker(client, workflows=[using], activities=[use], resources=[pool])
        for _ in range(2):
            with worker:
                assert client.execute_workflow(using) == client.execute_workflow(using) == "pool"
            assert EVENTS == ["opened", "used", "used", "closed"]
            EVENTS.clear()


def test_resource_on_an_event_loop() -> None:
    """A worker in an `async with` block does the same."""

    async def main() -> str:
        async with (
            await AsyncClient.connect("local:") as client,
            Worker(client, workflows=[using], activities=[use], resources=[pool]),
        ):
            return await client.execute_workflow(using)

    assert asyncio.run(main()) == "pool"
    assert EVENTS == ["opened", "used", "closed"]


def test_resource_that_cannot_be_opened() -> None:
    """The worker does not start, and open resources are closed again."""

    def broken() -> Any:
        raise OSError("no route to the database")

    with Client.connect("local:") as client:
        worker = Worker(client, workflows=[using], activities=[use], resources=[pool, broken])
        with pytest.raises(OSError, match="no route"):
            worker.start()
    assert EVENTS == ["opened", "closed"]


def test_resources_in_test_environments() -> None:
    """Both environments of `hourglass.testing` take them."""
    with Environment(resources=[pool]) as env:
        assert env.execute_workflow(using) == "pool"
    assert EVENTS == ["opened", "used", "closed"]
    assert ActivityEnvironment(resources=[Pool("a fake")]).run(use) == "a fake"


def test_missing_or_ambiguous_resource() -> None:
    """The message lists the available ones."""
    with Environment() as env, pytest.raises(WorkflowFailedError) as failed:
        env.execute_workflow(using)
    assert "no resource of type Pool (it has none)" in str(failed.value.__cause__)
    with pytest.raises(UsageError, match=r"2 resources of the worker have the type Pool \(Mail, Pool\)"):
        ActivityEnvironment(resources=[Pool(), Mail()]).run(use)
    with pytest.raises(UsageError, match="not a context manager"):
        ActivityEnvironment(resources=[lambda: 3]).run(use)
    with pytest.raises(UsageError, match="must be a list"):
        ActivityEnvironment(resources=Pool())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="inside a running activity"):
        activity.resource(Pool)
