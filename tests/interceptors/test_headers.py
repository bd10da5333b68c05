"""Interceptors on each engine: every call passes through them, with its headers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hourglass import activity, workflow
from hourglass.client import AsyncClient, Client
from hourglass.errors import UpdateFailedError
from hourglass.replay import Replayer
from hourglass.worker import Worker

from .caller_interceptor import CallerInterceptor, caller


@activity.defn
def echo_caller(number: int) -> str:
    return f"{number} for {caller.get()}"


@activity.defn
async def echo_caller_async(number: int) -> str:
    return f"{number} for {caller.get()}"


@workflow.defn
class Child:
    def __init__(self) -> None:
        self.done = False

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.done)
        return echo_caller(9)

    @workflow.signal
    def finish(self) -> None:
        self.done = True


@workflow.defn
class Order:
    def __init__(self) -> None:
        self.open = True
        self.items: list[str] = []

    @workflow.run
    def run(self, sleeps: float) -> list[str]:
        answers = [
            echo_caller(1),
            echo_caller.local(2),
            workflow.execute_activity("echo_caller_async", 3, start_to_close_timeout=9),
        ]
        workflow.sleep(sleeps)
        child = Child.run.start()
        child.signal(Child.finish)
        answers.append(child.result())
        other = workflow.start_child_workflow(Child.run)
        workflow.get_external_workflow_handle(other.id).signal("finish")
        answers.append(other.result())
        workflow.wait_condition(lambda: not self.open)
        return [*answers, *self.items]

    @workflow.signal
    def close(self) -> None:
        self.open = False

    @workflow.query
    def count(self) -> int:
        return len(self.items)

    @workflow.update
    def add(self, item: str) -> int:
        self.items.append(item)
        return len(self.items)

    @add.validator
    def _(self, item: str) -> None:
        if not item:
            raise ValueError("no item")


@workflow.defn
def continue_as_new_until_zero(left: int) -> str:
    if left:
        workflow.continue_as_new(left - 1)
    return echo_caller(left)


@workflow.defn
def late_handler() -> str:
    """Registers a signal handler after the signal has arrived."""
    texts: list[str] = []
    workflow.sleep(0.05)

    @workflow.signal
    def word(text: str) -> None:
        texts.append(text)

    workflow.wait_condition(lambda: bool(texts))
    return texts[0]


WORKFLOWS = [Child, Order, continue_as_new_until_zero, late_handler]


EXPECTED = {
    "workflow Order by ann",
    "activity echo_caller by ann",
    "async activity echo_caller_async by ann",
    "workflow Child by ann",
    "signal finish by ann",
    "sleep 0.01 by ann",
    "update add by bob",
    "validator add by bob",
    "query count by cid",
    "signal close by dan",
}


@contextmanager
def connect(target: str, task_queue: str) -> Iterator[tuple[Client, CallerInterceptor]]:
    """Yield a client, whose worker serves the task queue, and the interceptor of both."""
    log = CallerInterceptor()
    activities = [echo_caller, echo_caller_async]
    with (
        Client.connect(target, interceptors=[log]) as client,
        Worker(client, task_queue, workflows=WORKFLOWS, activities=activities, verify="always"),
    ):
        yield client, log


def test_headers_reach_activities_children_signals_queries_and_updates(target: str) -> None:
    with connect(target, "who") as (client, log):
        caller.set("ann")
        handle = client.start_workflow(Order.run, 0.01, task_queue="who")
        caller.set("bob")
        assert handle.execute_update(Order.add, "tea") == 1
        with pytest.raises(UpdateFailedError):
            handle.execute_update(Order.add, "")
        caller.set("cid")
        assert handle.query(Order.count) == 1
        caller.set("dan")
        handle.signal(Order.close)
        expected = ["1 for ann", "2 for ann", "3 for ann", "9 for ann", "9 for ann", "tea"]
        assert handle.result(timeout=20) == expected
        history = client.get_workflow_handle(handle.id).history()
        handle.describe()
    assert set(log.seen) == EXPECTED | {f"describe {handle.id} by dan"}
    assert log.seen.count("workflow Order by ann") == 1
    assert log.seen.count("activity echo_caller by ann") == 4
    with Replayer(workflows=WORKFLOWS, interceptors=[CallerInterceptor()]) as replayer:
        assert replayer.replay(history).ok


def test_async_client_calls_pass_through_async_interceptors(target: str) -> None:
    log = CallerInterceptor()

    async def use_async_client() -> None:
        async with (
            await AsyncClient.connect(target, interceptors=[log]) as client,
            Worker(client, "who-async", workflows=WORKFLOWS, activities=[echo_caller, echo_caller_async]),
        ):
            caller.set("eve")
            planned = client.with_start(Order.run, 0.01, id="eve-order", task_queue="who-async")
            assert await planned.execute_update(Order.add, "milk") == 1
            handle = planned.handle
            assert await handle.execute_update(Order.add, "tea") == 2
            assert await handle.query(Order.count) == 2
            await handle.describe()
            await handle.signal(Order.close)
            assert (await handle.result())[-2:] == ["milk", "tea"]

    asyncio.run(use_async_client())
    assert {
        "workflow Order by eve",
        "update add by eve",
        "query count by eve",
        "signal close by eve",
        "activity echo_caller by eve",
        "describe eve-order by eve",
    } <= set(log.seen)


def test_with_start_calls_cancel_and_terminate_are_intercepted(target: str) -> None:
    with connect(target, "who-both") as (client, log):
        caller.set("fay")
        handle = client.with_start(Child.run, id="fay-child", task_queue="who-both").signal(Child.finish)
        assert handle.result(timeout=30) == "9 for fay"
        planned = client.with_start(Order.run, 0.01, id="fay-order", task_queue="who-both")
        assert planned.start_update(Order.add, "milk").result(timeout=30) == 1
        planned.handle.cancel("enough")
        other = client.start_workflow(Order.run, 0.01, id="fay-other", task_queue="who-both")
        other.terminate("at once")  # another run, because the first may have closed
    assert {
        "workflow Child by fay",
        "signal finish by fay",
        "workflow Order by fay",
        "update add by fay",
        "cancel (enough) by fay",
        "terminate (at once) by fay",
    } <= set(log.seen)


def test_signal_handled_after_registration_keeps_its_headers(target: str) -> None:
    with connect(target, "who-late") as (client, log):
        caller.set("guy")
        handle = client.start_workflow(late_handler, task_queue="who-late")
        handle.signal("word", "hello")
        assert handle.result(timeout=30) == "hello"
    assert "signal word by guy" in log.seen


def test_headers_are_passed_on_by_continue_as_new(target: str) -> None:
    with connect(target, "who-round") as (client, log):
        caller.set("hal")
        handle = client.start_workflow(continue_as_new_until_zero, 2, task_queue="who-round")
        assert handle.result(timeout=20) == "0 for hal"
    assert log.seen == ["workflow continue_as_new_until_zero by hal"] * 3 + ["activity echo_caller by hal"]
