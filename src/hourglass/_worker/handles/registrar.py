"""The registrar of task queues: begins and ends registrations, and opens and replaces their handles.

Must not know: polls and completions. A registrar works on the tables and belongs to one holder. The tasks that it
starts belong to the tables. Opening a handle is retried, with pauses, until a handle is open or the registration has
ended. The retries need only the tables and the registration, so a handle that arrives after the death of its holder, or
after its worker was unregistered, is still shut down immediately.

Ending a healthy handle is expensive: a task that the engine gives to an ending poll must time out before another worker
gets it, and every run of the handle is replayed elsewhere. So if a worker died, or announced that it will return, its
handle is set aside: polling pauses, items of outstanding polls are kept, and completions are still accepted. If the
worker returns, it adopts the handle unchanged.

Invariants:

- A queue has at most one registration at a time, including a registration in progress. A registration ends in one step,
  in which its handles start to shut down.
- No handle or connection is lost, however late it arrives; no caller waits longer than the limits for one attempt.
- A handle serves one registration at a time. A handle that is set aside is adopted or drained within
  `HandleLimits.adoption`. Only a healthy handle is adopted, and only by a worker with the same configuration.
  Generations and tokens stay the same, so items that were dispatched earlier can still be completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

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
WatchDeath: TypeAlias = Callable[[Callable[[], object]], Callable[[], object]]
"""A function that registers a callback for the death of a worker, which is called immediately if the worker is already
dead. Returns a function that removes the callback.
"""


class Overdue(ServiceTimeoutError):
    """A call to an engine did not return within the limit."""


async def open_handle(tables: HandleTables, registration: Registration, connect: Connect) -> None:
    """Open a handle for a registration. Raise only if the first attempt is permanently rejected."""
    while not registration.has_ended():
        pause = tables.limits.pause(registration.setbacks)
        if pause and await registration.changed.wait(pause):
            continue  # the registration ended or was served meanwhile: check again
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
                "no handle could be opened for task queue %r; next attempt in %.1f s: %s",
                registration.queue,
                tables.limits.pause(registration.setbacks),
                _text(error),
            )


async def _attempt(tables: HandleTables, registration: Registration, connect: Connect) -> None:
    connection = _shared(tables, registration)
    if connection is None:
        connection = await _limited(
            tables,
            _awaited(connect),
            tables.limits.connect,
            "connecting",
            lambda late: _release(tables, late),
        )
    if registration.has_ended():
        tables.release(connection)
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
        raise  # handled when the call ends
    except BaseException:
        tables.opening.remove((connection, registration.queue))
        tables.release(connection)
        raise
    # There is no await between the handle's arrival and its entry in the tables, so the handle cannot be lost.
    tables.opening.remove((connection, registration.queue))
    record = tables.enter(registration.config, handle, connection)
    if registration.has_ended():
        begin_drain(tables, record, HandleSignal.UNWANTED)
    else:
        record.apply_signal(HandleSignal.OPENED)
        registration.serve(record)


def _release(tables: HandleTables, late: asyncio.Task[Connection]) -> None:
    if _came(late):
        tables.release(late.result())


def _discard(
    tables: HandleTables, registration: Registration, connection: Connection, late: asyncio.Task[Handle]
) -> None:
    tables.opening.remove((connection, registration.queue))
    if _came(late):
        begin_drain(
            tables, tables.enter(registration.config, late.result(), connection), HandleSignal.UNWANTED
        )
    else:
        tables.release(connection)


def _came(late: asyncio.Task[Any]) -> bool:
    return not late.cancelled() and late.exception() is None


def _shared(tables: HandleTables, registration: Registration) -> Connection | None:
    """Return the shared connection for a registration's first handle, else None.

    Later handles get new connections: a failure may be the connection's fault, and an engine rejects a second handle
    for a queue on the same connection.
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
    """Return the result of a call, or raise `Overdue`. `late` receives a result that arrives after the deadline or
    after the caller has gone.
    """
    task = tables.spawn(call)
    done: set[asyncio.Task[T]] = set()
    try:
        done, _ = await asyncio.wait({task}, timeout=limit)
    finally:
        if not done:
            # Cancellation is only a request: a connection or handle that arrives nevertheless must not be
            # lost.
            task.add_done_callback(late)
            task.cancel()
    if not done:
        raise Overdue(f"{what} took more than {limit:g} s", status="DEADLINE_EXCEEDED")
    return task.result()


async def _awaited(connect: Connect) -> Connection:
    return await connect()


def _text(error: BaseException) -> str:
    # Only our own errors are known to contain no secrets.
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, HourglassError) else name


def set_aside(tables: HandleTables, record: HandleRecord) -> None:
    """Make a healthy handle wait for its worker to return. Wake the handle's poll loops, which see that the
    registration has ended.
    """
    record.stop_waiting()
    loop = asyncio.get_running_loop()
    record.spare = loop.call_later(tables.limits.adoption, begin_drain, tables, record, HandleSignal.RECYCLED)
    record.detach()


