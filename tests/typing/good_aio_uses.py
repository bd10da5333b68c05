"""Correct uses of `hourglass.aio`, and of `async def` in `hourglass.workflow`: both checkers accept them. Never run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, assert_type

from hourglass import activity as plain_activity
from hourglass import workflow as plain
from hourglass.aio import activity, workflow
from hourglass.aio.client import (
    ActivityHandle,
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowUpdateStage,
)
from hourglass.aio.common import Priority, RetryPolicy
from hourglass.aio.exceptions import ActivityError, is_cancelled_exception
from hourglass.aio.worker import Worker
from hourglass.testing import Environment


@activity.defn
async def fetch(url: str) -> bytes:
    return b""


@activity.defn(name="adds")
def add(one: int, other: int) -> int:
    return one + other


@plain_activity.defn
def charge(order: str) -> float:
    return 1.0


class Billing:
    @activity.defn
    async def bill(self, order: str, cents: int) -> str:
        return order


@activity.defn
class Scale:
    async def __call__(self, number: int) -> int:
        return number


@workflow.defn(name="cart", failure_exception_types=[ValueError])
class Cart:
    @workflow.init
    def __init__(self, owner: str) -> None:
        self.items: asyncio.Queue[str] = asyncio.Queue()

    @workflow.run
    async def run(self, owner: str) -> int:
        assert_type(
            await workflow.execute_activity(fetch, "x", start_to_close_timeout=timedelta(seconds=3)), bytes
        )
        assert_type(await workflow.execute_activity(add, args=[1, 2], retry_policy=RetryPolicy()), int)
        assert_type(await workflow.execute_activity(add, 1, 2, priority=Priority(1)), int)
        assert_type(await workflow.execute_activity(charge, "o"), float)
        assert_type(await workflow.execute_activity(activity=fetch, arg="x"), bytes)
        assert_type(await workflow.execute_local_activity(activity=add, args=[1, 2]), int)
        assert_type(await workflow.execute_activity_method(activity=Billing.bill, args=["o", 3]), str)
        assert_type(await workflow.execute_activity_class(activity=Scale, arg=3), int)
        assert_type(await workflow.execute_child_workflow(workflow=Cart.run, arg="ann", id="d"), int)
        assert_type(await workflow.execute_local_activity(add, 1, 2), int)
        assert_type(await workflow.execute_activity_method(Billing.bill, "o", 3), str)
        assert_type(await workflow.execute_activity_class(Scale, 3), int)
        assert_type(await workflow.execute_activity("by name", 1, result_type=int), int)
        assert_type(await workflow.execute_activity("by name", 1), Any)
        assert_type(workflow.start_activity("by name", result_type=int), workflow.ActivityHandle[int])
        assert_type(await workflow.execute_local_activity("by name", args=[1], result_type=int), int)
        assert_type(await workflow.execute_child_workflow("by name", 1, result_type=int), int)
        assert_type(await workflow.execute_child_workflow("by name", 1), Any)
        assert_type(
            await workflow.start_child_workflow("by name", result_type=int),
            workflow.ChildWorkflowHandle[Any, int],
        )
        with workflow.create_event_group("g").scope():
            group = workflow.create_event_group("h", label="a group")
            assert_type(await workflow.execute_activity(add, 1, 2, event_groups=[group]), int)
        handle = workflow.start_activity(fetch, "x")
        assert_type(handle, workflow.ActivityHandle[bytes])
        assert_type(await asyncio.wait_for(handle, 3), bytes)
        assert_type(await asyncio.gather(handle, workflow.start_activity(add, 1, 2)), tuple[bytes, int])
        assert_type(await workflow.execute_child_workflow(Cart.run, "ann", id="c"), int)
        child = await workflow.start_child_workflow(Cart.run, args=["ann"])
        assert_type(child, workflow.ChildWorkflowHandle[Any, int])
        await child.signal(Cart.put, "lamp")
        assert_type(await child, int)
        await workflow.get_external_workflow_handle("other").signal(Cart.put, "lamp")
        done, _ = await workflow.wait([handle], return_when=asyncio.FIRST_COMPLETED)
        assert_type(done, list[workflow.ActivityHandle[bytes]])
        for each in workflow.as_completed([handle]):
            assert_type(await each, bytes)
        assert_type(workflow.info().is_continue_as_new_suggested(), bool)
        await workflow.wait_condition(lambda: not self.items.empty(), timeout=timedelta(hours=1))
        try:
            await workflow.sleep(timedelta(days=1), summary="a day")
        except (ActivityError, asyncio.CancelledError) as error:
            if is_cancelled_exception(error):
                raise
        if owner:
            workflow.continue_as_new(owner)
        return 1

    @workflow.signal
    async def put(self, item: str) -> None:
        await self.items.put(item)

    @workflow.signal(name="stop")
    def stop(self) -> None: ...

    @workflow.update
    async def take(self, item: str) -> bool:
        return True

    @take.validator
    def check(self, item: str) -> None: ...

    @workflow.query
    def count(self) -> int:
        return 0

    @workflow.query
    def holds(self, item: str) -> bool:
        return True

    async def helper(self) -> None:
        pending: Coroutine[Any, Any, None] = self.put("x")
        await pending
        assert_type(await self.take("x"), bool)
        assert_type(await self.run("x"), int)


async def use_client(client: Client) -> None:
    assert_type(await client.execute_workflow(Cart.run, "ann", id="c", task_queue="q"), int)
    assert_type(await client.execute_workflow("by name", "ann", id="c", task_queue="q", result_type=int), int)
    named = await client.start_workflow("by name", id="c", task_queue="q", result_type=int)
    assert_type(await named.result(), int)
    assert_type(await named.query("count", result_type=int), int)
    assert_type(await named.execute_update("add", args=[1], result_type=int), int)
    assert_type(await client.get_workflow_handle("c", result_type=int).result(), int)
    handle = await client.start_workflow(Cart.run, args=["ann"], id="c", task_queue="q")
    assert_type(handle, WorkflowHandle[Any, int])
    await handle.signal(Cart.put, "lamp")
    await handle.signal("stop")
    assert_type(await handle.query(Cart.count), int)
    assert_type(await handle.execute_update(Cart.take, "lamp"), bool)
    update = await handle.start_update(Cart.take, "lamp", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
    assert_type(await update.result(), bool)
    assert_type(await handle.query(query=Cart.holds, arg="lamp"), bool)
    assert_type(await handle.query(Cart.holds, args=["lamp"]), bool)
    assert_type(await handle.execute_update(update=Cart.take, arg="lamp"), bool)
    update = await handle.start_update(
        update=Cart.take, arg="lamp", wait_for_stage=WorkflowUpdateStage.ACCEPTED
    )
    update = await handle.start_update(Cart.take, args=["lamp"], wait_for_stage=WorkflowUpdateStage.ACCEPTED)
    assert_type(client.get_workflow_handle_for(Cart.run, "c"), WorkflowHandle[Any, int])
    await handle.signal(Cart.put, "lamp", request_id="r", rpc_timeout=3, rpc_metadata={"trace": "a"})
    assert_type(await client.execute_activity(fetch, "u", id="a", task_queue="q"), bytes)
    assert_type(await client.start_activity(add, args=[1, 2], id="a", task_queue="q"), ActivityHandle[Any])
    assert_type(await client.execute_activity_class(Scale, 1, id="a", task_queue="q"), int)
    operation = WithStartWorkflowOperation(Cart.run, "ann", id="c", task_queue="q")
    assert_type(operation, WithStartWorkflowOperation[Any, int])
    async with Worker(client, task_queue="q", workflows=[Cart], activities=[fetch, add, Billing().bill]):
        pass
    assert_type(await fetch("direct"), bytes)


@plain.defn
async def awaits(order: str) -> float:
    task = charge.start(order)
    assert_type(await task, float)
    assert_type(await plain.spawn(slow, 1), str)
    return await charge.start(order)


def slow(n: int) -> str:
    plain.sleep(n)
    return "slept"


async def both(n: int) -> int:
    return n


@plain.defn
def mixes(order: str) -> int:
    assert_type(plain.run_async(both(1)), int)
    assert_type(plain.spawn(both, 2).result(), int)
    assert_type(awaits(order), float)
    return 1


@plain.defn
class Mixed:
    @plain.run
    def run(self) -> int:
        return 1

    @plain.signal
    async def poke(self, name: str) -> None: ...

    @plain.update
    async def change(self, name: str) -> int:
        return 1


def use_environment(env: Environment) -> None:
    assert_type(env.execute_workflow(Cart.run, "ann"), int)
    assert_type(env.execute_workflow(awaits, "o"), float)
    env.start_workflow(Mixed.run).signal(Mixed.poke, "x")
    assert_type(env.start_workflow(Mixed.run).execute_update(Mixed.change, "x"), int)
