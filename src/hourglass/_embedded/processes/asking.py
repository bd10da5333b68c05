"""Asking a file's engine from this process: by whatever way leads to one, until there is an answer.

Must not know: who wants to own the file, workers. The ways:

    the file is ours                       ask the engine here
    another process owns it                ask that one over its socket; after its death, ask again
    nobody owns it                         take the lock for one transaction, or wait for an owner

Invariants: a request goes on until it is answered, whoever dies meanwhile, under the same key however often it is
sent. That the owner has died is known by the end of its connection, and by a look at the lock every second where
that end does not come.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
import uuid
from dataclasses import dataclass
from typing import Any, TypeVar

from hourglass._contract import service as s
from hourglass._embedded.engine.unserved import UnservedNotice
from hourglass._embedded.processes import meeting
from hourglass._embedded.processes.alone import Alone, Silence
from hourglass._embedded.processes.engine_room import EngineRoom
from hourglass._embedded.processes.interruption import Gone
from hourglass._embedded.processes.ownership import FileLock
from hourglass._embedded.processes.remote import Lost, Remote, connect
from hourglass._embedded.processes.repeats import was_carried_out
from hourglass._embedded.waiting import NoWorkerNotice, TimedBell
from hourglass.errors import ServiceError, StorageError

A = TypeVar("A")

_log = logging.getLogger("hourglass.embedded")

SHORTEST, BUSY, LONGEST = 0.001, 0.01, 0.05
"""Pauses while there is nobody to ask, in seconds: the first, while somebody has the lock, while all wait."""
LOOK = 1.0
_UNREACHED, _UNREACHABLE = 3.0, 60.0
"""For how many seconds an owner that has no socket is waited for in silence, and at all."""
_MISS = 0.003
_AGAIN = 2.0
"""When to look again for the end of a run that had not closed when nobody owned the file."""
_PRECEDENCE = 0.05
"""After an owner's death those who stand by have the first chance at the lock, for so long."""


@dataclass(slots=True)
class _Search:
    """How far the search for an answer has come. `key` names the request, however often it is sent."""

    key: str
    began: float
    pause: float = SHORTEST
    alone_at: float = 0.0
    repeated: bool = False
    looked_at: float = 0.0
    warned: bool = False


