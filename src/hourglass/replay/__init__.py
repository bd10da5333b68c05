"""Replay: execute recorded histories again on today's code, and learn what would break before any run does.

    history = History.from_file("order-1.json")
    Replayer(workflows=[checkout]).replay(history)      # raises NondeterminismError

Core checks that the code asks for the same things in the same order. On top of that Hourglass compares arguments and
results, and names the file and line where the code went another way.
"""

from __future__ import annotations

from hourglass.replay._history import History
from hourglass.replay._replayer import Replayer, ReplayResult

__all__ = ["History", "ReplayResult", "Replayer"]
