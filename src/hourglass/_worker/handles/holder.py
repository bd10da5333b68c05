"""The BridgeHolder: owner of every handle of one Application, that is, of one target and namespace. All other parts
access handles only through the holder.

Must not know: lanes, evaluators, executors, supervisors. The holder runs on the control loop, and a slow call of one
caller never delays another caller. All state is in `HandleTables`, so a holder that crashes at any point loses nothing:
the next holder uses the same tables, waits for the workers to register again, and drains the handles whose workers do
not return soon. Invariants:

- A queue has at most one registration at a time. Unregistering takes effect immediately, and polls of the queue then
  raise `Shutdown`.
- Polls and completions are never cancelled, but their callers may be cancelled at any time.
- A completion counts only for the generation and the token under which its item was dispatched.
- A handle that breaks is replaced; no poll loop receives the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, TypeVar

from hourglass._contract.handle import (
    ActivityItem,
    ActivityResult,
    HandleConfig,
    Shutdown,
)
from hourglass._contract.service import Connection
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads
from hourglass._worker.handles.draining import begin_drain, drive
from hourglass._worker.handles.handles import (
    AlreadyRegistered,
    HandleEvents,
    HandleRecord,
    HandleTables,
    Registration,
    StaleCompletion,
    WorkerNotRegistered,
)
from hourglass._worker.handles.inbox import OURS, Inbox, Receiver
from hourglass._worker.handles.life import HandleLimits, HandleSignal, HandleState
from hourglass._worker.handles.registrar import Connect, Registrar, WatchDeath
from hourglass._worker.handles.sending import send_completion, send_result
from hourglass.errors import UsageError

__all__ = [
    "AlreadyRegistered",
    "BridgeHolder",
    "HandleLimits",
    "HandleTables",
    "StaleCompletion",
    "WorkerNotRegistered",
]


T = TypeVar("T")


class BridgeHolder:
    """The only access to the handles of a target and namespace: registers workers, receives their items, sends completions.

    `connect` opens a new connection for each handle that replaces another. The first handle of a queue uses `shared`, which
    the caller closes.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        shared: Connection | None = None,
        tables: HandleTables | None = None,
        limits: HandleLimits | None = None,
        events: HandleEvents = HandleEvents(),
    ) -> None:
        self.tables = tables if tables is not None else HandleTables()
        self._registrar = Registrar(self.tables, connect)
        self._shared = shared
        self._limits = limits or HandleLimits()
        self._events = events
        self._epoch = 0

    async def start(self) -> None:
        """Take over the tables. Handles of an earlier holder wait briefly for their workers to return, and are
        otherwise drained and closed.
        """
        tables = self.tables
        tables.epoch += 1
        self._epoch = tables.epoch
        tables.set_limits(self._limits)
        tables.shared, tables.events = self._shared, self._events
        tables.replace_broken = self._registrar.replace_broken
        if tables.registrations or tables.records:
            tables.counters.takeovers += 1
        self._registrar.void_all()
        for record in tuple(tables.records.values()):
            if record.drain is not None:
                drive(tables, record, record.drain)  # the task that drained the handle may have died, too

    async def stop(self) -> None:
        """Unregister all workers and wait until every handle is closed or abandoned. If the call is cancelled, the
        handles still end.
        """
        if not self._in_charge:
            return
        for queue in tuple(self.tables.registrations):
            await self.unregister_worker(queue)
        for record in tuple(self.tables.records.values()):
            begin_drain(self.tables, record, HandleSignal.UNREGISTERED)
        while self.tables.busy:
            await self.tables.changed.wait()

    @property
    def _in_charge(self) -> bool:
        """Whether this holder has been started, and no later holder has taken over the tables."""
        return self._epoch != 0 and self._epoch == self.tables.epoch

    async def register_worker(self, queue: str, config: HandleConfig, watch_death: WatchDeath) -> None:
        """Open a handle for a queue on behalf of a worker, whose death unregisters the queue.

        Returns once there is a handle. Temporary failures are retried. Raises `AlreadyRegistered`, the error of a
        permanent rejection, or `WorkerNotRegistered` if the queue was unregistered meanwhile.
        """
        self._check_in_charge(queue)
        config.check()
        if config.task_queue != queue:
            raise UsageError(f"a handle for {config.task_queue!r} cannot serve the task queue {queue!r}")
        await self._registrar.register(config, watch_death)

    async def unregister_worker(self, queue: str, *, returns: bool = False) -> None:
        """Stop serving a queue immediately, and drain its handles in the background. Idempotent.

        Set `returns` if the worker will register again soon: its activities may then finish, as after a recycle.
        """
        if not self._in_charge:
            return
        registration = self.tables.registrations.get(queue)
        if registration is not None:
            self._registrar.unregister(registration, returns=returns)
        elif not returns:
            for record in self.tables.of_queue(queue):  # handles of a worker that was expected to return
                begin_drain(self.tables, record, HandleSignal.UNREGISTERED)

    async def recycle(self, queue: str, reason: str) -> None:
        """Replace a queue's handle immediately, and drain the old handle. Return when the new handle is open.

        A handle that is being opened or replaced is not replaced again.
        """
        registration = self._registration(queue)
        if registration.current is not None:
            self._registrar.replace(registration, registration.current, reason)
        await self._registrar.wait_open(registration)
        registration.check()

    def _check_in_charge(self, queue: str) -> None:
        if not self._in_charge:
            raise WorkerNotRegistered(
                f"this holder does not serve {queue!r}: it was not started, or it was replaced"
            )

    def _registration(self, queue: str) -> Registration:
        self._check_in_charge(queue)
        registration = self.tables.registrations.get(queue)
        if registration is None:
            if queue in self.tables.unregistered:
                raise Shutdown(f"the worker of {queue!r} was unregistered")
            raise WorkerNotRegistered(f"no worker is registered for the task queue {queue!r}")
        return registration

    async def serve_activations(
        self, queue: str, receiver_of: Callable[[HandleRecord], Receiver[Activation]]
    ) -> NoReturn:
        """Pass each activation of a queue to a receiver, which dispatches the activation immediately. `receiver_of`
        creates the receiver for each handle that serves the queue.

        Raises `Shutdown` when the queue is unregistered, `WorkerNotRegistered` if no worker is registered, and any
        exception of a receiver, whose item is then kept for the next caller.
        """
        await self._serve(queue, lambda record: record.activations, receiver_of)

    async def serve_activities(
        self, queue: str, receiver_of: Callable[[HandleRecord], Receiver[ActivityItem]]
    ) -> NoReturn:
        """Pass each activity task and cancellation of a queue to a receiver, as `serve_activations` does for activations."""
        await self._serve(queue, lambda record: record.activities, receiver_of)

    async def _serve(
        self,
        queue: str,
        inbox_of: Callable[[HandleRecord], Inbox[T]],
        receiver_of: Callable[[HandleRecord], Receiver[T]],
    ) -> NoReturn:
        registration = self._registration(queue)
        while True:
            record = await self._current(registration)
            inbox, receiver = inbox_of(record), receiver_of(record)
            inbox.attach(receiver)
            try:
                while registration.current is record:
                    inbox.pass_kept()
                    await inbox.changed.wait()
            finally:
                inbox.detach(receiver)

    async def _current(self, registration: Registration) -> HandleRecord:
        """Wait for the handle that serves a registration, and return it."""
        while True:
            registration.check()
            if registration.current is not None:
                return registration.current
            self._registrar.open(registration)
            await registration.changed.wait()

    async def complete_activation(
        self, queue: str, generation: int, token: int, completion: Completion
    ) -> None:
        """Complete the activation whose entry has this token.

        Raises `StaleCompletion` (a `WorkerNotRegistered`) if the activation is no longer open. Returns when the engine
        has accepted the completion, or after the time limit. Neither proves that the completion was applied: the engine
        reports a rejection by an eviction.
        """
        record = self._find(queue, generation)
        opened = None if record is None else record.runs.open.get(completion.run_id)
        if record is None or opened is None or opened.token != token:
            raise self.stale(f"run {completion.run_id}", queue, generation)
        accepted = asyncio.Event()
        send_completion(self.tables, record, completion, accepted.set)
        await accepted.wait()

    async def complete_activity(self, queue: str, generation: int, result: ActivityResult) -> None:
        """Report the result of an attempt. Errors and time limit are the same as for `complete_activation`."""
        record = self._find(queue, generation)
        if record is None or result.token not in record.attempts.open:
            raise self.stale("this attempt", queue, generation)
        accepted = asyncio.Event()
        send_result(self.tables, record, result, accepted.set)
        await accepted.wait()

    def heartbeat(self, queue: str, generation: int, token: bytes, details: Payloads) -> None:
        """Report that an attempt is alive. Raises `WorkerNotRegistered` if the attempt is no longer open here."""
        record = self._find(queue, generation)
        if record is None or token not in record.attempts.open:
            raise StaleCompletion(f"no such attempt is open on {queue!r} under generation {generation}")
        self._call_handle(record, lambda: record.handle.heartbeat(token, details))

    def request_eviction(self, queue: str, generation: int, run_id: str) -> None:
        """Request the eviction of a run. Does nothing for a draining handle, which evicts all its runs anyway."""
        record = self._find(queue, generation)
        if record is None:
            raise WorkerNotRegistered(f"generation {generation} of {queue!r} has ended")
        if record.state is HandleState.ACTIVE:
            self._call_handle(record, lambda: record.handle.request_eviction(run_id))

    def _call_handle(self, record: HandleRecord, call: Callable[[], None]) -> None:
        try:
            call()
        except OURS:
            raise
        except BaseException as error:
            raise WorkerNotRegistered(f"{record!r} does not respond: {type(error).__name__}") from None

    def stale(self, what: str, queue: str, generation: int) -> StaleCompletion:
        """Count a completion that is not sent, and return the error for its caller."""
        self.tables.counters.fenced += 1
        if self._find(queue, generation) is None:
            return StaleCompletion(f"generation {generation} of {queue!r} has ended")
        return StaleCompletion(f"{what} is not open on {queue!r} under generation {generation}")

    def _find(self, queue: str, generation: int) -> HandleRecord | None:
        record = self.tables.records.get(generation)
        return record if record is not None and record.queue == queue else None