class Asking:
    """See the module. `room` is the engine while this process owns the file. Belongs to one event loop."""

    def __init__(self, path: str, namespace: str, bell: TimedBell) -> None:
        self.room: EngineRoom | None = None
        self.remote: Remote | None = None
        self.broken: StorageError | None = None
        """Why the file cannot be used here until a person sees to it, if that is known."""
        self._path = path
        self._namespace = namespace
        self._bell = bell
        self._lock = FileLock(path)  # only ever looked at
        self._alone = Alone(path, namespace)
        self._connecting: asyncio.Task[Remote | None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._name = uuid.uuid4().hex
        self._keys = itertools.count(1)
        self._missed_at = 0.0
        self._lost_at = 0.0
        self._notice = NoWorkerNotice(path)
        self._unserved = UnservedNotice(path, self.call)

    def own(self, room: EngineRoom) -> None:
        """From now on the engine is here."""
        self.room = room
        self._notice.owner_seen()
        if self.remote is not None:
            self.remote.close()
            self.remote = None

    async def close(self) -> None:
        """Let what is under way end, and hang up."""
        tasks = [each for each in (self._connecting, self._watch) if each is not None]
        if self._watch is not None:
            self._watch.cancel()
        await self._unserved.close()
        if tasks:
            await asyncio.wait(tasks)
        await self._alone.close()
        if self.remote is not None:
            self.remote.close()

    async def call(self, request: s.Request[A]) -> A:
        """Ask whichever engine there is, and go on until it has answered."""
        watch = self._unserved.watch(request)
        try:
            room, lost = self.room, False
            if room is not None and room.failed is None:  # as a rule: nothing has to be searched for
                try:
                    return await room.call(request)
                except Gone:
                    lost = True
            return await self._search(request, lost)
        finally:
            if watch is not None:
                watch.cancel()

    async def _search(self, request: s.Request[A], lost: bool) -> A:
        """Go on until there is an answer. `lost` says that the request may be under way already."""
        search = _Search(f"{self._name}-{next(self._keys)}", time.monotonic(), repeated=lost)
        if lost:
            self._lost_at = search.began
        while True:
            try:
                answer = await self._ask_once(request, search)
            except (Gone, Lost):
                self.check_sound()
                search.repeated, search.pause = True, SHORTEST
                self._lost_at = time.monotonic()
                continue
            except ServiceError as error:
                again = search.repeated and error.status == "NOT_FOUND"
                if again and await was_carried_out(request, self.call):
                    return s.Nothing()  # type: ignore[return-value]
                raise
            if not isinstance(answer, Silence):
                return answer
            self.check_sound()
            if answer is Silence.WAIT:
                search.alone_at = time.monotonic() + _AGAIN
                self._notice.look(search.began)
            else:
                self._look_for_owner(search)
            # At random, so that those who want the same lock do not meet again.
            await self._bell.wait(search.pause * random.uniform(0.5, 1.0))
            search.pause = min(2 * search.pause, LONGEST if answer is Silence.WAIT else BUSY)

    def check_sound(self) -> None:
        """Raise what only a person can mend: to go on asking would be in vain."""
        if self.broken is not None:
            raise StorageError(str(self.broken), status=self.broken.status)

    def _look_for_owner(self, search: _Search) -> None:
        """Whether a process that cannot be reached holds the lock, for so long that it is worth a word, or the end."""
        now = time.monotonic()
        if self.room is not None or now < max(search.began + _UNREACHED, search.looked_at + LOOK):
            return
        search.looked_at = now
        place = meeting.socket_path(self._path)
        if self._lock.is_free() or meeting.identity(self._path) is not None:
            self._notice.look(search.began)
            return
        note = self._lock.note()
        what = (
            f"{self._path} is owned by process {note.pid}, but there is no socket {place} to reach it by: the "
            "process is still opening the file, or the socket was deleted and the process does not run (an owner "
            "that runs makes it again within a second). If this lasts, end that process and start it again"
        )
        if now > search.began + _UNREACHABLE:
            raise StorageError(what, status="UNAVAILABLE")
        if not search.warned:
            search.warned = True
            _log.warning("%s", what)

    async def _ask_once(self, request: s.Request[A], search: _Search) -> A | Silence:
        """The answer, or why there is none yet. Raises `Gone` or `Lost` where the request may be under way."""
        room = self.room
        if room is not None:
            if room.failed is None:
                return await room.call(request)
            self._bell.ring()  # whoever keeps it opens it anew
            return Silence.BUSY
        remote = await self.reach()
        if remote is not None:
            self._notice.owner_seen()
            self._watch_owner()
            return await remote.ask(request, search.key)
        now = time.monotonic()
        if now < search.alone_at or now < self._lost_at + _PRECEDENCE:
            return Silence.BUSY
        answer: A | Silence = await self._alone.ask(request)
        return answer

    async def reach(self) -> Remote | None:
        """The connection to the owner; None if nobody owns the file, or it does not listen yet."""
        if self.remote is not None and self.remote.is_open:
            return self.remote
        if self._connecting is None or self._connecting.done():
            if time.monotonic() < self._missed_at + _MISS:
                return None  # many may wait: they do not all knock
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(_read)
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> Remote | None:
        self.remote = await connect(self._path, self._namespace)
        if self.remote is None:
            self._missed_at = time.monotonic()
        return self.remote

    def _watch_owner(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._look_at_owner())

    async def _look_at_owner(self) -> None:
        """A child that an owner forked may keep its connections open after its death: the lock tells."""
        while (remote := self.remote) is not None and remote.is_open and remote.in_flight:
            await asyncio.sleep(LOOK)
            if remote is self.remote and self._lock.is_abandoned():
                remote.close()


def _read(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waited may be gone, and asyncio would complain
