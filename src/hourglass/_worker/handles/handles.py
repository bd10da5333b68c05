"""The handles of one Application, as data that outlives the holder: the record of each handle with the books of its
open items, the registrations of task queues, and the tables that contain them all.

The holder that was started last replaces broken handles. The tables survive a crash of the holder, because a lost
handle would keep polling and receive tasks that nobody executes. Everything belongs to one event loop. Must not know:
the opening and the draining of handles. Invariants:

- Generations and tokens are never reused, not even by later holders.
- An item is entered in the book in the same step in which the handle delivers the item. Only the caller that sends the
  item's completion removes the entry.
- A handle stays in the tables until it is closed or abandoned.
- A registration that has ended never starts again, and records why it ended.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityItem,
    ActivityTask,
    Handle,
    HandleConfig,
    WorkKind,
)
from hourglass._contract.service import Connection
from hourglass._evaluator.events import Activation
from hourglass._worker.handles.calls import CallDeadlines, Condition
from hourglass._worker.handles.inbox import Inbox, InFlight, Kept
from hourglass._worker.handles.life import Deadlines, HandleLimits, HandleSignal, HandleState, advance
from hourglass.errors import HourglassError

if TYPE_CHECKING:
    from hourglass._worker.handles.sending import PendingCompletion, PendingResult

T = TypeVar("T")


@dataclass(slots=True)
class Drain:
    """The state of a handle's drain."""

    deadlines: Deadlines
    quiet_since: float
    stop_requested: bool = False
    unfinished: set[str] = field(default_factory=set)
    """The runs whose local activity the drain has stopped. The workflow must not receive the result of the stopped
    attempt.
    """
    task: asyncio.Task[None] | None = None
    finalizing: asyncio.Task[None] | None = None


class ActivationBook:
    """The open activations of a handle by run id, each with its job and token, and the closed runs that are not evicted
    yet.

    After a run's terminal command, the results of its local activities are held back until the run is evicted.
    Otherwise the engine would record the results after the end of the run, and reject the task.
    """

    def __init__(self, next_token: Callable[[], int]) -> None:
        self.open: dict[str, InFlight[Activation]] = {}
        self.closed: dict[str, list[Callable[[], object]]] = {}
        self._next_token = next_token

    def keep(self, item: Activation, /) -> None:
        """Enter an item that has arrived and is not dispatched yet."""
        self.open[item.run_id] = Kept(item, self._next_token())

    def close(self, run_id: str) -> None:
        """Mark the run as closed: the results of its local activities wait until it is evicted."""
        self.closed.setdefault(run_id, [])

    def when_evicted(self, run_id: str, then: Callable[[], object]) -> None:
        """Call `then` when the closed run is evicted, or immediately if the run is not waiting for an eviction."""
        held = self.closed.get(run_id)
        if held is None:
            then()
        else:
            held.append(then)

    def evicted(self, run_id: str) -> None:
        """Call the callbacks that wait for the run's eviction."""
        for then in self.closed.pop(run_id, ()):
            then()


class AttemptBook:
    """The attempts whose results the engine waits for, by task token. Cancellations need no answer, so only the inbox
    keeps them.
    """

    def __init__(self, next_token: Callable[[], int]) -> None:
        self.open: dict[bytes, InFlight[ActivityItem]] = {}
        self._next_token = next_token

    def keep(self, item: ActivityItem, /) -> None:
        """Enter an item that has arrived and is not dispatched yet."""
        if isinstance(item, ActivityTask):
            self.open[item.token] = Kept(item, self._next_token())


