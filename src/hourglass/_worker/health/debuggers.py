"""Breakpoints and debuggers: a developer may stop workflow code for as long as they like.

An engine waits a few seconds for a workflow task, but a developer needs longer at a breakpoint. When the answer comes
too late, the engine sends the whole run again, and the code would stop at the same place forever. Two rules prevent
this. A breakpoint that this process has already passed on the same events is skipped. A lane that has stopped at a
breakpoint does not count as hung.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from hourglass._evaluator.context import current_run

_MODULES = ("bdb", "pdb", "pydevd", "_pydevd", "debugpy")

_lock = threading.Lock()
_installed: Callable[..., Any] | None = None
stopped_threads: set[int] = set()
"""The threads whose activation has stopped at a breakpoint."""


def install() -> None:
    """Wrap `sys.breakpointhook`. The current hook is still called."""
    global _installed
    with _lock:
        if _installed is None or sys.breakpointhook is not _installed:
            _installed = _wrapped(sys.breakpointhook)
            sys.breakpointhook = _installed


def activation_ended(thread_id: int) -> None:
    """Forget that a thread has stopped at a breakpoint, because the thread's activation has ended."""
    stopped_threads.discard(thread_id)


def is_debugged(thread_id: int, frame: FrameType | None) -> bool:
    """Whether a debugger has stopped a thread at a breakpoint, or steps through its code."""
    if thread_id in stopped_threads or _is_debugger(threading.gettrace()):
        return True
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    while frame is not None:
        if _is_debugger(frame.f_trace) or _is_debugger_module(frame.f_globals.get("__name__", "")):
            return True
        frame = frame.f_back
    return False


def _wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    def at_breakpoint(*args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is not None and run.quiet:
            return None
        if run is not None:
            # pdb's set_trace returns immediately and traces from then on, so the mark stays until the activation has
            # ended.
            stopped_threads.add(threading.get_ident())
        if original is sys.__breakpointhook__ and os.environ.get("PYTHONBREAKPOINT", "") == "":
            # pdb stops in the frame that it receives: the author's, not this one.
            import pdb

            pdb.Pdb().set_trace(sys._getframe(1))
            return None
        return original(*args, **kwargs)

    return at_breakpoint


def _is_debugger(tracer: object) -> bool:
    """Whether a trace function belongs to a debugger. Coverage tools also set trace functions, but never stop the code."""
    if tracer is None:
        return False
    return _is_debugger_module(getattr(tracer, "__module__", "")) or _is_debugger_module(
        type(tracer).__module__
    )


def _is_debugger_module(name: object) -> bool:
    return isinstance(name, str) and name.startswith(_MODULES)
