"""Single faults in a running worker, each at a harmful instant, injected on the control loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hourglass import Worker
from hourglass._contract.handle import Shutdown
from hourglass._supervision import SupervisionError
from hourglass._worker.handles.holder import WorkerNotRegistered
from hourglass._worker.handles.life import HandleState

from .waiting import Stuck, describe

WORKERS = "Application/Subsystem/WorkerSupervisor"
_PATIENCE = 2.0


def kill(worker: Worker, path: str) -> bool:
    """Kill the process at a path; return False if there is none."""
    try:
        worker.tree.kill(path)
    except SupervisionError:
        return False
    return True


def whole(worker: Worker, static: frozenset[str]) -> bool:
    """Return whether every permanent process exists and the worker polls."""
    try:
        return static <= frozenset(worker.tree.paths()) and bool(worker._report()["ready"])
    except SupervisionError:
        return False


def at_delivery(worker: Worker, queue: str, loop: str, instant: str, feed: Callable[[], object]) -> bool:
    """Kill a poll loop in the tick in which an item is delivered: when it has `arrived`, or when it is
    `dispatched`. `feed` provides an item. Return False if none was delivered in time."""
    return _met(worker, _at_delivery(worker, queue, loop, instant), feed)


def _met(worker: Worker, strike: Coroutine[Any, Any, bool], feed: Callable[[], object]) -> bool:
    """Wait for the delivery, and only then provide an item."""
    waiting = worker._portal.submit(strike)
    feed()
    try:
        return waiting.result(10 * _PATIENCE)
    except TimeoutError:
        raise Stuck(
            f"the control loop does not answer, or a recycle does not end\n{describe(worker)}"
        ) from None


async def _at_delivery(worker: Worker, queue: str, loop: str, instant: str) -> bool:
    records = [handle for handle in worker._app.tables.of_queue(queue) if handle.state is HandleState.ACTIVE]
    if not records:
        return False  # between two handles nothing is delivered
    record = records[-1]
    line: Any = record.activations if loop == "WorkflowPollLoop" else record.activities
    receiver = line._receiver
    if receiver is None:
        return False  # its loop is on its way back
    struck: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def strike() -> None:
        if not struck.done():
            try:
                worker._app.require_tree().kill(f"{WORKERS}/{queue}/{loop}")
                struck.set_result(True)
            except SupervisionError:
                pass  # it is on its way back; the next delivery then

    def receive(item: Any) -> None:
        if instant == "arrived":
            strike()
        receiver(item)
        strike()

    line._receiver = receive
    try:
        return await asyncio.wait_for(asyncio.shield(struck), _PATIENCE)
    except TimeoutError:
        return False
    finally:
        if line._receiver is receive:
            line._receiver = receiver


def recycle_in_flight(worker: Worker, queue: str, feed: Callable[[], object]) -> bool:
    """Replace the handle of a queue during evaluations; return False if none ran in time."""
    return _met(worker, _recycle(worker, queue), feed)


async def _recycle(worker: Worker, queue: str) -> bool:
    app = worker._app
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while not any(record.runs.open for record in app.tables.of_queue(queue)):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0)
    try:
        await app.holder.recycle(queue, "a fire drill")
    except (SupervisionError, WorkerNotRegistered, Shutdown):
        return False  # somebody else struck first
    return True
