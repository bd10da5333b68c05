"""How a process that used Core ends, forks, and what it loads: each in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hourglass._temporal import core
from hourglass.testing import DevServer

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
def test_only_harmless_panics_are_filtered(harmless: bytes) -> None:
    """What stands around them stays, and so does every other panic."""
    around = b"before\n" + harmless + REAL_PANIC + NOTE + b"after\n"
    assert core.without_harmless_panics(around) == b"before\n" + REAL_PANIC + NOTE + b"after\n"
    assert core.without_harmless_panics(harmless) == b""


def test_panic_while_workers_are_dropped_at_exit_is_not_printed() -> None:
    """Core writes to the descriptor itself; other words that are said meanwhile arrive."""
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
def test_exit_with_everything_open(server: DevServer) -> None:
    """A process that ends with a polling worker, an open connection and a runtime ends at once and without a crash."""
    for _ in range(3):
        assert run(EXIT, server.target) == "leaving"


@pytest.mark.server
def test_forked_child_creates_its_own_runtime(server: DevServer) -> None:
    """A forked child cannot use what it inherited, makes its own, and ends cleanly; its parent goes on."""
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
    """The exit waits for a thread of Core that is inside `call_soon_threadsafe`."""
    assert run(THREAD_OF_CORE_IN_PYTHON).splitlines() == ["refused", "child ended with 0"]


@pytest.mark.parametrize("loop", ["running", "stopped"])
def test_forked_child_exits_with_a_call_in_flight(loop: str) -> None:
    """A call that would end while the interpreter is finalised is cancelled first, even if its loop has stopped."""
    assert run(CALL_IN_FLIGHT, loop) == "child ended with 0"


@pytest.mark.server
def test_forked_child_exits_with_a_polling_worker(server: DevServer) -> None:
    """A forked child that ends with a polling worker, an open connection and a runtime ends without a crash."""
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
def test_worker_in_a_forked_child_warns_of_the_inherited_runtime(connects_first: bool) -> None:
    """Core's locks can crash such a process. One that was forked before the first connection is sound."""
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


def test_runtime_created_after_a_fork_is_leaked_at_exit() -> None:
    """To end it would wait for a wake-up that Core's locks, inherited with threads that are not there, may lose. Where nothing
    was forked it is dropped, if this release of Core can.
    """
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


def test_imports_load_as_little_as_possible() -> None:
    """Importing the package loads the guard alone; connecting loads neither temporalio's client nor its worker."""
    program = """
import hourglass._temporal
assert not any(name.startswith("temporalio") for name in sys.modules)
import hourglass._temporal.connection, hourglass._temporal.handle
for name in ("temporalio.client", "temporalio.worker", "temporalio.workflow", "temporalio.bridge.worker"):
    assert name not in sys.modules, name
"""
    assert run(program) == ""
