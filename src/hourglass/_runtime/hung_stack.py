"""Where a thread stands that does not come back: the author's frames, as text, and whether a debugger holds it there.

Looks at other threads from the control loop, once something is wrong; nothing here is called while all is well.
"""

from __future__ import annotations

import sys
import threading
from traceback import StackSummary, walk_stack
from types import FrameType
from typing import Any

from hourglass._runtime import debugging
from hourglass._runtime.hung_frames import MOST_FRAMES, HungStack, told

__all__ = ["HungStack", "frame_of", "is_debugged", "take_stack"]

_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd", "debugpy")


def frame_of(thread_id: int | None) -> FrameType | None:
    """The frame that a thread executes now, None if there is no such thread."""
    return sys._current_frames().get(thread_id) if thread_id is not None else None


def take_stack(frame: FrameType | None) -> HungStack:
    """The author's frames of a stack; where there are none, the innermost one whosever it is."""
    if frame is None:
        return HungStack()
    # Positions first, source lines later: the thread may be running on while it is looked at.
    return told(StackSummary.extract(walk_stack(frame), limit=MOST_FRAMES * 4, lookup_lines=False))


def is_debugged(thread_id: int, frame: FrameType | None) -> bool:
    """Whether somebody looks at a thread with a debugger: at a breakpoint, or stepping through its code."""
    if debugging.is_debugging(thread_id) or _is_debugger(threading.gettrace()):
        return True
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    each = frame
    while each is not None:
        if _is_debugger(each.f_trace) or _names_debugger(each.f_globals.get("__name__", "")):
            return True
        each = each.f_back
    return False


def _is_debugger(tracer: object) -> bool:
    # Coverage traces, too, and nobody looks at anything there.
    if tracer is None:
        return False
    return _names_debugger(getattr(tracer, "__module__", "")) or _names_debugger(type(tracer).__module__)


def _names_debugger(module: object) -> bool:
    return isinstance(module, str) and module.startswith(_DEBUGGERS)
