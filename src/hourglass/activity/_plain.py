"""Plain calls in a process that runs a worker: allowed, but a thread pool inside a workflow would charge cards for real.

Workers say here that they live; the number is process-wide because a thread cannot tell whose workflow it
belongs to. The threads that run workflow code say so too: what is called there outside any workflow is a
finaliser's doing.
"""

from __future__ import annotations

import threading
import warnings

from hourglass.errors import UsageError

_lock = threading.Lock()
_living = 0
_thread = threading.local()


class PlainCallWarning(UserWarning):
    """An activity was called plainly, from a thread of its own, in a process that runs a worker."""


def worker_started() -> None:
    """A worker lives in this process from now on."""
    global _living
    with _lock:
        _living += 1


def worker_stopped() -> None:
    """A worker has ended."""
    global _living
    with _lock:
        _living -= 1


def runs_workflows() -> None:
    """This thread runs workflow code from now on."""
    _thread.runs_workflows = True


def check_plain_call(name: str, stacklevel: int) -> None:
    """Warn, once per place, if a worker lives here; refuse in a thread of workflows. `stacklevel` as in
    `warnings.warn`.
    """
    if getattr(_thread, "runs_workflows", False):
        raise UsageError(
            f"activity {name} was called in a thread that runs workflows, but not by a workflow: finalisers (__del__) of "
            f"objects that workflows leave behind must not call activities"
        )
    if _living:
        warnings.warn(
            f"activity {name} is called plainly, not durably: this thread runs neither a workflow nor an activity. "
            f"If a workflow started the thread, call the activity in the workflow itself (`{name}.start` runs several at "
            f"once); if a plain call is meant, call `{name}.fn`",
            PlainCallWarning,
            stacklevel=stacklevel + 1,
        )
