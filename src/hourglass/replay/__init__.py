"""Replay: execute recorded histories again on today's code, and learn what would break before any run does.

Core checks that the code asks for the same things in the same order. On top of that Hourglass compares arguments and
results, and names the file and line where the code went another way.

    _comparison        what a replay asked for against what the history says
    _foreign_markers   the markers of SDKs that are not built on Core, and Core's own, as data; tasks with them
    _foreign_matching  what a run asked for in one workflow task, against what its history says that it asked for
                       there
    _foreign_walk      replays a history of another SDK, task by task, without Core, in the order that SDK had
    _history           a recorded history, in Temporal's JSON form
    _moments           a run's history, step by step, with what its code knew at each
    _replayer          `Replayer`: histories against today's code
    _session           one thread with Core's replay worker
    _trace             what a run asked for while Core replayed it, task by task, against what its history says that
                       it asked for there
"""

from __future__ import annotations

from hourglass.replay._history import History
from hourglass.replay._moments import Fiber, Frame, Issued, Moment, ValueChange, changes
from hourglass.replay._replayer import Replayer, ReplayResult

__all__ = [
    "Fiber",
    "Frame",
    "History",
    "Issued",
    "Moment",
    "ReplayResult",
    "Replayer",
    "ValueChange",
    "changes",
]
