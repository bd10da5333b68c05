"""Notes of the runs that a process executes, in shared memory, so that another process can read them.

A process that hangs or dies cannot report the run that it was executing. Each lane therefore writes a note beforehand,
into memory that is mapped from a file. The file survives the process, however the process ends, and writing a note
takes no system call.

Invariant: a note is complete or marked as invalid. Only one lane writes a note, and other processes read it only when
the process hangs or has ended.
"""

from __future__ import annotations

import mmap
import struct
import threading
import weakref
from typing import NamedTuple

from hourglass._forks import ForkStage, at_fork

_HEAD = struct.Struct("<?QQ")  # whether the note is valid, and the two ids of the thread
_BODY = struct.Struct("<64p160p16s64p")  # run id, workflow type, digest of the code, activity id
_SLOT = _HEAD.size + _BODY.size
SLOTS = 256
SIZE = _SLOT * SLOTS


class NotedRun(NamedTuple):
    """A run that was executing. `native_id` and `ident` are the ids of its lane's thread: the system's and Python's.

    Both are 0 for a local activity, whose id is `activity_id`. `code` is the digest of the workflow's file.
    """

    native_id: int
    ident: int
    run_id: str
    workflow_type: str
    code: str
    activity_id: str


def packed(run_id: str, workflow_type: str, code: str = "", activity_id: str = "") -> bytes:
    """Return the bytes of a note. They depend only on the run and its code."""
    return _BODY.pack(
        run_id.encode()[:63], workflow_type.encode()[:159], code.encode()[:16], activity_id.encode()[:63]
    )


class LaneNote:
    """A slot for the note of one lane or one local activity. Belongs to the first thread that writes the note."""

    __slots__ = ("_begin", "_end", "_is_lane", "_notes", "_offset", "_released", "_signed")

    def __init__(self, notes: LaneNotes, offset: int, *, is_lane: bool) -> None:
        self._notes = notes
        self._offset, self._begin, self._end = offset, offset + _HEAD.size, offset + _SLOT
        self._is_lane = is_lane
        self._signed = self._released = False
        self.clear()

    def write(self, run: bytes) -> None:
        """Note that the code of a run executes from now on. `run` comes from `packed`; an empty note is ignored."""
        if not run:
            return
        memory = self._notes.memory
        if not self._signed:
            self._signed = True
            ids = (threading.get_native_id(), threading.get_ident()) if self._is_lane else (0, 0)
            _HEAD.pack_into(memory, self._offset, False, *ids)
        # Mark the note as invalid while it is written: the process may die between any two of these lines.
        memory[self._offset] = 0
        memory[self._begin : self._end] = run
        memory[self._offset] = 1

    def clear(self) -> None:
        """Note that no run's code executes."""
        self._notes.memory[self._offset] = 0

    def release(self) -> None:
        """Free the slot. A second call has no effect."""
        if not self._released:
            self._released = True  # first: a lane that is stopped in the middle calls this again
            self.clear()
            self._notes.free(self._offset)


class LaneNotes:
    """The slots of one process, in memory that is mapped from a file of `SIZE` bytes."""

    def __init__(self, descriptor: int) -> None:
        self.memory: mmap.mmap | bytearray = mmap.mmap(descriptor, SIZE)
        self._lock = threading.Lock()
        self._free = list(range((SLOTS - 1) * _SLOT, -1, -_SLOT))
        _all.add(self)

    def note(self, *, is_lane: bool = True) -> LaneNote | None:
        """Return a free slot; None if all slots are in use."""
        with self._lock:
            return LaneNote(self, self._free.pop(), is_lane=is_lane) if self._free else None

    def free(self, offset: int) -> None:
        """Make a slot available again."""
        with self._lock:
            self._free.append(offset)


def read_notes(content: bytes) -> list[NotedRun]:
    """Return the runs that were executing according to the content of a process's file of notes."""
    runs = []
    for offset in range(0, min(len(content), SIZE) - _SLOT + 1, _SLOT):
        is_valid, native_id, ident = _HEAD.unpack_from(content, offset)
        if is_valid:
            fields = _BODY.unpack_from(content, offset + _HEAD.size)
            texts = [field.rstrip(b"\0").decode("utf-8", "replace") for field in fields]
            runs.append(NotedRun(native_id, ident, *texts))
    return runs


_all: weakref.WeakSet[LaneNotes] = weakref.WeakSet()


def _after_fork() -> None:
    """Replace the shared memory with private memory in the child: a lane of the child must not write the parent's
    notes.
    """
    for notes in list(_all):
        inherited, notes.memory = notes.memory, bytearray(SIZE)
        if isinstance(inherited, mmap.mmap):
            inherited.close()  # otherwise it would keep the parent's file open
    _all.clear()


at_fork(ForkStage.LANE_NOTES, in_child=_after_fork)