def adopt(tables: HandleTables, registration: Registration) -> None:
    """Assign the handle that waits for its worker, if there is one, to the worker's new registration. Drain all other
    waiting handles of the queue.
    """
    for record in reversed(tables.of_queue(registration.queue)):
        if record.spare is None:
            continue
        if registration.current is None and record.healthy and record.config == registration.config:
            record.stop_waiting()
            tables.counters.adopted += 1
            logger.info("%r is used by the restarted worker", record)
            registration.serve(record)
        else:
            begin_drain(tables, record, HandleSignal.RECYCLED)


class Registrar:
    """Begins and ends registrations for one holder, and keeps a handle open for each registration."""

    def __init__(self, tables: HandleTables, connect: Connect) -> None:
        self._tables = tables
        self._connect = connect

    async def register(self, config: HandleConfig, watch_death: WatchDeath) -> None:
        """Register the task queue of `config`, and wait until a handle serves the queue."""
        queue = config.task_queue
        if queue in self._tables.registrations:
            raise AlreadyRegistered(
                f"the task queue {queue!r} already has a worker, or one is being registered"
            )
        registration = Registration(config)
        self._tables.registrations[queue] = registration
        self._tables.unregistered.discard(queue)
        registration.unwatch = watch_death(lambda: self._worker_died(registration))
        try:
            if not registration.has_ended():
                adopt(self._tables, registration)
            await self.wait_open(registration)
            registration.check()
        except Shutdown as error:
            raise WorkerNotRegistered(f"{queue!r} was unregistered while it was being registered") from error
        except BaseException:
            # Rejected, or the caller was cancelled: nobody else would unregister the queue.
            message = f"the worker of task queue {queue!r} could not be registered"
            self._end(registration, WorkerNotRegistered, message, HandleSignal.RECYCLED)
            raise

    def unregister(self, registration: Registration, *, returns: bool = False) -> None:
        """End a registration on behalf of its worker. Set `returns` if the worker will register again soon."""
        message = f"the worker of {registration.queue!r} was unregistered"
        self._end(
            registration, Shutdown, message, HandleSignal.RECYCLED if returns else HandleSignal.UNREGISTERED
        )

    def _worker_died(self, registration: Registration) -> None:
        # As after a recycle, the worker's activities may finish: they run outside the dead process, and the next handle
        # is expected soon.
        message = f"the worker of {registration.queue!r} failed"
        self._end(registration, Shutdown, message, HandleSignal.RECYCLED)

    def _end(
        self, registration: Registration, kind: type[HourglassError], message: str, signal: HandleSignal
    ) -> None:
        tables = self._tables
        if tables.registrations.get(registration.queue) is not registration:
            return
        del tables.registrations[registration.queue]
        if kind is Shutdown:
            tables.unregistered.add(registration.queue)
        served = registration.finish(kind, message)
        for record in tables.of_queue(registration.queue):
            may_wait = record is served and record.healthy and tables.limits.adoption > 0
            if signal is HandleSignal.RECYCLED and may_wait:
                set_aside(tables, record)
            else:
                begin_drain(tables, record, signal)

    def void_all(self) -> None:
        """End all registrations of a dead holder. The holder's handles wait for their workers to return."""
        for registration in tuple(self._tables.registrations.values()):
            message = "the holder of the handles was restarted; register again"
            self._end(registration, WorkerNotRegistered, message, HandleSignal.RECYCLED)

    def open(self, registration: Registration) -> asyncio.Task[None]:
        """Ensure that a handle is being opened for a registration that has none. Return the task that opens it."""
        if registration.opening is None or registration.opening.done():
            task = self._tables.spawn(open_handle(self._tables, registration, self._connect), bounded=True)
            task.add_done_callback(lambda _: registration.changed.notify_all())
            registration.opening = task
        return registration.opening

    async def wait_open(self, registration: Registration) -> None:
        """Wait until the registration has a handle or has ended. Raise the error with which the first handle was
        rejected.
        """
        if registration.has_ended() or registration.current is not None:
            return
        opening = self.open(registration)
        while not (opening.done() or registration.has_ended() or registration.current is not None):
            await registration.changed.wait()
        if opening.done() and not opening.cancelled() and not registration.has_ended():
            opening.result()

    def replace(self, registration: Registration, record: HandleRecord, reason: str) -> None:
        """Drain this handle, and immediately start to open another handle for the registration."""
        logger.warning("replacing the connection of task queue %r to its engine: %s", record.queue, reason)
        self._tables.counters.recycles += 1
        registration.current = None
        begin_drain(self._tables, record, HandleSignal.RECYCLED)
        self.open(registration)

    def replace_broken(self, record: HandleRecord, reason: str) -> None:
        """Replace a handle that broke. If the handle never worked, the next handle is opened after a pause."""
        if record.spare is not None:
            begin_drain(self._tables, record, HandleSignal.RECYCLED)
        registration = self._tables.registrations.get(record.queue)
        if registration is None or registration.current is not record:
            return
        lived = (self._tables.now_ns() - record.opened_ns) / 1e9
        worked = record.received or lived > self._tables.limits.longest_pause
        registration.setbacks = 0 if worked else registration.setbacks + 1
        self.replace(registration, record, reason)
