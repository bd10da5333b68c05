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
heard = 0
while heard < 2000:
    heard += event.wait(0.00005)
    event.clear()
signal.setitimer(signal.ITIMER_REAL, 0)
print("all heard")
"""


def test_signal_handler_may_set_it_at_any_time() -> None:
    """Thousands of signals come while the main thread waits for it, or begins to: none waits for a lock that the thread which
    it interrupts holds, as with an event of `threading`.
    """
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "all heard\n", done.stderr


def test_stop_event_behaves_like_an_event() -> None:
    """All that wait are woken, one that comes later does not wait, and it can be set back."""
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
