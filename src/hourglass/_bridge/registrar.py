"""Who serves which task queue: registrations begin, get their handles, have them replaced, and end.

Must not know: polls and completions. It works on the tables and belongs to one holder; what it starts belongs to
the tables. Invariants: a queue is registered once at a time, also while it is being registered; the end of a
registration is one step, in which its handles are told to shut down.
"""

from __future__ import annotations

import asyncio

from hourglass._bridge.adoption import adopt, may_wait, set_aside
from hourglass._bridge.draining import begin_drain
from hourglass._bridge.handle_life import Signal
from hourglass._bridge.handle_record import HandleRecord
from hourglass._bridge.opening import Connect, open_handle
from hourglass._bridge.poll_line import Owner
from hourglass._bridge.registration import AlreadyRegistered, Registration, WorkerNotRegistered
from hourglass._bridge.tables import HandleTables, logger
from hourglass._contract.handle import HandleConfig, Shutdown
from hourglass.errors import HourglassError


class Registrar:
    """See the module."""

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
            # Refused, or whoever registers is gone: nobody would ever unregister it.
            message = f"the task queue {queue!r} could not be registered"
            self._end(registration, WorkerNotRegistered, message, Signal.RECYCLED)
            raise

    def unregister(self, registration: Registration, *, returns: bool = False) -> None:
        """Its worker says farewell, perhaps to register again soon."""
        message = f"the worker of {registration.queue!r} was unregistered"
        self._end(registration, Shutdown, message, Signal.RECYCLED if returns else Signal.UNREGISTERED)

    def _owner_died(self, registration: Registration) -> None:
        # As after a recycle, its activities may finish: they live elsewhere, and its successor is on its way.
        message = f"the worker of {registration.queue!r} died"
        self._end(registration, Shutdown, message, Signal.RECYCLED)

    def _end(
        self, registration: Registration, kind: type[HourglassError], message: str, signal: Signal
    ) -> None:
        tables = self._tables
        if tables.registrations.get(registration.queue) is not registration:
            return
        del tables.registrations[registration.queue]
        if kind is Shutdown:
            tables.farewells.add(registration.queue)
        served = registration.finish(kind, message)
        for record in tables.of_queue(registration.queue):
            if signal is Signal.RECYCLED and record is served and may_wait(tables, record):
                set_aside(tables, record)
            else:
                begin_drain(tables, record, signal)

    def void_all(self) -> None:
        """The holder before is dead: what was registered with it does not count, and its handles wait for their workers."""
        for registration in tuple(self._tables.registrations.values()):
            message = "the holder of the handles was restarted; register again"
            self._end(registration, WorkerNotRegistered, message, Signal.RECYCLED)

    # --- handles ------------------------------------------------------------------------------------------

    def open(self, registration: Registration) -> asyncio.Task[None]:
        """See to it that a handle is being opened for a registration that has none."""
        if registration.opening is None or registration.opening.done():
            task = self._tables.spawn(open_handle(self._tables, registration, self._connect), bounded=True)
            task.add_done_callback(lambda _: registration.bell.ring())
            registration.opening = task
        return registration.opening

    async def wait_open(self, registration: Registration) -> None:
        """Wait until it has a handle, or has ended. Raises what a first handle was refused with."""
        if registration.has_ended() or registration.current is not None:
            return
        opening = self.open(registration)
        while not (opening.done() or registration.has_ended() or registration.current is not None):
            await registration.bell.wait()
        if opening.done() and not opening.cancelled() and not registration.has_ended():
            opening.result()

    def replace(self, registration: Registration, record: HandleRecord, reason: str) -> None:
        """Let this handle drain and open another, at once."""
        logger.warning("%r is recycled: %s", record, reason)
        self._tables.counters.recycles += 1
        registration.current = None
        begin_drain(self._tables, record, Signal.RECYCLED)
        self.open(registration)

    def replace_broken(self, record: HandleRecord, reason: str) -> None:
        """Replace a handle that broke by itself; one that never worked makes its successor wait."""
        if record.spare is not None:
            begin_drain(self._tables, record, Signal.RECYCLED)
        registration = self._tables.registrations.get(record.queue)
        if registration is None or registration.current is not record:
            return
        lived = (self._tables.now_ns() - record.opened_ns) / 1e9
        worked = record.received or lived > self._tables.limits.longest_pause
        registration.setbacks = 0 if worked else registration.setbacks + 1
        self.replace(registration, record, reason)