class HandleRecord:
    """One open handle: its state, its inboxes, its open items, and the completions that it has not accepted yet.

    A record contains everything that a drain needs, because it outlives the holder that opened the handle.
    """

    def __init__(
        self,
        generation: int,
        config: HandleConfig,
        handle: Handle,
        connection: Connection,
        tables: HandleTables,
    ) -> None:
        self.queue = config.task_queue
        self.generation = generation
        self.config = config
        self.handle = handle
        self.connection = connection
        self.state = HandleState.CONNECTING
        self.changed = Condition()
        """Wakes the drain, which waits for answers, calls and polls."""
        self.opened_ns = tables.now_ns()
        self.drain: Drain | None = None
        self.spare: asyncio.TimerHandle | None = None
        """The timer that ends the wait for a worker to return; None while the handle serves a registration."""
        self.trusted = True
        self.calls: set[PendingCompletion | PendingResult] = set()
        self.tails: dict[str, PendingCompletion] = {}
        """The last completion of each run that the handle has not accepted yet."""
        self.next_token = tables.next_token
        self.runs = ActivationBook(tables.next_token)
        self.attempts = AttemptBook(tables.next_token)
        self._broken = tables.handle_broke
        notify = self.changed.notify_all
        self.activations = Inbox(handle, WorkKind.WORKFLOWS, self.runs.keep, notify)
        self.activities = Inbox(handle, WorkKind.ACTIVITIES, self.attempts.keep, notify)

    def start(self) -> None:
        """Start the handle, which then delivers its items to the inboxes."""
        self.handle.start(self.activations.receive, self.activities.receive, self._ended)

    def _ended(self, kind: WorkKind, why: Exception) -> None:
        (self.activations if kind is WorkKind.WORKFLOWS else self.activities).finish(why)
        self._broken(self, why)

    def __repr__(self) -> str:
        return f"<HandleRecord {self.queue!r} generation {self.generation} {self.state.value}>"

    def inboxes(self) -> Iterator[Inbox[Any]]:
        """Yield the inboxes of activations and of activity tasks."""
        yield self.activations
        yield self.activities

    @property
    def received(self) -> int:
        """The number of items that the handle has delivered."""
        return self.activations.received + self.activities.received

    @property
    def healthy(self) -> bool:
        """Whether the handle can keep serving: it is active and trusted, and delivers items of both kinds."""
        return (
            self.state is HandleState.ACTIVE
            and self.trusted
            and all(inbox.end is None for inbox in self.inboxes())
        )

    def stop_waiting(self) -> None:
        """Stop waiting for a worker to return."""
        if self.spare is not None:
            self.spare.cancel()
            self.spare = None

    def apply_signal(self, signal: HandleSignal) -> None:
        self.state = advance(self.state, signal)

    def detach(self) -> None:
        """Make the inboxes keep the items that arrive from now on. Wake the poll loops, which find that the
        registration has ended or has another handle.
        """
        for inbox in self.inboxes():
            inbox.detach()
            inbox.changed.notify_all()


class AlreadyRegistered(HourglassError):
    """Another worker already serves this task queue, or is being registered for it."""


class WorkerNotRegistered(HourglassError):
    """No worker is registered for this task queue, or the handle of the call is closed."""


class StaleCompletion(WorkerNotRegistered):
    """The completion belongs to no open item with this generation and token. It was not sent."""


class Registration:
    """A worker's registration for a task queue. `current` is the handle that serves the registration, if there is one."""

    def __init__(self, config: HandleConfig) -> None:
        self.queue = config.task_queue
        self.config = config
        self.current: HandleRecord | None = None
        self.opening: asyncio.Task[None] | None = None
        self.was_active = False
        self.setbacks = 0
        self.changed = Condition()
        self.unwatch: Callable[[], object] | None = None
        self._end: tuple[type[HourglassError], str] | None = None

    def __repr__(self) -> str:
        return f"<Registration {self.queue!r}{' ended' if self.has_ended() else ''}>"

    def has_ended(self) -> bool:
        return self._end is not None

    def check(self) -> None:
        """Raise the error with which the registration ended, if it has."""
        if self._end is not None:
            kind, message = self._end
            raise kind(message)

    def finish(self, kind: type[HourglassError], message: str) -> HandleRecord | None:
        """End the registration. From now on `check` raises an error of this kind. Return the handle that served the
        registration, if any.
        """
        if self._end is not None:
            return None
        self._end = (kind, message)
        if self.unwatch is not None:
            self.unwatch()
        record, self.current = self.current, None
        self.changed.notify_all()
        return record

    def serve(self, record: HandleRecord) -> None:
        self.current, self.was_active = record, True
        self.changed.notify_all()


logger = logging.getLogger("hourglass.bridge")


@dataclass(slots=True)
class Counters:
    """Counts of events since the process started, across all holders."""

    opened: int = 0
    recycles: int = 0
    fenced: int = 0
    forced_failures: int = 0
    refused_completions: int = 0
    unanswered_completions: int = 0
    resent: int = 0
    closed: int = 0
    abandoned: int = 0
    takeovers: int = 0
    adopted: int = 0


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class HandleEvents:
    """The callbacks for events of handles that no poll loop can receive."""

    attempt_cancelled: Callable[[HandleRecord, ActivityCancel], object] = _ignore
    """An attempt should stop."""
    ended: Callable[[HandleRecord], object] = _ignore
    """A handle is closed or abandoned: nothing more will come from its generation."""
    run_evicted: Callable[[HandleRecord, str], object] = _ignore
    """The engine has forgotten a run, whose eviction was not dispatched or not answered in time."""
    item_arrived: Callable[[HandleRecord, Activation | ActivityItem], object] = _ignore
    """An item of a draining handle. A callback that dispatches the item enters the job in the record's book."""
    too_many_abandoned: Callable[[], object] = _ignore
    """So many handles were abandoned that the connection below them is probably broken."""


