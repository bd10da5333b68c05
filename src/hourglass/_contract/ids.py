"""New ids of runs, requests and other objects: UUIDs of version 7, as Temporal's server generates them.

An id begins with the time in milliseconds. So ids of the same time are adjacent in an index, and runs that start
together are written to the same pages of a file. The rest is random. Reading random bytes from the operating system
switches threads, so the bytes for many ids are read together. Invariants: no id is returned twice, in any thread. A
forked child shares no ids with its parent.
"""

from __future__ import annotations

import os
from time import time_ns

from hourglass._forks import ForkStage, at_fork

_AT_ONCE = 256
_DIGITS = 20
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
_drawn: list[str] = []


def new_id() -> str:
    """Return a new id."""
    try:
        drawn = _drawn.pop()
    except IndexError:
        data = os.urandom(_AT_ONCE * _DIGITS // 2).hex()
        parts = [data[begin : begin + _DIGITS] for begin in range(0, len(data), _DIGITS)]
        drawn, *spare_ids = [f"7{part[:3]}-{_VARIANT[part[3]]}{part[4:7]}-{part[7:19]}" for part in parts]
        _drawn.extend(spare_ids)
    now = f"{time_ns() // 1_000_000:012x}"
    return f"{now[:8]}-{now[8:]}-{drawn}"


at_fork(ForkStage.IDS, in_child=_drawn.clear)
