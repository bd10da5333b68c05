"""Programs that fork, use several loops, or exit with everything open: `python -m tests.chaos.exit_program CASE TARGET`.

Each exits with status 0 and prints "done" if it succeeds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable

from hourglass import AsyncClient, Client, Worker
from hourglass.worker._worker import _applications

from . import testbed, work


def _start(target: str) -> tuple[Client, Worker, str]:
    client = Client.connect(target)
    queue = testbed.name("exit")
    worker = Worker(client, queue, workflows=work.WORKFLOWS, activities=work.ACTIVITIES).start()
    return client, worker, queue


def _one(client: Client, queue: str) -> None:
    handle = client.start_workflow(work.chain, 1, id=testbed.name("run"), task_queue=queue)
    assert handle.result(timeout=30) == 6


def open_at_exit(target: str) -> None:
    """The main thread ends while the worker runs and workflows are open."""
    client, _, queue = _start(target)
    for number in range(20):
        client.start_workflow(work.idle, number, id=testbed.name("open"), task_queue=queue)
        client.start_workflow(work.chain, number, id=testbed.name("open"), task_queue=queue)
    _one(client, queue)
    print("done", flush=True)


def open_at_sys_exit(target: str) -> None:
    """Like `open_at_exit`, by `sys.exit`, with a thread that waits for a result."""
    client, _, queue = _start(target)
    waited = client.start_workflow(work.idle, 1, id=testbed.name("open"), task_queue=queue)
    threading.Thread(target=waited.result, daemon=True).start()
    _one(client, queue)
    print("done", flush=True)
    sys.exit(0)


def in_activity_at_exit(target: str) -> None:
    """An activity of a minute is running at the end."""
    client, _, queue = _start(target)
    client.start_workflow(work.finishing, 60.0, id=testbed.name("open"), task_queue=queue)
    deadline = time.monotonic() + 20
    while not any(app.executors.children() for app in _applications.values()):
        assert time.monotonic() < deadline, "no attempt has begun"
        time.sleep(0.05)
    print("done", flush=True)


def fork_after_connect(target: str) -> None:
    """Fork a process with a worker: one child connects again, one exits; the parent's worker continues."""
    client, worker, queue = _start(target)
    _one(client, queue)
    for case in (_child_connects, _child_ends):
        child = os.fork()
        if child == 0:
            case(target)
            return  # ordinary exit of the interpreter
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, f"a child ended with {status}"
    _one(client, queue)
    worker.shutdown()
    client.close()
    print("done", flush=True)


def _child_connects(target: str) -> None:
    client, worker, queue = _start(target)
    _one(client, queue)
    worker.shutdown()
    client.close()


def _child_ends(target: str) -> None:
    pass


def activity_forks(target: str) -> None:
    """An activity forks and its copy returns; the copy ends by itself, and the worker continues."""
    client, worker, queue = _start(target)
    handle = client.start_workflow(work.forking, id=testbed.name("fork"), task_queue=queue)
    assert handle.result(timeout=30) == 0, "the copy did not end as it should"
    _one(client, queue)
    worker.shutdown()
    client.close()
    print("done", flush=True)


def two_loops(target: str) -> None:
    """Two event loops in two threads, each with a client and a worker, and one client used by both."""
    shared = asyncio.run(AsyncClient.connect(target))
    failures: list[BaseException] = []

    def thread() -> None:
        try:
            asyncio.run(_loop(target, shared))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=thread) for _ in range(2)]
    for runner in threads:
        runner.start()
    for runner in threads:
        runner.join(60)
    if failures:
        raise failures[0]
    print("done", flush=True)


async def _loop(target: str, shared: AsyncClient) -> None:
    own = await AsyncClient.connect(target)
    queue = testbed.name("loop")
    async with Worker(own, queue, workflows=work.WORKFLOWS, activities=work.ACTIVITIES):
        via = own if target == "local:" else shared
        handles = [
            await via.start_workflow(work.chain, number, id=testbed.name("run"), task_queue=queue)
            for number in range(5)
        ]
        values = await asyncio.gather(*[handle.result(timeout=30) for handle in handles])
    assert values == [number + 5 for number in range(5)], values
    await own.close()


CASES: dict[str, Callable[[str], None]] = {
    case.__name__: case
    for case in (
        open_at_exit,
        open_at_sys_exit,
        in_activity_at_exit,
        fork_after_connect,
        activity_forks,
        two_loops,
    )
}

if __name__ == "__main__":
    CASES[sys.argv[1]](sys.argv[2])
