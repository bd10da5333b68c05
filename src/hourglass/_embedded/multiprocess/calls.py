"""Routes the requests of this process to a file's engine, wherever it is, until they are answered:

    this process owns the file       its engine answers
    another process owns it          send it over the owner's socket; after the owner's death, route it again
    no process owns it               take the lock for one transaction, or wait for an owner

Must not know: which process wants to own the file, workers.

Invariants: a request is repeated, always with the same key, until it is answered, even if processes die meanwhile. By
its id an engine recognizes a request whose answer was lost; for the few requests without an id, the current state shows
whether they were carried out (`was_carried_out`). The death of the owner is detected when its connection ends, or by a
check of the lock every second. A waiting client is warned if no process owns the file.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import uuid
from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from hourglass._contract import activities as ac
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.schedules import DeleteSchedule
from hourglass._embedded.api.answering import EngineClosed
from hourglass._embedded.api.requests import answer
from hourglass._embedded.clock import Bell
from hourglass._embedded.multiprocess import unix_socket
from hourglass._embedded.multiprocess.open_engine import OpenEngine
from hourglass._embedded.multiprocess.ownerless import NoAnswer, OwnerlessTransactions
from hourglass._embedded.multiprocess.ownership import FileLock, LockNote
from hourglass._embedded.multiprocess.remote import ConnectionLost, OwnerConnection, connect
from hourglass._embedded.runs.run import AttemptToken
from hourglass._embedded.store.store import FileLost, StoreOpener
from hourglass._history import events as h
from hourglass._history.codec import read_event
from hourglass.errors import HourglassError, ServiceError, StorageError

A = TypeVar("A")

_log = logging.getLogger("hourglass.embedded")
_client_log = logging.getLogger("hourglass")

SHORTEST, BUSY, LONGEST = 0.001, 0.01, 0.05
"""Pauses between attempts to find an engine, in seconds: the first pause, the longest while another process has the
lock, and the longest while only an owner can answer.
"""
CHECK_INTERVAL = 1.0
"""Seconds between checks of the lock. They detect the death of an owner whose connections stay open."""
SILENCE = 3.0
"""Seconds that a request may wait before the log explains why."""
_UNREACHED, _UNREACHABLE = 3.0, 60.0
"""Seconds for which a request waits for an owner that cannot be reached: until a warning, and until the request fails."""
_MISS = 0.003
"""Seconds to wait after an attempt to connect that found no owner."""
_AGAIN = 2.0
"""Seconds after which a request that only an owner could answer is tried again without an owner, because its run may
have closed.
"""
_PRECEDENCE = 0.05
"""Seconds after an owner's death in which only processes with workers try to acquire the lock."""


@dataclass(slots=True)
class _Search:
    """The state of the search for an answer. `key` identifies the request, and is the same each time the request is
    sent.
    """

    key: str
    began: float
    pause: float = SHORTEST
    ownerless_at: float = 0.0
    repeated: bool = False
    checked_at: float = 0.0
    holder: LockNote | None = None
    """The holder of the lock at the last check, which could not be reached; None if the lock was free."""
    held_from: float = 0.0
    """The time of the first consecutive check that found this holder."""
    warned: bool = False


