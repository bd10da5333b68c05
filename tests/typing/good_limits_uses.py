"""Correct uses of `hourglass.limits` and `hourglass.progress`, with the types that both checkers must find. Read, never run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from hourglass import AsyncClient, Client, WorkflowHandle, limits, workflow
from hourglass.client import AsyncWorkflowHandle
from hourglass.limits import AsyncDebounced, Debounced
from hourglass.progress import AsyncProgressStream, Progress, ProgressStream


@dataclass
class Step:
    done: int


steps = Progress("steps", Step)
plain = Progress("plain")
either: Progress[int | str] = Progress("either", int | str, keep=10)


@workflow.defn
def pay(invoice: str, cents: int) -> float:
    with limits.slot("bank"):
        steps.publish(Step(1))
    with limits.slot("bank", 2, timeout=timedelta(minutes=1), notice=5, task_queue="limits"):
        plain.publish(object())
    limits.throttle("api", 10, per=1)
    limits.throttle("api", 10, per=timedelta(seconds=1), smooth=True, timeout=0)
    return 1.0


@workflow.defn
class Cart:
    @workflow.run
    def run(self, owner: str) -> int:
        return 1


def use_client(client: Client) -> None:
    call = limits.debounce(client, pay, "i-1", 100, key="i-1", wait=5, max_wait=timedelta(hours=1))
    assert_type(call, Debounced[float])
    assert_type(call.started(timeout=5), WorkflowHandle[float])
    assert_type(call.result(), float)
    assert_type(limits.debounce(client, "pay", 1, key="k", wait=1, task_queue="q"), Debounced[Any])
    assert_type(limits.debounce(client, Cart.run, "ann", key="k", wait=1), Debounced[int])
    assert_type(limits.once(client, pay, "i-1", 100, key="i-1"), WorkflowHandle[float])
    assert_type(limits.once(client, "pay", key="i-1", window=5, retry_failed=True), WorkflowHandle[Any])
    assert_type(limits.once(client, Cart.run, "ann", key="k", task_queue="q").result(), int)


async def use_async_client(client: AsyncClient) -> None:
    call = await limits.debounce(client, pay, "i-1", 100, key="i-1", wait=5)
    assert_type(call, AsyncDebounced[float])
    assert_type(await call.started(), AsyncWorkflowHandle[float])
    assert_type(await call.result(), float)
    assert_type(await limits.once(client, pay, "i-1", 100, key="i-1"), AsyncWorkflowHandle[float])


def follow(handle: WorkflowHandle[str]) -> None:
    stream = steps.follow(handle, after="position", timeout=5)
    assert_type(stream, ProgressStream[Step])
    assert_type(stream.position, str)
    assert_type(stream.missed, int)
    for step in stream:
        assert_type(step, Step)
    assert_type(next(plain.follow(handle, last=1)), Any)
    assert_type(steps.latest(handle), Step | None)


async def follow_async(handle: AsyncWorkflowHandle[str]) -> None:
    assert_type(steps.follow(handle), AsyncProgressStream[Step])
    async for step in steps.follow(handle):
        assert_type(step, Step)
    assert_type(await steps.latest(handle), Step | None)
