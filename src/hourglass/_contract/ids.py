"""Ids for whatever is new, such as runs and requests: UUIDs of version 7, as Temporal's server gives them, too.

They begin with the time, to the millisecond, so those of one moment stand side by side in an index: what starts together
is written into the same pages of a file, however much is in it. The rest is random. To ask the system for randomness hands the
interpreter over to another thread, so it is asked for many ids at once. Invariants: an id is given once, whichever thread
asks; a forked child shares none with its parent.
"""

from __future__ import annotations

import os
import time

from hourglass._forks import ForkStage, at_fork

_AT_ONCE = 256
_DIGITS = 20
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
_drawn: list[str] = []


def new_id() -> str:
    """A new id, as text."""
    try:
        drawn = _drawn.pop()
    except IndexError:
        data = os.urandom(_AT_ONCE * _DIGITS // 2).hex()
        parts = [data[begin : begin + _DIGITS] for begin in range(0, len(data), _DIGITS)]
        drawn, *others = [f"7{each[:3]}-{_VARIANT[each[3]]}{each[4:7]}-{each[7:19]}" for each in parts]
        _drawn.extend(others)
    now = f"{time.time_ns() // 1_000_000:012x}"
    return f"{now[:8]}-{now[8:]}-{drawn}"


at_fork(ForkStage.IDS, in_child=_drawn.clear)
