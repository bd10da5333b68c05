"""A thread that ends during a garbage collection leaves no dangling reference to its main greenlet."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import gc, threading
import greenlet
import hourglass._evaluator.fibers

class EndsThread:
    def __init__(self, may_end, thread):
        self.may_end, self.thread = may_end, thread

    def __del__(self):
        self.may_end.set()
        self.thread.join()
        for _ in range(100_000):  # greenlet releases the thread's state from here, between two instructions
            pass

def fail():
    hub = greenlet.getcurrent()
    raise ValueError

def leave_garbage(may_end, ready):
    try:
        fail()
    except ValueError as error:
        cycle = [error, EndsThread(may_end, threading.current_thread())]
        cycle.append(cycle)
    del cycle
    ready.set()
    may_end.wait()

gc.collect()
gc.disable()
may_end, ready = threading.Event(), threading.Event()
thread = threading.Thread(target=leave_garbage, args=(may_end, ready))
thread.start()
ready.wait()
del thread
gc.collect()
print("collected")
"""


def test_traceback_of_an_ended_thread_is_collected_without_a_crash() -> None:
    """Debug hooks of the allocator overwrite freed memory, so that any use of it is a crash."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "collected\n"), ended.stderr
