"""Interceptors on three engines: everything that is called passes them, and headers travel along."""

from __future__ import annotations

import asyncio

import pytest

from hourglass import activity, workflow
from hourglass.client import AsyncClient, Client
from hourglass.errors import UpdateFailedError
from hourglass.replay import Replayer
from hourglass.worker import Worker

from .carrying import Carrying, caller


@activity.defn
def works(number: int) -> str:
    return f"{number} for {caller.get()}"


@activity.defn
async def waits(number: int) -> str:
    return f"{number} for {caller.get()}"


@workflow.defn
class Kin:
    def __init__(self) -> None:
        self.done = False

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.done)
        return works(9)

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
        answers = [works(1), works.local(2), workflow.execute_activity("waits", 3, start_to_close_timeout=9)]
        workflow.sleep(sleeps)
        child = Kin.run.start()
        child.signal(Kin.finish)
        answers.append(child.result())
        other = workflow.start_child_workflow(Kin.run)
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
def goes_round(left: int) -> str:
    if left:
        workflow.continue_as_new(left - 1)
    return works(left)


@workflow.defn
def late_handler() -> str:
    """Registers its handler after the signal has come."""
    heard: list[str] = []
    workflow.sleep(0.05)

    @workflow.signal
    def word(text: str) -> None:
        heard.append(text)

    workflow.wait_condition(lambda: bool(heard))
    return heard[0]


EVERYTHING = [Kin, Order, goes_round, late_handler]


EXPECTED = {
    "workflow Order by ann",
    "activity works by ann",
    "async activity waits by ann",
    "workflow Kin by ann",
    "signal finish by ann",
    "sleep 0.01 by ann",
    "update add by bob",
    "validator add by bob",
    "query count by cid",
    "signal close by dan",
}


def test_headers_reach_activities_children_and_signals(target: str) -> None:
    """From the client to the run, to activities of all kinds, children and what they signal."""
    log = Carrying()
    with (
        Client.connect(target, interceptors=[log]) as client,
        Worker(client, "who", workflows=EVERYTHING, activities=[works, waits], verify="always"),
    ):
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
    assert log.seen.count("activity works by ann") == 4
    with Replayer(workflows=EVERYTHING, interceptors=[Carrying()]) as replayer:
        assert replayer.replay(history).ok


def test_asynchronous_client_passes_interceptors(target: str) -> None:
    """An AsyncClient's calls pass the asynchronous interceptors, on the caller's loop."""
    log = Carrying()

    async def drive() -> None:
        async with (
            await AsyncClient.connect(target, interceptors=[log]) as client,
            Worker(client, "who-async", workflows=EVERYTHING, activities=[works, waits]),
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

    asyncio.run(drive())
    assert {
        "workflow Order by eve",
        "update add by eve",
        "query count by eve",
        "signal close by eve",
        "activity works by eve",
        "describe eve-order by eve",
    } <= set(log.seen)


def test_start_with_signal_or_update_is_intercepted_once(target: str) -> None:
    """As a start with a signal, or as an update with a start."""
    log = Carrying()
    with (
        Client.connect(target, interceptors=[log]) as client,
        Worker(client, "who-both", workflows=EVERYTHING, activities=[works, waits]),
    ):
        caller.set("fay")
        handle = client.with_start(Kin.run, id="fay-kin", task_queue="who-both").signal(Kin.finish)
        assert handle.result(timeout=30) == "9 for fay"
        planned = client.with_start(Order.run, 0.01, id="fay-order", task_queue="who-both")
        assert planned.start_update(Order.add, "milk").result(timeout=30) == 1
        planned.handle.cancel("enough")
        other = client.start_workflow(Order.run, 0.01, id="fay-other", task_queue="who-both")
        other.terminate("at once")  # not of the same run, which may have closed
    assert {
        "workflow Kin by fay",
        "signal finish by fay",
        "workflow Order by fay",
        "update add by fay",
        "cancel (enough) by fay",
        "terminate (at once) by fay",
    } <= set(log.seen)


def test_delayed_signal_keeps_its_headers(target: str) -> None:
    """What came before its handler was there is handled with the headers that it came with."""
    log = Carrying()
    with (
        Client.connect(target, interceptors=[log]) as client,
        Worker(client, "who-late", workflows=EVERYTHING, activities=[works, waits]),
    ):
        caller.set("guy")
        handle = client.start_workflow(late_handler, task_queue="who-late")
        handle.signal("word", "hello")
        assert handle.result(timeout=30) == "hello"
    assert "signal word by guy" in log.seen


def test_headers_follow_a_chain_of_runs(target: str) -> None:
    """A run that continues as new hands its headers to the next, as its interceptor says."""
    log = Carrying()
    with (
        Client.connect(target, interceptors=[log]) as client,
        Worker(client, "who-round", workflows=EVERYTHING, activities=[works, waits]),
    ):
        caller.set("hal")
        handle = client.start_workflow(goes_round, 2, task_queue="who-round")
        assert handle.result(timeout=20) == "0 for hal"
    assert log.seen == ["workflow goes_round by hal"] * 3 + ["activity works by hal"]
