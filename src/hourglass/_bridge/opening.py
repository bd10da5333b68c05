"""A handle's beginning: connect, open, and hand it to its registration; again and again, with pauses, until
it works or nobody wants it any more.

Needs nothing but the tables and the registration, so that a handle that arrives after its holder's death, or
after its worker was unregistered, is shut down on the spot. Invariants: no handle and no connection that
arrives is lost, however late; nobody waits longer than the limits for one attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from hourglass._bridge.draining import begin_drain
from hourglass._bridge.handle_life import Signal, is_hopeless
from hourglass._bridge.poll_line import OURS
from hourglass._bridge.registration import Registration
from hourglass._bridge.tables import HandleTables, logger
from hourglass._contract.handle import Handle
from hourglass._contract.service import Connection
from hourglass.errors import HourglassError, ServiceTimeoutError

T = TypeVar("T")
Connect: TypeAlias = Callable[[], Awaitable[Connection]]


class Overdue(ServiceTimeoutError):
    """A call to an engine did not return within our own limit."""


async def open_handle(tables: HandleTables, registration: Registration, connect: Connect) -> None:
    """Give a registration a handle. Raises only where a first attempt meets a refusal that will not pass."""
    while not registration.has_ended():
        pause = tables.limits.pause(registration.setbacks)
        if pause and await registration.bell.wait(pause):
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
                "no handle for the task queue %r yet, again in %.1f s: %s",
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
        begin_drain(tables, record, Signal.UNWANTED)
    else:
        record.hears(Signal.OPENED)
        registration.serve(record)


def _let_go(tables: HandleTables, late: asyncio.Task[Connection]) -> None:
    if _came(late):
        tables.let_go(late.result())


def _discard(
    tables: HandleTables, registration: Registration, connection: Connection, late: asyncio.Task[Handle]
) -> None:
    tables.opening.remove((connection, registration.queue))
    if _came(late):
        begin_drain(tables, tables.enter(registration.config, late.result(), connection), Signal.UNWANTED)
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
