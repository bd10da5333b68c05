"""Resources shared by activities: passed to a worker or opened once by it, and looked up by type."""

from __future__ import annotations

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
def clear_events() -> None:
    EVENTS.clear()


def test_resource_is_opened_once_per_worker_start() -> None:
    with Client.connect("local:") as client:
        worker = Worker(client, workflows=[using], activities=[use], resources=[pool])
        for _ in range(2):
            with worker:
                assert client.execute_workflow(using) == client.execute_workflow(using) == "pool"
            assert EVENTS == ["opened", "used", "used", "closed"]
            EVENTS.clear()


async def test_resource_is_opened_for_a_worker_on_an_event_loop() -> None:
    async with (
        await AsyncClient.connect("local:") as client,
        Worker(client, workflows=[using], activities=[use], resources=[pool]),
    ):
        assert await client.execute_workflow(using) == "pool"
    assert EVENTS == ["opened", "used", "closed"]


def test_worker_start_fails_and_closes_resources_if_one_cannot_be_opened() -> None:
    def broken() -> Any:
        raise OSError("no route to the database")

    with Client.connect("local:") as client:
        worker = Worker(client, workflows=[using], activities=[use], resources=[pool, broken])
        with pytest.raises(OSError, match="no route"):
            worker.start()
    assert EVENTS == ["opened", "closed"]


def test_both_test_environments_provide_resources() -> None:
    with Environment(resources=[pool]) as env:
        assert env.execute_workflow(using) == "pool"
    assert EVENTS == ["opened", "used", "closed"]
    assert ActivityEnvironment(resources=[Pool("a fake")]).run(use) == "a fake"


def test_missing_ambiguous_or_invalid_resource_is_rejected() -> None:
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
