"""The event that signal handlers set."""

from __future__ import annotations

import subprocess
import sys
import threading

from hourglass._worker.stop_event import StopEvent

INTERRUPTED = """
import signal
from hourglass._worker.stop_event import StopEvent

event = StopEvent()
signal.signal(signal.SIGALRM, lambda *_: event.set())
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
received = 0
while received < 2000:
    received += event.wait(0.00005)
    event.clear()
signal.setitimer(signal.ITIMER_REAL, 0)
print("all received")
"""


def test_signal_handler_can_set_the_stop_event_while_it_is_awaited() -> None:
    """An event of `threading` would deadlock when the handler interrupts a thread that holds its lock."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "all received\n", done.stderr


def test_stop_event_wakes_all_waiters_and_can_be_cleared() -> None:
    event = StopEvent()
    assert not event.wait(0)
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(event.wait(60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join()
    assert woken == [True] * 3
    assert event.wait()
    event.clear()
    assert not event.is_set()
    assert not event.wait(0)
