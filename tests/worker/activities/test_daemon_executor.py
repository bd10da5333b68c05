"""The default executor of our event loops: it behaves like Python's, but its hung jobs do not keep a process alive."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from hourglass._worker.daemon_executor import DaemonExecutor

pytestmark = pytest.mark.usefixtures("each_event_loop")


def test_daemon_executor_runs_jobs_in_at_most_max_workers_threads():
    executor = DaemonExecutor("some", 3)
    together = threading.Barrier(3)
    try:
        met = [executor.submit(together.wait, 30) for _ in range(3)]
        assert sorted(future.result(30) for future in met) == [0, 1, 2]
        assert list(executor.map(abs, [-1, -2, -3, -4, -5])) == [1, 2, 3, 4, 5]
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda: 1 / 0).result(30)
        assert len([thread for thread in threading.enumerate() if thread.name.startswith("some-")]) == 3
    finally:
        executor.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("some-")]


def test_daemon_executor_shutdown_cancels_pending_jobs_and_rejects_new_ones():
    executor, gate = DaemonExecutor("one", 1), threading.Event()
    running = executor.submit(gate.wait, 30)
    while not running.running():
        time.sleep(0.001)
    waiting = executor.submit(abs, -1)
    assert executor.submit(abs, -2).cancel()
    executor.shutdown(wait=False, cancel_futures=True)
    gate.set()
    assert running.result(30)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, -1)
    executor.shutdown()


async def test_asyncio_to_thread_runs_on_the_daemon_executor():
    asyncio.get_running_loop().set_default_executor(DaemonExecutor("mine"))
    assert (await asyncio.to_thread(lambda: threading.current_thread().name)).startswith("mine-")


def test_hung_job_of_the_daemon_executor_does_not_block_interpreter_exit():
    code = (
        "import threading, time\n"
        "from hourglass._worker.daemon_executor import DaemonExecutor\n"
        "begun = threading.Event()\n"
        "DaemonExecutor('x').submit(lambda: (begun.set(), time.sleep(3600)))\n"
        "assert begun.wait(30)\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
