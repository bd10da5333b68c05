"""`breakpoint()` in workflow code, for as long as one likes.

An engine waits a few seconds for a workflow task, people think longer. When the answer comes too late the engine sends the
whole run again, and the code would stop at the same place for ever. So a breakpoint that this process has passed before,
on the same events, is passed silently; and while somebody is at one, nobody calls the lane hung.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from hourglass._engine.context import current_run

_lock = threading.Lock()
_installed: Callable[..., Any] | None = None
_stopped_threads: set[int] = set()


def install() -> None:
    """Take part in `breakpoint()`. Whatever hook is there, now, is called where we let it through."""
    global _installed
    with _lock:
        if _installed is None or sys.breakpointhook is not _installed:
            _installed = _hook(sys.breakpointhook)
            sys.breakpointhook = _installed


def is_debugging(thread_id: int) -> bool:
    """Whether somebody is at a breakpoint in the activation that a thread evaluates."""
    return thread_id in _stopped_threads


def left(thread_id: int) -> None:
    """An activation is over: whoever was at a breakpoint in it has gone on."""
    _stopped_threads.discard(thread_id)


def _hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def at_breakpoint(*args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is not None and run.quiet:
            return None
        thread_id = threading.get_ident()
        if run is not None:
            # pdb's set_trace returns at once and traces from then on: the mark stays until the activation is over.
            _stopped_threads.add(thread_id)
        if original is sys.__breakpointhook__ and os.environ.get("PYTHONBREAKPOINT", "") == "":
            # pdb stops in the frame it is given: the author's, not this one.
            import pdb

            pdb.Pdb().set_trace(sys._getframe(1))
            return None
        return original(*args, **kwargs)

    return at_breakpoint
