"""Replay: execute recorded histories against the current code, to find incompatible changes before a worker runs into them.

Core checks that the code issues the same commands in the same order. Hourglass also compares arguments and
results, and names the file and line where the code differs from the history.

    _comparison        one issued command compared with one recorded command
    _foreign_markers   markers of SDKs not built on Core, and Core's own, as data; workflow tasks with their markers
    _foreign_matching  pairs the commands of one workflow task with the events of a history of another SDK
    _foreign_walk      replays a history of another SDK task by task, without Core, in that SDK's order
    _history           `History`: a recorded history in Temporal's JSON form
    _issued            the commands of a run that Core replayed, in the terms of its history
    _moments           a run's history step by step, with the state of its code at each step
    _replayer          `Replayer`: replays histories against the current code
    _session           a thread with Core's replay worker
    _trace             the commands and markers of a run that Core replayed, compared with its history task by task
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
