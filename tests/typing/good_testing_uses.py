"""Correct uses of `hourglass.testing`, with the types that both checkers must find. Read by the checkers, never run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from hourglass import Client, WorkflowHandle, activity, workflow
from hourglass.client import AsyncClient, AsyncWorkflowHandle
from hourglass.testing import ActivityEnvironment, AsyncEnvironment, Call, Environment, Later, Shuffled, call
from hourglass.workflow import Channel

decisions = Channel("decision", str)


@activity.defn
def charge(order_id: str, cents: int = 0) -> str:
    return order_id


@activity.defn
async def fetch(url: str) -> bytes:
    return b""


class Payments:
    @activity.defn
    def refund(self, order_id: str) -> bool:
        return True


@workflow.defn
def checkout(order_id: str, cents: int = 0) -> str:
    return charge(order_id, cents)


@workflow.defn
class Cart:
    @workflow.run
    def run(self, name: str) -> int:
        return 1

    @workflow.signal
    def add(self, item: str, count: int = 1) -> None:
        pass


def charge_twice(order_id: str, cents: int = 0) -> str:
    return order_id * 2


async def fetch_nothing(url: str) -> bytes:
    return b""


def use_environment(moment: datetime) -> None:
    with Environment(activities=[Payments()], real_activities=False, chooser=Shuffled(1)) as env:
        assert_type(env, Environment)
        assert_type(env.client, Client)
        assert_type(env.now(), datetime)
        assert_type(env.execute_workflow(checkout, "o-1"), str)
        assert_type(env.execute_workflow(checkout, "o-1", 5, id="x"), str)
        assert_type(env.execute_workflow(Cart.run, "c"), int)
        assert_type(env.execute_workflow("by-name", 1, 2), Any)
        assert_type(env.execute_workflow("by-name", 1, 2, result_type=int), int)
        assert_type(env.start_workflow(checkout, "o-1", run_timeout=timedelta(days=1)), WorkflowHandle[str])
        handle = env.start_workflow(Cart.run, "c")
        assert_type(handle.result(timeout=5), int)
        assert_type(env.after(days=3), Later)
        env.after(timedelta(days=3)).signal(handle, Cart.add, "book", 2)
        env.after(5).signal(handle, decisions, "yes")
        env.after(hours=1).signal(handle, "add", 1, 2, 3)
        env.at(moment).cancel(handle, "enough")
        env.at(datetime(2030, 1, 1, tzinfo=UTC)).terminate(handle)
        env.after(minutes=5).call(charge_twice, "o-1", cents=5)
        env.skip(days=1)
        env.skip(timedelta(days=1))
        assert_type(env.calls(charge), list[Call])
        assert_type(env.calls("charge") == [call("o-1", cents=5)], bool)


def use_fakes(env: Environment) -> None:
    env.fake(charge, charge_twice)
    env.fake(charge, lambda order_id, cents=0: order_id, takes=timedelta(minutes=5))
    env.fake(charge, returns="c-1")
    env.fake(charge, returns="c-1", raises=[ConnectionError("no"), None, TimeoutError])
    env.fake(charge, raises=ValueError("no"), takes=5)
    env.fake(fetch, fetch_nothing)
    env.fake(fetch, lambda url: b"")
    env.fake(fetch, returns=b"", heartbeat_every=10)
    env.fake(Payments.refund, returns=True)
    env.fake("by-name", lambda *args: 1)
    env.fake("by-name", returns={"any": "thing"})


async def use_async() -> None:
    async with Environment() as env:
        assert_type(env, AsyncEnvironment)
        assert_type(env.client, AsyncClient)
        assert_type(await env.execute_workflow(checkout, "o-1"), str)
        handle = await env.start_workflow(checkout, "o-1")
        assert_type(handle, AsyncWorkflowHandle[str])
        assert_type(await handle.result(), str)
        env.after(days=1).signal(handle, decisions, "yes")
        await env.skip(days=1)
        env.fake(charge, returns="x")


async def use_activities() -> None:
    env = ActivityEnvironment(attempt=2, heartbeat_details=(1,))
    assert_type(env.run(charge, "o-1", cents=3), str)
    assert_type(env.run(charge_twice, "o-1"), str)
    assert_type(env.run(fetch, "u"), bytes)
    assert_type(await env.arun(fetch, "u"), bytes)
    assert_type(env.heartbeats, list[tuple[Any, ...]])
