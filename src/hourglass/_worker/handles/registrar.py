"""Registrations of task queues begin, get their handles, have them replaced, and end.

Must not know: polls and completions. It works on the tables and belongs to one holder; what it starts belongs to
the tables. A handle is opened again and again, with pauses, until it works or its registration has ended; that needs
nothing but the tables and the registration, so that a handle that arrives after its holder's death, or after its
worker was unregistered, is shut down on the spot.

Ending a healthy handle is dear: what the engine gives to a poll that is being ended must time out there before
another worker gets it, and every run on it is replayed. So the handle of a worker that died, or said that it would
return, is set aside: it is not polled again, what the polls that are out bring is kept, and it still takes its
completions. A worker that comes back adopts it as it left it.

Invariants:

- A queue is registered once at a time, also while it is being registered; the end of a registration is one step, in
  which its handles are told to shut down.
- No handle and no connection that arrives is lost, however late; no caller waits longer than the limits for one
  attempt.
- A handle serves one registration at a time. One that is set aside is adopted or drained within `Limits.adoption`;
  only a healthy one is adopted, and only by a worker that asks for the same configuration. Generations and tokens
  are untouched, so that what was handed out before counts as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeAlias, TypeVar

from hourglass._contract.handle import Handle, HandleConfig, Shutdown
from hourglass._contract.service import Connection
from hourglass._worker.handles.draining import begin_drain
from hourglass._worker.handles.handles import (
    AlreadyRegistered,
    HandleRecord,
    HandleTables,
    Registration,
    WorkerNotRegistered,
    logger,
)
from hourglass._worker.handles.inbox import OURS
from hourglass._worker.handles.life import HandleSignal, is_hopeless
from hourglass.errors import HourglassError, ServiceTimeoutError

T = TypeVar("T")
Connect: TypeAlias = Callable[[], Awaitable[Connection]]


class Overdue(ServiceTimeoutError):
    """A call to an engine did not return within our own limit."""


async def open_handle(tables: HandleTables, registration: Registration, connect: Connect) -> None:
    """Give a registration a handle. Raises only where a first attempt meets a refusal that will not pass."""
    while not registration.has_ended():
        pause = tables.limits.pause(registration.setbacks)
        if pause and await registration.changed.wait(pause):
            continue  # it ended, or was served: look again
        if registration.current is not None:
            return
        try:
            await _attempt(tables, registration, connect)
            return
        except OURS:
            raise
        except BaseException as error:
            if not registration.was_active and is_hopeless(error):
                raise
            registration.setbacks += 1
            logger.warning(
                "no handle for the task queue %r yet, retrying in %.1f s: %s",
                registration.queue,
                tables.limits.pause(registration.setbacks),
                _text(error),
            )


async def _attempt(tables: HandleTables, registration: Registration, connect: Connect) -> None:
    connection = _shared(tables, registration)
    if connection is None:
        connection = await _limited(
            tables, _awaited(connect), tables.limits.connect, "connecting", lambda late: _let_go(tables, late)
        )
    if registration.has_ended():
        tables.let_go(connection)
        return
    tables.opening.append((connection, registration.queue))
    try:
        handle = await _limited(
            tables,
            connection.open_handle(registration.config),
            tables.limits.open,
            "opening a handle",
            lambda late: _discard(tables, registration, connection, late),
        )
    except (*OURS, Overdue):
        raise  # it is seen to when the call ends
    except BaseException:
        tables.opening.remove((connection, registration.queue))
        tables.let_go(connection)
        raise
    # No await between the handle's arrival and its entry: from here on it cannot be lost.
    tables.opening.remove((connection, registration.queue))
    record = tables.enter(registration.config, handle, connection)
    if registration.has_ended():
        begin_drain(tables, record, HandleSignal.UNWANTED)
    else:
        record.hears(HandleSignal.OPENED)
        registration.serve(record)


def _let_go(tables: HandleTables, late: asyncio.Task[Connection]) -> None:
    if _came(late):
        tables.let_go(late.result())


def _discard(
    tables: HandleTables, registration: Registration, connection: Connection, late: asyncio.Task[Handle]
) -> None:
    tables.opening.remove((connection, registration.queue))
    if _came(late):
        begin_drain(
            tables, tables.enter(registration.config, late.result(), connection), HandleSignal.UNWANTED
        )
    else:
        tables.let_go(connection)


def _came(late: asyncio.Task[Any]) -> bool:
    return not late.cancelled() and late.exception() is None


def _shared(tables: HandleTables, registration: Registration) -> Connection | None:
    """The shared connection, for a first handle only: one that failed may be the connection's fault, and an
    engine refuses a second handle for a queue on the same connection.
    """
    shared = tables.shared
    first = not registration.was_active and registration.setbacks == 0
    return shared if first and shared is not None and not tables.is_used(shared, registration.queue) else None


async def _limited(
    tables: HandleTables,
    call: Coroutine[Any, Any, T],
    limit: float,
    what: str,
    late: Callable[[asyncio.Task[T]], object],
) -> T:
    """The call's result; `late` sees to one that does not come in time, or after our own end."""
    task = tables.spawn(call)
    done: set[asyncio.Task[T]] = set()
    try:
        done, _ = await asyncio.wait({task}, timeout=limit)
    finally:
        if not done:
            # Cancelling is a request only: a connection or handle that comes all the same must not be lost.
            task.add_done_callback(late)
            task.cancel()
    if not done:
        raise Overdue(f"{what} took more than {limit:g} s", status="DEADLINE_EXCEEDED")
    return task.result()


async def _awaited(connect: Connect) -> Connection:
    return await connect()


def _text(error: BaseException) -> str:
    # Only our own errors are known to carry no secrets.
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, HourglassError) else name


