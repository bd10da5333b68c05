"""How a process that used Core ends, forks, and what it loads: each in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hourglass.testing._dev_server import DevServer

TESTS = Path(__file__).parent.parent


def run(program: str, *arguments: str) -> str:
    """Run a program with our tests on its path; it must end by itself, without a crash."""
    prelude = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    # A worker that nobody shut down loses its channel, or its polls, when it is dropped: a thread of Core's says so, and ends.
    harmless = ("Activation processor channel not dropped", "JoinError::Cancelled")
    errors = "" if any(each in ended.stderr for each in harmless) else ended.stderr
    for crash in ("panicked", "Fatal Python error", "Segmentation"):
        assert crash not in errors, ended.stderr
    return ended.stdout.strip()


LOOP = """
import asyncio, threading
from temporal import live
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
def do(work):
    return asyncio.run_coroutine_threadsafe(work, loop).result(30)
"""

EXIT = (
    LOOP
    + """
from hourglass._bridge.handle import HandleConfig
async def begin():
    queue = live.unique("q")
    connection = await live.connect(sys.argv[1])
    loops = live.Loops(await connection.open_handle(HandleConfig(task_queue=queue)), live.one_activity)
    await connection.call(live.start(queue, queue))
    await live.outcome(connection, queue)
    return connection, loops
kept = do(begin())
print("leaving")
"""
)

FORK = (
    LOOP
    + """
import os
from hourglass._bridge import service as sv
from hourglass._bridge.handle import HandleConfig, HandleBroken
from hourglass.errors import ConnectionFailedError
async def begin():
    connection = await live.connect(sys.argv[1])
    return connection, await connection.open_handle(HandleConfig(task_queue=live.unique("q")))
connection, handle = do(begin())
child = os.fork()
if child == 0:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    try:
        do(connection.call(sv.CountWorkflows()))
    except ConnectionFailedError:
        print("inherited connection refused", flush=True)
    try:
        handle.heartbeat(b"t", ())
    except HandleBroken:
        print("inherited handle refused", flush=True)
    async def anew():
        async with live.connected(sys.argv[1]) as fresh:
            await fresh.call(sv.CountWorkflows())
    do(anew())
    print("new connection works", flush=True)
    sys.exit(0)
print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
do(connection.call(sv.CountWorkflows()))
print("parent works")
"""
)


@pytest.mark.server
def test_leaving_with_everything_open(server: DevServer) -> None:
    """A process that ends with a polling worker, an open connection and a runtime ends at once and without a crash."""
    for _ in range(3):
        assert run(EXIT, server.target) == "leaving"


@pytest.mark.server
def test_fork(server: DevServer) -> None:
    """A forked child cannot use what it inherited, makes its own, and ends cleanly; its parent goes on."""
    assert run(FORK, server.target).splitlines() == [
        "inherited connection refused",
        "inherited handle refused",
        "new connection works",
        "child ended with 0",
        "parent works",
    ]


def test_what_is_loaded() -> None:
    """Importing the package loads the guard alone; connecting loads neither temporalio's client nor its worker."""
    program = """
import hourglass._temporal
assert not any(name.startswith("temporalio") for name in sys.modules)
import hourglass._temporal.connection, hourglass._temporal.replayer
for name in ("temporalio.client", "temporalio.worker", "temporalio.workflow", "temporalio.bridge.worker"):
    assert name not in sys.modules, name
"""
    assert run(program) == ""
