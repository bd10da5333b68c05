"""A process of its own: `python -m tests.embedded.multiprocess.program ROLE PATH [ARGUMENT …]`.

Prints lines, and answers each line of its input with one.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hourglass import Client, Worker
from hourglass._contract.handle import HandleConfig
from hourglass._embedded.multiprocess.connection import connect_file
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass.client import WorkflowHandle
from hourglass.errors import HourglassError

from . import work


def say(text: str) -> None:
    print(text, flush=True)


def connect(path: str) -> Client:
    return Client.connect(f"local:{path}")


def serve(client: Client, queue: str = "default", *more: object) -> Worker:
    workflows = [*work.WORKFLOWS, *more]
    return Worker(client, queue, workflows=workflows, activities=work.ACTIVITIES, deadlock_timeout=None)


def worker(path: str, *queues: str) -> None:
    """Run a worker that reports on request, and ends on request."""
    first, *others = queues or ("default",)
    newer = [work.newcomer] if "newer" in others else []
    with connect(path) as client:
        try:
            running = serve(client, first, *newer).start()
        except Exception as error:
            say(f"refused: {type(error).__name__}: {error}")
            return
        for queue in others:
            running.start_worker(queue)
        say("ready")
        for line in sys.stdin:
            match line.split():
                case ["standing"]:
                    say(running._report()["engine"])
                case ["ready"]:
                    report = running._report()
                    say(" ".join([str(report["ready"]), *report["reasons"]]))
                case ["processes"]:
                    say(" ".join(str(process.process_id) for process in running.tree.processes()))
                case ["tree"]:
                    say(" / ".join(line for line in running.tree.render().splitlines() if "process" in line))
                case ["stop"]:
                    running.shutdown()
                    say("stopped")
                case ["threads"]:
                    say(" ".join(sorted(thread.name for thread in threading.enumerate())))
                case ["fork"]:
                    _fork(client)
                case ["fork_below"]:
                    _fork_below_python()
                case ["leave"]:
                    say("leaving")
                    return


def _fork_below_python() -> None:
    """Fork a child in C, without Python's fork handlers. It lives until it is killed."""
    library = ctypes.CDLL(None)
    child = library.fork()
    if child == 0:
        while True:
            library.pause()
    say(str(child))


def _fork(client: Client) -> None:
    """Fork a child that works as a client, then lives until it is killed."""
    child = os.fork()
    if child == 0:
        try:
            result = client.execute_workflow(work.twice, 40, id=f"of {os.getpid()}")
            say(f"child {os.getpid()} {result}")
            for line in sys.stdin:
                if line.strip() == "again":
                    again = client.execute_workflow(work.twice, 60, id=f"again of {os.getpid()}")
                    say(f"again {again}")
                if line.strip() == "own":
                    try:
                        serve(client).start()
                    except Exception as error:
                        say(f"refused: {type(error).__name__}: {error}")
        finally:
            os._exit(0)


def web(path: str, children: str, count: str) -> None:
    """Run a server that connects, then forks; its children start workflows and wait for them."""
    client = connect(path)
    say(f"parent {client.execute_workflow(work.twice, 1, id='of the parent')}")
    pids = []
    for child in range(int(children)):
        pid = os.fork()
        if pid == 0:
            _ask(client, child, int(count))
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    say(f"codes {codes}")
    client.close()


def _ask(client: Client, child: int, count: int) -> None:
    code = 1
    try:
        for number in range(count):
            result = client.execute_workflow(work.twice, number, id=f"{child}-{number}")
            if result != number + 2:
                raise AssertionError(result)
        code = 0
    finally:
        os._exit(code)


def leave(path: str) -> None:
    """End with a running worker, open runs and a pending wait."""
    client = connect(path)
    serve(client).start()
    handle = client.start_workflow(work.Tally.run, id="open")
    threading.Thread(target=_wait, args=(handle,), daemon=True).start()
    assert client.execute_workflow(work.twice, 1, id="done") == 3
    say("done")


def _wait(handle: WorkflowHandle[Any]) -> None:
    with suppress(HourglassError):  # it ends with the process
        handle.result()


def leave_waiting(path: str) -> None:
    """End as a client that waits, without any worker."""
    client = connect(path)
    handle = client.start_workflow(work.Tally.run, id="open")
    threading.Thread(target=_wait, args=(handle,), daemon=True).start()
    say("done")


def race(path: str) -> None:
    """For each line: own the file of that name if it is free, print the result, and release it at the next line."""
    asyncio.run(_race(path))


async def _race(path: str) -> None:
    say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        link = await connect_file(f"{path}-{line.strip()}")
        await link.open_handle(HandleConfig(task_queue="q"))
        say(link.status().role.split()[0])
        await asyncio.to_thread(sys.stdin.readline)
        await link.close()
        say("closed")


def lock(path: str) -> None:
    """Hold the file's lock as a client does in a short transaction, until the input ends."""
    held = FileLock(path)
    assert held.try_take()
    say("held")
    for line in sys.stdin:
        match line.split():
            case ["copy"]:
                Path(held.lock_path).read_bytes()
                say("copied")
            case ["confirm"]:
                say(str(held.still_held()))


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role for role in (worker, web, leave, leave_waiting, race, lock)
}

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    ROLES[sys.argv[1]](*sys.argv[2:])
