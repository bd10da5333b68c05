"""A call to a file's engine from this process, by whatever way leads to one, until there is an answer:

    the file is ours                       ask the engine here
    another process owns it                ask that one over its socket; after its death, ask again
    no process owns it                     take the lock for one transaction, or wait for an owner

Must not know: which process wants to own the file, workers.

Invariants: a request goes on until it is answered, whichever process dies meanwhile, under the same key however often
it is sent; engines know a request whose answer was lost by its id, and of the few that have none what there is now
tells whether they were carried out (`was_carried_out`). That the owner has died is known by the end of its
connection, and by a look at the lock every second where that end does not come. A client that waits is warned when no
process owns the file (`NoWorkerNotice`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import uuid
from asyncio import sleep
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar, cast

from hourglass._contract import service as s
from hourglass._embedded.api.answering import EngineClosed
from hourglass._embedded.api.requests import answer
from hourglass._embedded.clock import Bell
from hourglass._embedded.multiprocess import unix_socket
from hourglass._embedded.multiprocess.open_engine import OpenEngine
from hourglass._embedded.multiprocess.ownerless import NoAnswer, OwnerlessTransactions
from hourglass._embedded.multiprocess.ownership import FileLock, LockNote
from hourglass._embedded.multiprocess.remote import ConnectionLost, OwnerConnection, connect
from hourglass._embedded.multiprocess.repeated_requests import was_carried_out
from hourglass._embedded.store.store import FileLost, StoreOpener
from hourglass.errors import ServiceError, StorageError

A = TypeVar("A")

_log = logging.getLogger("hourglass.embedded")
_client_log = logging.getLogger("hourglass")

SHORTEST, BUSY, LONGEST = 0.001, 0.01, 0.05
"""Pauses while there is no engine to ask, in seconds: the first; the longest while another process has the lock; the
longest while only an owner can answer.
"""
LOOK = 1.0
"""How often, in seconds, the lock is looked at while nothing else tells of an owner's death."""
SILENCE = 3.0
"""How long a request may wait before the log says for what."""
_UNREACHED, _UNREACHABLE = 3.0, 60.0
"""For how many seconds an owner that has no socket is waited for in silence, and at all."""
_MISS = 0.003
"""For so many seconds after an attempt to connect that met no owner none is made again."""
_AGAIN = 2.0
"""After how many seconds to look again for the end of a run that had not closed when no process owned the file."""
_PRECEDENCE = 0.05
"""After an owner's death the processes with workers have the first chance at the lock, for so many seconds."""


@dataclass(slots=True)
class _Search:
    """How far the search for an answer has come. `key` names the request, however often it is sent."""

    key: str
    began: float
    pause: float = SHORTEST
    ownerless_at: float = 0.0
    repeated: bool = False
    looked_at: float = 0.0
    holder: LockNote | None = None
    """Who held the lock at the last look, and had no socket."""
    held_from: float = 0.0
    """Since when it was that one at every look."""
    warned: bool = False