class CallRouter:
    """Routes requests. `engine` is set while this process owns the file. Belongs to one event loop."""

    def __init__(self, opener: StoreOpener, path: str, namespace: str, changed: Bell) -> None:
        self.engine: OpenEngine | None = None
        self.owner: OwnerConnection | None = None
        """The connection to the last owner that was found; the connection may have ended. None if no owner was found."""
        self.broken: StorageError | None = None
        """The error of a file that cannot be used until a person repairs it; None if there is none."""
        self._path = path
        self._namespace = namespace
        self._changed = changed
        self._lock = FileLock(path)  # never acquired, only checked
        self._ownerless = OwnerlessTransactions(opener, path, namespace)
        self._connecting: asyncio.Task[OwnerConnection | None] | None = None
        self._owner_check: asyncio.Task[None] | None = None
        self._name = uuid.uuid4().hex
        self._keys = itertools.count(1)
        self._missed_at = 0.0
        self._lost_at = 0.0
        self._warned = False
        """Whether it was logged that requests wait for a worker. Logged once for each absence of an owner."""

    def own(self, engine: OpenEngine) -> None:
        self.engine = engine
        self._warned = False
        if self.owner is not None:
            self.owner.close()
            self.owner = None

    async def close(self) -> None:
        """Wait for calls in progress and close the connection to the owner."""
        tasks = [task for task in (self._connecting, self._owner_check) if task is not None]
        if self._owner_check is not None:
            self._owner_check.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._ownerless.close()
        if self.owner is not None:
            self.owner.close()

    async def call(self, request: s.Request[A]) -> A:
        engine, is_repeated = self.engine, False
        if engine is not None and engine.engine.failed is None:  # the common case: this process owns the file
            try:
                return await answer(engine.engine, request)
            except EngineClosed:
                is_repeated = True
        return await self._search(request, is_repeated=is_repeated)

    async def _search(self, request: s.Request[A], *, is_repeated: bool) -> A:
        """Look for an engine until one has answered. `is_repeated`: an engine that has closed since may have carried
        out the request.
        """
        search = _Search(f"{self._name}-{next(self._keys)}", monotonic(), repeated=is_repeated)
        if is_repeated:
            self._lost_at = search.began
        while True:
            try:
                outcome = await self._call_once(request, search)
            except (EngineClosed, ConnectionLost):
                # The request may have been carried out, and its answer lost. It is sent again with the same key, by
                # which a running owner finds the first answer, and with the same id, by which the next owner recognizes
                # the request.
                self.check_sound()
                search.repeated, search.pause = True, SHORTEST
                self._lost_at = monotonic()
                continue
            except ServiceError as error:
                # Perhaps the repetition is rejected because the first request was carried out.
                again = search.repeated and error.status == "NOT_FOUND"
                if again and await was_carried_out(request, self.call):
                    return cast(A, s.Nothing())
                raise
            if not isinstance(outcome, NoAnswer):
                return outcome
            self.check_sound()
            if outcome is NoAnswer.WAIT:
                search.ownerless_at = monotonic() + _AGAIN
                self._warn_if_late(search.began)
            else:
                self._check_unreachable_owner(search)
            # Random, so that processes that want the same lock do not collide again.
            await self._changed.wait(search.pause * random.uniform(0.5, 1.0))
            search.pause = min(2 * search.pause, LONGEST if outcome is NoAnswer.WAIT else BUSY)

    def check_sound(self) -> None:
        """Raise the error of a file that a person must repair, because repeating a request would be useless."""
        if self.broken is not None:
            raise type(self.broken)(str(self.broken), status=self.broken.status)

    def _check_unreachable_owner(self, search: _Search) -> None:
        """Warn, and finally raise `StorageError`, if a process that cannot be reached has the lock for too long."""
        now = monotonic()
        if self.engine is not None or now < max(
            search.began + _UNREACHED, search.checked_at + CHECK_INTERVAL
        ):
            return
        search.checked_at = now
        if self._lock.is_free():
            search.holder = None
            self._warn_if_late(search.began)
            return
        holder = self._lock.note()
        if search.holder != holder:
            # The holder may be a client's transaction, perhaps our own, which ends soon. An owner still has the lock at
            # the next check.
            search.holder, search.held_from = holder, now
            return
        address = unix_socket.socket_path(self._path)
        if unix_socket.identity(self._path) is not None:
            message = (
                f"process {holder.pid} owns {self._path} and does not respond: it is stopped or hangs. Resume the "
                f"process (kill -CONT {holder.pid}), or end it and restart it"
            )
        else:
            message = (
                f"process {holder.pid} owns {self._path}, but its socket {address} does not exist: the process is still "
                "opening the file, or it is stopped. (A running owner recreates its socket within a second.) If this "
                "error persists, end the process and restart it"
            )
        if now > search.held_from + _UNREACHABLE:
            raise StorageError(message, status="UNAVAILABLE")
        if not search.warned:
            search.warned = True
            _log.warning("%s", message)

    async def _call_once(self, request: s.Request[A], search: _Search) -> A | NoAnswer:
        """Return the answer, or the reason why there is none yet.

        Raises `EngineClosed` or `ConnectionLost` if the request may have been carried out.
        """
        engine = self.engine
        if isinstance(self.broken, FileLost):
            self.check_sound()
        if engine is not None:
            if engine.engine.failed is None:
                return await answer(engine.engine, request)
            self._changed.ring()  # wakes the shared file, which opens the engine again
            return NoAnswer.BUSY
        owner = await self.reach()
        if owner is not None:
            self._warned = False
            self._start_owner_check()
            return await owner.request(request, search.key)
        now = monotonic()
        if now < search.ownerless_at or now < self._lost_at + _PRECEDENCE:
            return NoAnswer.BUSY
        return await self._ownerless.call(request)

    async def reach(self) -> OwnerConnection | None:
        """Return the connection to the owner; None if no process owns the file, or the owner does not listen yet."""
        if self.owner is not None and self.owner.is_open:
            return self.owner
        if self._connecting is None or self._connecting.done():
            if monotonic() < self._missed_at + _MISS:
                return None  # waiting requests share one attempt to connect
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(_read)
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> OwnerConnection | None:
        # A child that an owner forked may keep the owner's socket open after the owner's death, but sends no greeting.
        self.owner = None if self._lock.is_abandoned() else await connect(self._path, self._namespace)
        if self.owner is None:
            self._missed_at = monotonic()
        return self.owner

    def _warn_if_late(self, since: float) -> None:
        """Warn that no worker is running if a request has waited since `since` for at least `SILENCE` seconds."""
        if not self._warned and monotonic() - since >= SILENCE:
            self._warned = True
            _client_log.warning(
                "no worker is running on %s. Requests and workflows wait until a worker starts in this process or "
                'another one: Worker(Client.connect("local:%s"), workflows=[…], activities=[…]).run()',
                self._path,
                self._path,
                extra={"unserved_file": self._path},  # the command line logs a message of its own instead
            )

    def _start_owner_check(self) -> None:
        if self._owner_check is None or self._owner_check.done():
            self._owner_check = asyncio.get_running_loop().create_task(self._close_dead_owner())

    async def _close_dead_owner(self) -> None:
        """Close the connection once the owner has died. A child that the owner forked may keep the socket open, but the
        owner's lock is then free.
        """
        while (owner := self.owner) is not None and owner.is_open and owner.in_flight:
            await sleep(CHECK_INTERVAL)
            if owner is self.owner and self._lock.is_abandoned(owner.welcome.since_ns):
                owner.close()


