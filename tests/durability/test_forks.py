"""A fork waits until no thread is inside SQLite, and forked children may use SQLite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.embedded.multiprocess.children import ready_worker
from tests.embedded.multiprocess.work import twice

from hourglass import Client
from hourglass._embedded.store import fork_safety

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, signal, sqlite3, sys, threading
from hourglass import Client, Worker, workflow

@workflow.defn
def nothing() -> int:
    return 7

path, forks = sys.argv[1], int(sys.argv[2])
client = Client.connect(f"local:{path}")
worker = Worker(client, workflows=[nothing]).start()
over = threading.Event()

def keep_busy(place):
    number = 0
    while not over.is_set():
        number += 1
        client.execute_workflow(nothing, id=f"{place}-{number}")

threads = [threading.Thread(target=keep_busy, args=(place,)) for place in range(3)]
for thread in threads:
    thread.start()
for number in range(forks):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        connection = sqlite3.connect(f"{path}.{number}")
        connection.execute("CREATE TABLE t (x)")
        connection.close()
        if number % 5 == 0:
            assert client.execute_workflow(nothing, id=f"child-{number}") == 7
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, f"fork {number} hung or failed"
over.set()
for thread in threads:
    thread.join()
worker.shutdown()
client.close()
print("held")
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def output_of(program: str, path: Path, *arguments: str) -> str:
    """Run a program in a process of its own; return its output, or that with its errors if it failed."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, path, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    return done.stdout.strip() if done.returncode == 0 else done.stdout + done.stderr


def test_fork_waits_for_threads_in_protected_sections() -> None:
    inside, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def work() -> None:
        with fork_safety.NO_FORK.lock, fork_safety.NO_FORK.lock:  # it is reentrant
            inside.set()
            leave.wait()
            order.append("left")
        with fork_safety.NO_FORK.lock:
            order.append("entered")

    def fork() -> None:
        fork_safety._before_fork()
        order.append("forked")
        fork_safety._after_fork()

    threads = [threading.Thread(target=work), threading.Thread(target=fork)]
    threads[0].start()
    inside.wait()
    threads[1].start()
    threads[1].join(0.05)  # long enough for a fork that does not wait
    leave.set()
    for thread in threads:
        thread.join()
    assert order.index("left") < order.index("forked")
    assert "entered" in order


def test_forked_children_of_a_busy_owner_can_use_sqlite(tmp_path: Path) -> None:
    assert output_of(PROGRAM, tmp_path / "orders.db", "40") == "held"


SLOW_LOCK_PROGRAM = """
import os, sys, threading
from hourglass._embedded.multiprocess.ownership import FileLock

path, call = sys.argv[1:]
lock, inside = FileLock(path), threading.Event()
really = getattr(os, call)

def slow(*arguments):
    if call == "close":
        inside.set()
        threading.Event().wait(0.2)  # long enough for a fork that does not wait
        return really(*arguments)
    opened = really(*arguments)
    inside.set()
    threading.Event().wait(0.2)
    return opened

if call == "close":
    assert lock.try_take()
    thread = threading.Thread(target=lock.drop)
else:
    thread = threading.Thread(target=lock.try_take)
setattr(os, call, slow)
thread.start()
inside.wait()
(reading, writing), (hearing, saying) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.write(saying, b"x")
    os.read(reading, 1)  # lives on, with all that it inherited
    os._exit(0)
os.read(hearing, 1)
thread.join()
setattr(os, call, really)
lock.drop()
print("free" if FileLock(path).try_take() else "taken")
os.write(writing, b"x")
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("call", ["open", "close"])
def test_forked_child_does_not_keep_the_file_lock(tmp_path: Path, call: str) -> None:
    assert output_of(SLOW_LOCK_PROGRAM, tmp_path / "orders.db", call) == "free"


FORK_IN_C_PROGRAM = """
import ctypes, os, signal, sys
from pathlib import Path
from hourglass import Client, Worker, workflow

@workflow.defn
def answer() -> int:
    return 42

path = sys.argv[1]
with Client.connect(f"local:{path}") as client, Worker(client, workflows=[answer]):
    assert client.execute_workflow(answer, id="first") == 42
    child = ctypes.CDLL(None).fork()  # Python's handlers do not run
    if child == 0:
        while True:
            signal.pause()
    print(child, flush=True)
    signal.pause()
"""

NEXT_OWNER_PROGRAM = """
import sys
from hourglass import Client, Worker, workflow

@workflow.defn
def answer() -> int:
    return 42

with Client.connect(f"local:{sys.argv[1]}") as client:
    handle = client.start_workflow(answer, id="second")
    with Worker(client, workflows=[answer]):
        print(handle.result())
"""


def test_child_forked_in_c_does_not_block_clients_after_owner_kill(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    with ready_worker(path) as owner, ready_worker(path) as second, Client.connect(f"local:{path}") as client:
        assert client.execute_workflow(twice, 1, id="before") == 3
        child = int(owner.ask("fork_below"))
        owner.kill()
        assert client.start_workflow(twice, 2, id="after").result(timeout=60) == 4
        assert second.ask("standing") == "owner"
        os.kill(child, 0)  # the child is alive


def test_child_forked_in_c_does_not_keep_ownership(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    owner = subprocess.Popen(
        [sys.executable, "-c", FORK_IN_C_PROGRAM, path], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        owner.kill()
        owner.wait()
        assert output_of(NEXT_OWNER_PROGRAM, path) == "42"
    finally:
        os.kill(child, signal.SIGKILL)
        owner.stdout.close()


@pytest.mark.parametrize("is_reaped", [True, False])
def test_worker_takes_over_from_killed_parent_of_a_child_forked_in_c(tmp_path: Path, is_reaped: bool) -> None:
    path = tmp_path / "orders.db"
    with ready_worker(path) as owner:
        child = int(owner.ask("fork_below"))
        with ready_worker(path) as second, Client.connect(f"local:{path}") as client:
            assert client.execute_workflow(twice, 1, id="before") == 3
            os.kill(owner.pid, signal.SIGKILL)
            if is_reaped:
                owner.process.wait()
            with Client.connect(f"local:{path}") as later:
                assert later.execute_workflow(twice, 2, id="after", rpc_timeout=20) == 4
            assert second.ask("standing") == "owner"
            os.kill(child, 0)  # the child is alive
