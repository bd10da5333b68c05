"""Ids for whatever is new, such as runs and requests: random UUIDs of version 4.

To ask the system for randomness hands the interpreter over to another thread, so it is asked for many ids at once.
Invariants: an id is given once, whichever thread asks; a forked child shares none with its parent.
"""

from __future__ import annotations

import os

from hourglass._forks import ForkStage, at_fork

_AT_ONCE = 256
_drawn: list[bytes] = []


def new_id() -> str:
    """A new id, as text."""
    try:
        drawn = bytearray(_drawn.pop())
    except IndexError:
        data = os.urandom(16 * _AT_ONCE)
        _drawn.extend(data[begin : begin + 16] for begin in range(16, len(data), 16))
        drawn = bytearray(data[:16])
    drawn[6] = drawn[6] & 0x0F | 0x40
    drawn[8] = drawn[8] & 0x3F | 0x80
    text = drawn.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


at_fork(ForkStage.IDS, in_child=_drawn.clear)
