"""Two deaths in a row: the process that was about to restart another dies first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hourglass import Client, Worker
from hourglass._contract.handle import Handle, HandleConfig
from hourglass._supervision import Process, SupervisionError

from . import fault_injection, testbed
from .waiting import results, until

_LAUNCHER = "Application/Subsystem/WorkerLauncher"
_HOLDER = "Application/Subsystem/BridgeHolder"


def test_queue_worker_killed_while_starting_is_restarted_by_next_launcher() -> None:
    with Client.connect("local:") as client, testbed.working(client, testbed.name("lost")) as worker:
        static = frozenset(worker.tree.paths())
        worker._portal.call(_kill_launcher_then_worker(worker))
        until("the tree is whole", lambda: fault_injection.whole(worker, static), 20, worker)
        assert testbed.right(results(testbed.start_chains(client, worker.task_queue, 3), 20, worker)) == 3


async def _kill_launcher_then_worker(worker: Worker) -> None:
    tree = worker._app.require_tree()
    worker._app.tables.distrust()  # else it would have its handle back at once
    with _block_handle_creation(worker):
        tree.kill(_HOLDER)
        starting = await _wait_for_process(
            worker, f"{fault_injection.WORKERS}/{worker.task_queue}", started=False
        )
        launcher = await _wait_for_process(worker, _LAUNCHER, started=True)
        launcher.kill()
        await _wait_for_process(worker, _LAUNCHER, started=True)
        for _ in range(20):  # the new launcher looks, and finds somebody about to start
            await asyncio.sleep(0)
        starting.kill()
        assert not starting.was_started


@contextmanager
def _block_handle_creation(worker: Worker) -> Iterator[None]:
    """Let no handle open meanwhile, so that a starting queue worker does not get ready."""
    connection: Any = worker._app.raw
    opens, over = connection.open_handle, asyncio.get_running_loop().create_future()

    async def waits(config: HandleConfig) -> Handle:
        await over
        opened: Handle = await opens(config)
        return opened

    connection.open_handle = waits
    try:
        yield
    finally:
        connection.open_handle = opens
        over.set_result(None)


async def _wait_for_process(worker: Worker, path: str, *, started: bool) -> Process:
    async with asyncio.timeout(20):
        while (process := _find_process(worker, path)) is None or process.was_started is not started:  # noqa: ASYNC110 - nobody would set it
            await asyncio.sleep(0)
    return process


def _find_process(worker: Worker, path: str) -> Process | None:
    try:
        return worker._app.require_tree().find(path)
    except SupervisionError:
        return None