class HandleTables:
    """All registrations, all handles that are not closed, the tasks that work on them, and the counters."""

    def __init__(self, *, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self.registrations: dict[str, Registration] = {}
        self.records: dict[int, HandleRecord] = {}
        self.opening: list[tuple[Connection, str]] = []
        self.unregistered: set[str] = set()
        self.counters = Counters()
        self.changed = Condition()
        self.epoch = 0
        self.shared: Connection | None = None
        self.events = HandleEvents()
        self.replace_broken: Callable[[HandleRecord, str], object] = _ignore
        """Replaces a broken handle. Set by the holder that was started last."""
        self.now_ns = now_ns
        self._left_behind = 0
        self._generations = itertools.count(1)
        self.next_token = itertools.count(1).__next__
        self._tasks: set[asyncio.Task[Any]] = set()
        self._bounded: set[asyncio.Task[Any]] = set()
        self._patience: dict[float, CallDeadlines] = {}
        self.set_limits(HandleLimits())

    def enter(self, config: HandleConfig, handle: Handle, connection: Connection) -> HandleRecord:
        """Add and start a handle that was just opened. Return its record."""
        record = HandleRecord(next(self._generations), config, handle, connection, self)
        self.records[record.generation] = record
        self.counters.opened += 1
        record.start()
        return record

    def of_queue(self, queue: str) -> list[HandleRecord]:
        return [record for record in self.records.values() if record.queue == queue]

    def distrust(self) -> None:
        """Exclude all current handles from adoption, because their connections may be broken."""
        for record in self.records.values():
            record.trusted = False

    def handle_broke(self, record: HandleRecord, error: BaseException) -> None:
        """Replace a broken handle, unless the handle is already ending."""
        if record.state is HandleState.ACTIVE:
            notify(self.replace_broken, record, type(error).__name__)

    def leave(self, record: HandleRecord) -> None:
        """Remove a handle that is closed or abandoned."""
        if self.records.pop(record.generation, None) is None:
            return
        for run_id in tuple(record.runs.closed):  # a run is evicted with its handle
            notify(record.runs.evicted, run_id)
        if record.state is HandleState.ABANDONED:
            self.counters.abandoned += 1
            self._left_behind += 1
        else:
            self.counters.closed += 1
        self.release(record.connection)
        notify(self.events.ended, record)
        if self._left_behind > self.limits.max_abandoned:
            self._left_behind = 0
            notify(self.events.too_many_abandoned)
        self.changed.notify_all()

    def is_used(self, connection: Connection, queue: str | None = None) -> bool:
        """Whether a handle, open or being opened, uses this connection. With `queue`, only handles of that queue count."""
        used = [(record.connection, record.queue) for record in self.records.values()] + self.opening
        return any(candidate is connection and queue in (None, name) for candidate, name in used)

    def release(self, connection: Connection) -> None:
        """Close a connection, unless it is the shared connection or a handle still uses it."""
        if connection is not self.shared and not self.is_used(connection):
            self.spawn(self._close(connection), bounded=True)

    async def _close(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self.limits.connect):
                await connection.close()
        except Exception as error:
            logger.warning("a connection to %s did not close: %s", connection.target, type(error).__name__)

    def working_connection(self, otherwise: Connection) -> Connection:
        """Return the connection of the newest active handle, which most likely works."""
        for record in reversed(self.records.values()):
            if record.state is HandleState.ACTIVE:
                return record.connection
        return self.shared or otherwise

    def set_limits(self, limits: HandleLimits) -> None:
        self.limits = limits
        self.completing = self.patience(limits.completion)
        """The deadlines of completions that handles have not accepted yet."""
        self.reporting = self.patience(limits.resend)
        """The deadlines of attempts' results. A result is sent again when its deadline passes."""

    def patience(self, limit: float) -> CallDeadlines:
        """Return the shared timer for all calls with this limit, in seconds."""
        patience = self._patience.get(limit)
        if patience is None:
            patience = self._patience[limit] = CallDeadlines(limit)
        return patience

    @property
    def busy(self) -> bool:
        """Whether a handle is still open, or a task with a time limit of its own is still running."""
        return bool(self.records or self._bounded)

    def spawn(self, work: Coroutine[Any, Any, T], *, bounded: bool = False) -> asyncio.Task[T]:
        """Start a task that belongs to the tables and survives the death of a holder. A `bounded` task has a time limit
        of its own.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        if bounded:
            self._bounded.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._bounded.discard(task)
        if not task.cancelled():
            task.exception()
        self.changed.notify_all()


def notify(callback: Callable[..., object], *arguments: object) -> None:
    """Call a callback. Log an exception that it raises, so that the work on the tables continues."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a callback of the bridge failed")