class CallRouter:
    """See the module. `engine` is the engine while this process owns the file. Belongs to one event loop."""

    def __init__(self, opener: StoreOpener, path: str, namespace: str, changed: Bell) -> None:
        self.engine: OpenEngine | None = None
        self.owner: OwnerConnection | None = None
        """The connection to the process that owns the file, if one was found; it may have ended."""
        self.broken: StorageError | None = None
        """Why the file cannot be used here until a person sees to it, if that is known."""
        self._path = path
        self._namespace = namespace
        self._changed = changed
        self._lock = FileLock(path)  # only ever looked at
        self._ownerless = OwnerlessTransactions(opener, path, namespace)
        self._connecting: asyncio.Task[OwnerConnection | None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._name = uuid.uuid4().hex
        self._keys = itertools.count(1)
        self._missed_at = 0.0
        self._lost_at = 0.0
        self._no_worker = NoWorkerNotice(path)

    def own(self, engine: OpenEngine) -> None:
        """From now on the engine is here."""
        self.engine = engine
        self._no_worker.owner_seen()
        if self.owner is not None:
            self.owner.close()
            self.owner = None

    async def close(self) -> None:
        """Let what is under way end, and hang up."""
        tasks = [each for each in (self._connecting, self._watch) if each is not None]
        if self._watch is not None:
            self._watch.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._ownerless.close()
        if self.owner is not None:
            self.owner.close()

    async def call(self, request: s.Request[A]) -> A:
        """Send a request to the file's engine, wherever that is, until it has been answered."""
        engine, is_repeated = self.engine, False
        if engine is not None and engine.failed is None:  # the common case: this process owns the file
            try:
                return await answer(engine.engine, request)
            except EngineClosed:
                is_repeated = True
        return await self._search(request, is_repeated=is_repeated)

    async def _search(self, request: s.Request[A], *, is_repeated: bool) -> A:
        """Look for an engine until one has answered. `is_repeated`: an engine that has closed may have carried it out."""
        search = _Search(f"{self._name}-{next(self._keys)}", monotonic(), repeated=is_repeated)
        if is_repeated:
            self._lost_at = search.began
        while True:
            try:
                outcome = await self._ask_once(request, search)
            except (EngineClosed, ConnectionLost):
                # It may have been carried out, and its answer be lost: it is sent again under the same key, by which
                # an owner that still lives gives the same answer, and with the same id, by which the next one does.
                self.check_sound()
                search.repeated, search.pause = True, SHORTEST
                self._lost_at = monotonic()
                continue
            except ServiceError as error:
                # Refused, perhaps, because it was carried out when it was sent before.
                again = search.repeated and error.status == "NOT_FOUND"
                if again and await was_carried_out(request, self.call):
                    return cast(A, s.Nothing())
                raise
            if not isinstance(outcome, NoAnswer):
                return outcome
            self.check_sound()
            if outcome is NoAnswer.WAIT:
                search.ownerless_at = monotonic() + _AGAIN
                self._no_worker.look(search.began)
            else:
                self._look_for_owner(search)
            # At random, so that processes that want the same lock do not collide again.
            await self._changed.wait(search.pause * random.uniform(0.5, 1.0))
            search.pause = min(2 * search.pause, LONGEST if outcome is NoAnswer.WAIT else BUSY)

    def check_sound(self) -> None:
        """Raise what only a person can mend: to go on asking would be in vain."""
        if self.broken is not None:
            raise type(self.broken)(str(self.broken), status=self.broken.status)

    def _look_for_owner(self, search: _Search) -> None:
        """Whether a process that cannot be reached holds the lock, for so long that it is worth a word, or the end."""
        now = monotonic()
        if self.engine is not None or now < max(search.began + _UNREACHED, search.looked_at + LOOK):
            return
        search.looked_at = now
        if self._lock.is_free():
            search.holder = None
            self._no_worker.look(search.began)
            return
        holder = self._lock.note()
        if search.holder != holder:
            # A transaction of a client, this one's perhaps, which is over soon: an owner has it at the next look, too.
            search.holder, search.held_from = holder, now
            return
        place = unix_socket.socket_path(self._path)
        if unix_socket.identity(self._path) is not None:
            what = (
                f"{self._path} is held by process {holder.pid}, which does not respond: it is stopped or hangs. "
                f"Resume it (kill -CONT {holder.pid}), or end it and start it again"
            )
        else:
            what = (
                f"{self._path} is owned by process {holder.pid}, but there is no socket {place} to reach it by: "
                "the process is still opening the file, or it is stopped (an owner that runs makes its socket again within "
                "a second, and a client holds the file for less than that). If this lasts, end that process and start it "
                "again"
            )
        if now > search.held_from + _UNREACHABLE:
            raise StorageError(what, status="UNAVAILABLE")
        if not search.warned:
            search.warned = True
            _log.warning("%s", what)

    async def _ask_once(self, request: s.Request[A], search: _Search) -> A | NoAnswer:
        """Return the answer, or why there is none yet. Raise `EngineClosed` or `ConnectionLost` if the request may have been
        carried out.
        """
        engine = self.engine
        if isinstance(self.broken, FileLost):
            self.check_sound()
        if engine is not None:
            if engine.failed is None:
                return await answer(engine.engine, request)
            self._changed.ring()  # the shared file, which keeps the engine open, opens it anew
            return NoAnswer.BUSY
        owner = await self.reach()
        if owner is not None:
            self._no_worker.owner_seen()
            self._watch_owner()
            return await owner.ask(request, search.key)
        now = monotonic()
        if now < search.ownerless_at or now < self._lost_at + _PRECEDENCE:
            return NoAnswer.BUSY
        return await self._ownerless.ask(request)

    async def reach(self) -> OwnerConnection | None:
        """The connection to the owner; None if no process owns the file, or the owner does not listen yet."""
        if self.owner is not None and self.owner.is_open:
            return self.owner
        if self._connecting is None or self._connecting.done():
            if monotonic() < self._missed_at + _MISS:
                return None  # many requests may wait: they do not all try to connect
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(_read)
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> OwnerConnection | None:
        # A process that an owner forked may keep its socket open after its death, and would let us wait for a greeting.
        self.owner = None if self._lock.is_abandoned() else await connect(self._path, self._namespace)
        if self.owner is None:
            self._missed_at = monotonic()
        return self.owner

    def _watch_owner(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._look_at_owner())

    async def _look_at_owner(self) -> None:
        """A child that an owner forked may keep its connections open after its death: the lock tells."""
        while (owner := self.owner) is not None and owner.is_open and owner.in_flight:
            await sleep(LOOK)
            if owner is self.owner and self._lock.is_abandoned(owner.welcome.since_ns):
                owner.close()


def _read(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # all waiters may be gone, and asyncio complains of an exception that is not read


class NoWorkerNotice:
    """Says, once for each absence, that what waits on a file waits for a worker."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._said = False

    def owner_seen(self) -> None:
        """There is an owner: its next absence is worth a word again."""
        self._said = False

    def look(self, since: float) -> None:
        """A request that began to wait at `since` still waits: say so if it has been long enough."""
        if not self._said and monotonic() - since >= SILENCE:
            self._said = True
            _client_log.warning(
                "no worker is running on %s: what waits goes on when one starts, in this process or another "
                '(Worker(Client.connect("local:%s"), workflows=[…], activities=[…]).run())',
                self._path,
                self._path,
                extra={"unserved_file": self._path},  # so that the command line can say it in its own words
            )
