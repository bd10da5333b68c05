"""Which run each lane is at, in which code, noted where another process can read it: a few bytes of shared memory per lane.

A process that stands still or dies cannot say what it was doing. So it writes it down before, and its guardian, or
the process that comes after it, reads it. Memory that is mapped from a file outlasts the process, however it ends,
and costs no system call: a note takes a fraction of a microsecond.

Notes are never torn: only the lane writes its own, marks it valid when it is whole, and readers come only when the
process stands still or is gone.
"""

from __future__ import annotations

import hashlib
import inspect
import mmap
import struct
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from hourglass._evaluator.definition import WorkflowDefinition
from hourglass._forks import ForkStage, at_fork

_HEAD = struct.Struct("<?QQ")  # in work, the thread's two numbers
_BODY = struct.Struct("<64p160p16s64p")  # run id, workflow type, which code it is, a local activity's id
_SLOT = _HEAD.size + _BODY.size
SLOTS = 256
SIZE = _SLOT * SLOTS
_MOST_DIGESTS = 1000


@dataclass(frozen=True)
class Noted:
    """What a lane was at, in which code. `native_id` is the system's number of its thread, `ident` Python's; both are 0 where
    no lane executes the run, but a local activity of it, whose id is `activity`, is.
    """

    native_id: int
    ident: int
    run_id: str
    workflow_type: str
    code: str = ""
    activity: str = ""


def packed(run_id: str, workflow_type: str, code: str = "", activity: str = "") -> bytes:
    """A run as it is noted. It stays the same while the run does."""
    return _BODY.pack(
        run_id.encode()[:63], workflow_type.encode()[:159], code.encode()[:16], activity.encode()[:63]
    )


def digest_of(definition: WorkflowDefinition) -> str:
    """Which code a workflow is, as far as its own file says: the same in every process until that file changes."""
    known = _digests.get(id(definition))
    if known is not None and known[0] is definition:
        return known[1]
    code = getattr(inspect.unwrap(definition.run), "__code__", None)
    try:
        content = Path(code.co_filename).read_bytes() if code is not None else b""
    except (OSError, ValueError):
        content = code.co_code if code is not None else b""
    digest = hashlib.sha256(content).hexdigest()[:16]
    if len(_digests) >= _MOST_DIGESTS:
        _digests.clear()
    _digests[id(definition)] = (definition, digest)
    return digest


_digests: dict[int, tuple[WorkflowDefinition, str]] = {}


class LaneNote:
    """The place for one lane's notes. Belongs to the thread that first writes."""

    __slots__ = ("_begin", "_end", "_is_lane", "_notes", "_offset", "_owner", "_released")

    def __init__(self, notes: LaneNotes, offset: int, *, is_lane: bool) -> None:
        self._notes = notes
        self._offset, self._begin, self._end = offset, offset + _HEAD.size, offset + _SLOT
        self._is_lane = is_lane
        self._owner = self._released = False

    def take(self, run: bytes) -> None:
        """From now on this run's code is executed; one that came without anything to note is not noted."""
        if not run:
            return
        if not self._owner:
            self._sign()
        for memory in self._notes.memories:
            # Invalid while it is written: the process may die between any two of these lines.
            memory[self._offset] = 0
            memory[self._begin : self._end] = run
            memory[self._offset] = 1

    def strike(self) -> None:
        """No run's code is executed any more."""
        for memory in self._notes.memories:
            memory[self._offset] = 0

    def renewed(self) -> LaneNote | None:
        """A place of its own for the thread that comes after this one, which may be stuck and still at it."""
        return self._notes.note()

    def release(self) -> None:
        """The thread is done: another thread may have the place."""
        if not self._released:
            self._released = True  # first: told to stop in the middle, a lane does it again
            self.strike()
            self._notes.free(self._offset)

    def _sign(self) -> None:
        self._owner = True
        thread = (threading.get_native_id(), threading.get_ident()) if self._is_lane else (0, 0)
        for memory in self._notes.memories:
            _HEAD.pack_into(memory, self._offset, False, *thread)


class LaneNotes:
    """Shared memory for the notes of all lanes of a process, in one file or the same in several. Where all places are taken,
    nothing is noted of one more.
    """

    def __init__(self, *descriptors: int) -> None:
        self.memories = tuple(mmap.mmap(each, SIZE) for each in descriptors)
        self._lock = threading.Lock()
        self._free = list(range((SLOTS - 1) * _SLOT, -1, -_SLOT))
        _all.add(self)

    def add(self, descriptor: int) -> mmap.mmap:
        """Note everything in one more file, too."""
        memory = mmap.mmap(descriptor, SIZE)
        with self._lock:
            for each in self.memories[:1]:
                memory[:] = each[:]  # what the lanes are at already
            self.memories = (*self.memories, memory)
        return memory

    def remove(self, memory: mmap.mmap) -> None:
        """Note nothing in a file any more."""
        with self._lock:
            self.memories = tuple(each for each in self.memories if each is not memory)

    def note(self, *, is_lane: bool = True) -> LaneNote | None:
        """A place for one more."""
        with self._lock:
            if not self._free:
                return None
            offset = self._free.pop()
        for memory in self.memories:
            memory[offset] = 0
        return LaneNote(self, offset, is_lane=is_lane)

    def free(self, offset: int) -> None:
        """A place is not used any more."""
        with self._lock:
            self._free.append(offset)


def read_notes(content: bytes) -> list[Noted]:
    """What lanes were at when their process stood still or died."""
    found = []
    for offset in range(0, len(content) - _SLOT + 1, _SLOT):
        in_work, native_id, ident = _HEAD.unpack_from(content, offset)
        if in_work:
            run_id, workflow_type, code, activity = (
                each.rstrip(b"\0").decode("utf-8", "replace")
                for each in _BODY.unpack_from(content, offset + _HEAD.size)
            )
            found.append(Noted(native_id, ident, run_id, workflow_type, code, activity))
    return found


_all: weakref.WeakSet[LaneNotes] = weakref.WeakSet()


def _after_fork() -> None:
    # The memory is the parent's, and what is mapped keeps its file open.
    for notes in list(_all):
        memories, notes.memories = notes.memories, ()
        for memory in memories:
            memory.close()
    _all.clear()


at_fork(ForkStage.LANE_NOTES, in_child=_after_fork)
