"""Which run each lane is at, noted where another process can read it: a few bytes of shared memory per lane.

A process that stands still can tell nobody what it was doing. So it writes it down before, and its parent reads it after. One
note takes well under a microsecond; it is only taken in a process that has a parent (see `guarded`).

Notes are never torn: only the lane writes its own, and nobody reads before the process stands still.
"""

from __future__ import annotations

import mmap
import struct
import threading
from dataclasses import dataclass

_LAYOUT = struct.Struct("<?QQ64p160p")  # in work, the thread's two numbers, run id, workflow type
_SLOTS = 128
SIZE = _LAYOUT.size * _SLOTS


@dataclass(frozen=True)
class Noted:
    """What a lane was at. `native_id` is the system's number of its thread, `ident` Python's."""

    native_id: int
    ident: int
    run_id: str
    workflow_type: str


class LaneNote:
    """The place for one lane's notes. Belongs to the thread that first writes."""

    __slots__ = ("_ident", "_memory", "_native_id", "_notes", "_offset")

    def __init__(self, notes: LaneNotes, memory: mmap.mmap, offset: int) -> None:
        self._notes = notes
        self._memory = memory
        self._offset = offset
        self._native_id = self._ident = 0

    def take(self, run_id: str, workflow_type: str) -> None:
        """From now on this run's code is executed."""
        if not self._native_id:
            self._native_id, self._ident = threading.get_native_id(), threading.get_ident()
        _LAYOUT.pack_into(
            self._memory,
            self._offset,
            True,
            self._native_id,
            self._ident,
            run_id.encode(),
            workflow_type.encode(),
        )

    def strike(self) -> None:
        """No run's code is executed any more."""
        self._memory[self._offset] = 0

    def renewed(self) -> LaneNote:
        """A place of its own for the thread that comes after this one, which may be stuck and still at it."""
        return self._notes.note()


class LaneNotes:
    """Shared memory for the notes of all lanes of a process. Threads that are left behind are few: the oldest is overwritten."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._lock = threading.Lock()
        self._next = 0

    def note(self) -> LaneNote:
        """A place for one more lane."""
        with self._lock:
            offset = self._next * _LAYOUT.size
            self._next = (self._next + 1) % _SLOTS
        self._memory[offset] = 0
        return LaneNote(self, self._memory, offset)


def read_notes(content: bytes) -> list[Noted]:
    """What lanes were at when their process stood still."""
    found = []
    for offset in range(0, len(content) - _LAYOUT.size + 1, _LAYOUT.size):
        in_work, native_id, ident, run_id, workflow_type = _LAYOUT.unpack_from(content, offset)
        if in_work:
            found.append(
                Noted(
                    native_id,
                    ident,
                    run_id.decode("utf-8", "replace"),
                    workflow_type.decode("utf-8", "replace"),
                )
            )
    return found