def may_wait(tables: HandleTables, record: HandleRecord) -> bool:
    """Whether a handle is worth waiting with."""
    return record.healthy and tables.limits.adoption > 0


def set_aside(tables: HandleTables, record: HandleRecord) -> None:
    """Let a healthy handle wait for its worker; pollers on it are woken, and see that the registration has ended."""
    record.stop_waiting()
    loop = asyncio.get_running_loop()
    record.spare = loop.call_later(tables.limits.adoption, begin_drain, tables, record, HandleSignal.RECYCLED)
    record.detach()


def adopt(tables: HandleTables, registration: Registration) -> None:
    """Give a registration the handle that waits for it, if there is one; others that wait for its queue end."""
    for record in reversed(tables.of_queue(registration.queue)):
        if record.spare is None:
            continue
        if registration.current is None and record.healthy and record.config == registration.config:
            record.stop_waiting()
            tables.counters.adopted += 1
            logger.info("%r is adopted", record)
            registration.serve(record)
        else:
            begin_drain(tables, record, HandleSignal.RECYCLED)


class Owner(Protocol):
    """The worker that registers; its death can be watched."""

    def add_death_callback(self, callback: Callable[[], object], /) -> Callable[[], object]:
        """Call back when it dies (at once if it is dead); returns what takes the callback back."""
        ...


class Registrar:
    """Begins and ends registrations for one holder, and sees to it that each has a handle."""

    def __init__(self, tables: HandleTables, connect: Connect) -> None:
        self._tables = tables
        self._connect = connect

    async def register(self, config: HandleConfig, owner: Owner) -> None:
        """Register the queue of `config` and wait until it has a handle."""
        queue = config.task_queue
        if queue in self._tables.registrations:
            raise AlreadyRegistered(f"the task queue {queue!r} has a worker already, or is about to have one")
        registration = Registration(config)
        self._tables.registrations[queue] = registration
        self._tables.farewells.discard(queue)
        registration.unwatch = owner.add_death_callback(lambda: self._owner_died(registration))
        try:
            if not registration.has_ended():
                adopt(self._tables, registration)
            await self.wait_open(registration)
            registration.check()
        except Shutdown as error:
            raise WorkerNotRegistered(f"{queue!r} was unregistered while it was being registered") from error
        except BaseException:
            # Rejected, or the caller was cancelled: nobody would unregister the queue.
            message = f"the task queue {queue!r} could not be registered"
            self._end(registration, WorkerNotRegistered, message, HandleSignal.RECYCLED)
            raise

    def unregister(self, registration: Registration, *, returns: bool = False) -> None:
        """Its worker says farewell, perhaps to register again soon."""
        message = f"the worker of {registration.queue!r} was unregistered"
        self._end(
            registration, Shutdown, message, HandleSignal.RECYCLED if returns else HandleSignal.UNREGISTERED
        )

    def _owner_died(self, registration: Registration) -> None:
        # As after a recycle, its activities may finish: they live elsewhere, and its successor is on its way.
        message = f"the worker of {registration.queue!r} died"
        self._end(registration, Shutdown, message, HandleSignal.RECYCLED)

    def _end(
        self, registration: Registration, kind: type[HourglassError], message: str, signal: HandleSignal
    ) -> None:
        tables = self._tables
        if tables.registrations.get(registration.queue) is not registration:
            return
        del tables.registrations[registration.queue]
        if kind is Shutdown:
            tables.farewells.add(registration.queue)
        served = registration.finish(kind, message)
        for record in tables.of_queue(registration.queue):
            if signal is HandleSignal.RECYCLED and record is served and may_wait(tables, record):
                set_aside(tables, record)
            else:
                begin_drain(tables, record, signal)

    def void_all(self) -> None:
        """The holder before is dead: what was registered with it does not count, and its handles wait for their workers."""
        for registration in tuple(self._tables.registrations.values()):
            message = "the holder of the handles was restarted; register again"
            self._end(registration, WorkerNotRegistered, message, HandleSignal.RECYCLED)

    def open(self, registration: Registration) -> asyncio.Task[None]:
        """See to it that a handle is being opened for a registration that has none."""
        if registration.opening is None or registration.opening.done():
            task = self._tables.spawn(open_handle(self._tables, registration, self._connect), bounded=True)
            task.add_done_callback(lambda _: registration.changed.notify_all())
            registration.opening = task
        return registration.opening

    async def wait_open(self, registration: Registration) -> None:
        """Wait until it has a handle, or has ended. Raises what a first handle was refused with."""
        if registration.has_ended() or registration.current is not None:
            return
        opening = self.open(registration)
        while not (opening.done() or registration.has_ended() or registration.current is not None):
            await registration.changed.wait()
        if opening.done() and not opening.cancelled() and not registration.has_ended():
            opening.result()

    def replace(self, registration: Registration, record: HandleRecord, reason: str) -> None:
        """Let this handle drain and open another, at once."""
        logger.warning("the connection of task queue %r to its engine is replaced: %s", record.queue, reason)
        self._tables.counters.recycles += 1
        registration.current = None
        begin_drain(self._tables, record, HandleSignal.RECYCLED)
        self.open(registration)

    def replace_broken(self, record: HandleRecord, reason: str) -> None:
        """Replace a handle that broke by itself; one that never worked makes its successor wait."""
        if record.spare is not None:
            begin_drain(self._tables, record, HandleSignal.RECYCLED)
        registration = self._tables.registrations.get(record.queue)
        if registration is None or registration.current is not record:
            return
        lived = (self._tables.now_ns() - record.opened_ns) / 1e9
        worked = record.received or lived > self._tables.limits.longest_pause
        registration.setbacks = 0 if worked else registration.setbacks + 1
        self.replace(registration, record, reason)