def _read(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # all waiters may be gone, and asyncio logs exceptions that are never retrieved


_Call: TypeAlias = Callable[[s.Request[Any]], Awaitable[Any]]


async def was_carried_out(request: s.Request[Any], call: _Call) -> bool:
    """Whether a request was carried out whose answer was lost and whose repetition is rejected, because the state that
    it should create exists already.

    This is needed only for requests without an id that the engine remembers.
    """
    try:
        match request:
            case DeleteSchedule():
                return True  # the schedule no longer exists, as requested
            case ac.CompleteActivity(token=token) if token:
                return await _has_ended(AttemptToken.decode(token), call)
    except (HourglassError, ValueError):
        pass  # the rejection is final
    return False


async def _has_ended(token: AttemptToken, call: _Call) -> bool:
    """Whether the history records the completion of this attempt. Only a caller with the attempt's token can have
    caused it.
    """
    attempts: dict[int, int] = {}
    async for event in _events(token.run_id, call):
        match event.attributes:
            case h.ActivityTaskStarted(scheduled_event_id=scheduled, attempt=attempt):
                attempts[scheduled] = attempt
            case (
                h.ActivityTaskCompleted(scheduled_event_id=scheduled)
                | h.ActivityTaskFailed(scheduled_event_id=scheduled)
                | h.ActivityTaskCanceled(scheduled_event_id=scheduled)
            ) if scheduled == token.scheduled_event_id:
                return attempts.get(scheduled) == token.attempt
            case _:
                pass
    return False


async def _events(run_id: str, call: _Call) -> AsyncIterator[h.HistoryEvent]:
    listed: wf.Page = await call(wf.ListWorkflows(query=f"RunId = '{run_id}'"))
    for summary in listed.workflows:
        token = b""
        while True:
            request = wf.GetHistory(workflow_id=summary.workflow_id, run_id=run_id, next_page_token=token)
            page: wf.HistoryPage = await call(request)
            for event in page.events:
                yield read_event(msgspec.json.decode(event))
            token = page.next_page_token
            if not token:
                break
