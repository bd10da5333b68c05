"""Exit, fork and imports of a process that uses Core, each in its own interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hourglass._temporal import core
from hourglass.testing import DevServer

TESTS = Path(__file__).parent.parent


def run(program: str, *arguments: str) -> str:
    """Run a program that can import our tests; it must exit normally."""
    prelude = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    for crash in ("panicked", "Fatal Python error", "Segmentation"):
        assert crash not in ended.stderr, ended.stderr
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
from hourglass._contract.handle import HandleConfig
async def begin():
    queue = live.unique("q")
    connection = await live.connect(sys.argv[1])
    loops = live.HandleWorker(await connection.open_handle(HandleConfig(task_queue=queue)), live.one_activity)
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
from hourglass._contract import workflows as sv
from hourglass._contract.handle import HandleConfig, HandleBroken
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


PANIC = b"""
thread 'workflow-processing' (1156) panicked at sdk-core/crates/sdk-core/src/worker/workflow/mod.rs:265:42:
Activation processor channel not dropped: SendError { .. }
"""
OTHER_PANIC = b"""
thread 'tokio-rt-worker' panicked at sdk-core/crates/sdk-core/src/pollers/poll_buffer.rs:452:41:
called `Result::unwrap()` on an `Err` value: JoinError::Cancelled(Id(55))
"""
NOTE = b"note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"
TRACE = b"""stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/lib.rs:1:2
   1: core::panicking::panic_fmt
"""
REAL_PANIC = b"""
thread 'tokio-rt-worker' (7) panicked at sdk-core/src/lib.rs:1:1:
index out of bounds: the len is 0 but the index is 0
"""


@pytest.mark.parametrize("harmless", [PANIC, OTHER_PANIC + NOTE, PANIC + TRACE + NOTE, PANIC + OTHER_PANIC])
def test_only_harmless_rust_panics_are_removed_from_stderr(harmless: bytes) -> None:
    around = b"before\n" + harmless + REAL_PANIC + NOTE + b"after\n"
    assert core.without_harmless_panics(around) == b"before\n" + REAL_PANIC + NOTE + b"after\n"
    assert core.without_harmless_panics(harmless) == b""


def test_harmless_panic_at_exit_is_not_printed_but_other_output_is() -> None:
    program = f"""
import os
from hourglass._temporal import core
class Worker:
    def initiate_shutdown(self): os.write(2, {PANIC + NOTE!r})
    def __del__(self): os.write(2, b"an honest word\\n")
kept = core.Ref(0, Worker())
print("leaving")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("leaving\n", "an honest word\n")


@pytest.mark.server
def test_process_exits_cleanly_with_a_polling_worker_and_an_open_connection(server: DevServer) -> None:
    for _ in range(3):
        assert run(EXIT, server.target) == "leaving"


@pytest.mark.server
def test_forked_child_rejects_inherited_connections_and_opens_its_own(server: DevServer) -> None:
    assert run(FORK, server.target).splitlines() == [
        "inherited connection refused",
        "inherited handle refused",
        "new connection works",
        "child ended with 0",
        "parent works",
    ]


FORKED = """
import asyncio, os, socket, threading, time
from hourglass._temporal import core
from hourglass._temporal.connection import connect
from hourglass.errors import ConnectionFailedError

class SlowFinaliser:
    # Other threads get their turn while the interpreter is finalised.
    def __del__(self, sleep=time.sleep):
        sleep(1.0)

def connecting(port):
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop, asyncio.run_coroutine_threadsafe(connect(f"127.0.0.1:{port}", timeout=50.0), loop)

def leave(child):
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

core.runtime()
"""

THREAD_OF_CORE_IN_PYTHON = (
    FORKED
    + """
child = os.fork()
if child:
    leave(child)
else:
    original = asyncio.BaseEventLoop.call_soon_threadsafe
    def call_soon_threadsafe(self, *arguments, **options):
        handle = original(self, *arguments, **options)
        if threading.get_ident() not in threading._active:
            time.sleep(0.3)
        return handle
    asyncio.BaseEventLoop.call_soon_threadsafe = call_soon_threadsafe
    try:
        connecting(1)[1].result(30)
    except ConnectionFailedError:
        print("refused", flush=True)
    sys.slow_finaliser = SlowFinaliser()
    sys.exit(0)
"""
)

CALL_IN_FLIGHT = (
    FORKED
    + """
peer = socket.create_server(("127.0.0.1", 0))
accepting, accepts = os.pipe()
leaving, leaves = os.pipe()
child = os.fork()
if child:
    accepted, _ = peer.accept()
    os.write(accepts, b"x")
    os.read(leaving, 1)
    time.sleep(0.3)  # meanwhile the child's finalisation begins
    accepted.close()
    peer.close()
    leave(child)
else:
    loop, call = connecting(peer.getsockname()[1])
    peer.close()
    os.read(accepting, 1)
    if sys.argv[1] == "stopped":
        loop.call_soon_threadsafe(loop.stop)
        while loop.is_running():
            time.sleep(0.01)
        loop.close()
    sys.slow_finaliser = SlowFinaliser()
    os.write(leaves, b"x")
    sys.exit(0)
"""
)


def test_forked_child_exits_while_a_core_thread_is_inside_python() -> None:
    assert run(THREAD_OF_CORE_IN_PYTHON).splitlines() == ["refused", "child ended with 0"]


@pytest.mark.parametrize("loop", ["running", "stopped"])
def test_forked_child_exits_with_a_connect_in_flight(loop: str) -> None:
    assert run(CALL_IN_FLIGHT, loop) == "child ended with 0"


@pytest.mark.server
def test_forked_child_exits_with_a_polling_worker(server: DevServer) -> None:
    program = """
import os
from hourglass._temporal import core
core.runtime()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(program + EXIT, server.target) == "leaving"


@pytest.mark.parametrize("connects_first", [True, False])
def test_worker_in_a_forked_child_warns_if_the_runtime_was_inherited(connects_first: bool) -> None:
    """The inherited locks of Core can crash the process. A process forked before the first connection has none."""
    program = """
import logging, os
from hourglass._temporal import core
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s")
if sys.argv[1] == "True":
    core.runtime()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    core.new_worker(None, None)
except TypeError:
    print("no settings")
"""
    lines = run(program, str(connects_first)).splitlines()
    assert lines == [*(["WARNING hourglass.core"] if connects_first else []), "no settings"]


def test_core_runtime_is_not_dropped_at_exit_after_a_fork() -> None:
    """Dropping it could wait forever for threads that do not exist after the fork."""
    program = """
import os
from hourglass._temporal import core
core.runtime()
child = os.fork()
runtime = core.runtime().get()
before = sys.getrefcount(runtime)
core.drop_all()
os.write(1, f"{before - sys.getrefcount(runtime)} ".encode())  # in one piece: two processes write
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
else:
    sys.exit(0)
"""
    assert sorted(run(program).split()) == ["0", str(int(core._DROPS_RUNTIME))]


def test_importing_the_package_does_not_import_temporalio() -> None:
    program = """
import hourglass._temporal
assert not any(name.startswith("temporalio") for name in sys.modules)
import hourglass._temporal.connection, hourglass._temporal.handle
for name in ("temporalio.client", "temporalio.worker", "temporalio.workflow", "temporalio.bridge.worker"):
    assert name not in sys.modules, name
"""
    assert run(program) == ""
