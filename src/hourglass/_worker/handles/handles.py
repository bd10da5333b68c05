"""The handles of one Application, as data that outlives the holder: the record of one handle, with the book of what is in
flight on it; the registrations of task queues; and the tables of them all.

The holder that started last listens to the tables. A handle whose tables were lost would go on polling and take tasks
along, so the tables survive a crash of the holder. Everything belongs to one loop. Must not know: how handles are opened,
and how their ends are carried out. Invariants:

- Generations and tokens never repeat, over the lives of all holders.
- What a handle delivers is entered in its book in the same step; an entry is taken out only by the caller that then sends
  its completion.
- A handle stays in the tables until it is closed or left behind.
- A registration that has ended never begins again, and says why it ended.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, Protocol, TypeVar

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
from hourglass.errors import (
    HourglassError,
)

T = TypeVar("T")


@dataclass(slots=True)
class Drain:
    """How far a handle's end has come."""

    deadlines: Deadlines
    quiet_since: float
    told_to_stop: bool = False
    unfinished: set[str] = field(default_factory=set)
    """Runs of which a local activity was ended by the drain, and not by itself: no workflow must hear of that end."""
    task: asyncio.Task[None] | None = None
    finalizing: asyncio.Task[None] | None = None


class ActivationBook:
    """The activations that the engine waits for, by run id: who has each, under which token it may be completed; and the runs
    that have closed and are not evicted yet, with what waits for that: from a run's terminal command to its eviction the
    ends of its local activities are held back, for the engine would record them behind the end of the run, and refuse the task.
    """

    def __init__(self, next_token: Callable[[], int]) -> None:
        self.open: dict[str, InFlight[Activation]] = {}
        self.closed: dict[str, list[Callable[[], object]]] = {}
        self._next_token = next_token

    def keep(self, item: Activation, /) -> None:
        """It has come, and nothing is at it yet."""
        self.open[item.run_id] = Kept(item, self._next_token())

    def close(self, run_id: str) -> None:
        """A run has closed: hold back what comes of it, until it is evicted."""
        self.closed.setdefault(run_id, [])

    def when_evicted(self, run_id: str, then: Callable[[], object]) -> None:
        """Go on once the run, if it has closed, is evicted."""
        held = self.closed.get(run_id)
        if held is None:
            then()
        else:
            held.append(then)

    def evicted(self, run_id: str) -> None:
        """A run was evicted: what waits for that goes on."""
        for then in self.closed.pop(run_id, ()):
            then()


class AttemptBook:
    """The attempts whose end the engine waits for, by task token. Cancellations need no answer: only the inbox keeps them."""

    def __init__(self, next_token: Callable[[], int]) -> None:
        self.open: dict[bytes, InFlight[ActivityItem]] = {}
        self._next_token = next_token

    def keep(self, item: ActivityItem, /) -> None:
        """It has come, and nothing is at it yet."""
        if isinstance(item, ActivityTask):
            self.open[item.token] = Kept(item, self._next_token())


@dataclass(frozen=True, kw_only=True)
class HandleContext:
    """What a record is given by the tables it stands in."""

    next_token: Callable[[], int]
    now_ns: Callable[[], int]
    broken: Callable[[HandleRecord, BaseException], None]


class PendingCall(Protocol):
    """A completion that its handle has not taken yet."""

    def abandon(self) -> object:
        """Stop waiting for it, because the handle is left behind. The call itself goes on."""
        ...


class PendingCompletion(PendingCall, Protocol):
    """The completion of a workflow task that its handle has not taken yet."""

    following: PendingCompletion | None
    """The next completion of the same run, which is sent after this one."""

    def send(self) -> None:
        """Send it now."""
        ...


class HandleRecord:
    """One open handle: its state, its inboxes, the items in flight, and the completions that it has not taken yet.

    It is all that a drain needs, so it outlives the holder that opened the handle.
    """

    def __init__(
        self,
        generation: int,
        config: HandleConfig,
        handle: Handle,
        connection: Connection,
        around: HandleContext,
    ) -> None:
        self.queue = config.task_queue
        self.generation = generation
        self.config = config
        self.handle = handle
        self.connection = connection
        self.state = HandleState.CONNECTING
        self.changed = Condition()
        """For its drain, which waits for answers, calls and polls."""
        self.opened_ns = around.now_ns()
        self.drain: Drain | None = None
        self.spare: asyncio.TimerHandle | None = None
        """Set while it serves no registration and its worker may come back: the timer that ends the wait."""
        self.trusted = True
        self.calls: set[PendingCall] = set()
        self.tails: dict[str, PendingCompletion] = {}
        """The last completion of each run that its handle has not taken yet."""
        self.next_token = around.next_token
        self.runs = ActivationBook(around.next_token)
        self.attempts = AttemptBook(around.next_token)
        self._around = around
        notify = self.changed.notify_all
        self.activations = Inbox(handle, WorkKind.WORKFLOWS, self.runs.keep, notify)
        self.activities = Inbox(handle, WorkKind.ACTIVITIES, self.attempts.keep, notify)

    def start(self) -> None:
        """Have the handle deliver."""
        self.handle.start(self.activations.receive, self.activities.receive, self._ended)

    def _ended(self, kind: WorkKind, why: Exception) -> None:
        (self.activations if kind is WorkKind.WORKFLOWS else self.activities).finish(why)
        self._around.broken(self, why)

    def __repr__(self) -> str:
        return f"<HandleRecord {self.queue!r} generation {self.generation} {self.state.value}>"

    def inboxes(self) -> Iterator[Inbox[Any]]:
        """Both inboxes."""
        yield self.activations
        yield self.activities

    @property
    def received(self) -> int:
        """How many items it gave so far."""
        return self.activations.received + self.activities.received

    @property
    def healthy(self) -> bool:
        """Whether it could go on serving."""
        return (
            self.state is HandleState.ACTIVE
            and self.trusted
            and all(inbox.end is None for inbox in self.inboxes())
        )

    def stop_waiting(self) -> None:
        """Its patience with a worker that has gone is over, one way or another."""
        if self.spare is not None:
            self.spare.cancel()
            self.spare = None

    def hears(self, signal: HandleSignal) -> None:
        """Move on in its life."""
        self.state = advance(self.state, signal)

    def detach(self) -> None:
        """Keep what arrives from now on, and wake the poll loops: they find their registration ended, or another handle."""
        for inbox in self.inboxes():
            inbox.detach()
            inbox.changed.notify_all()


class AlreadyRegistered(HourglassError):
    """A worker serves this task queue already, or is about to."""


class WorkerNotRegistered(HourglassError):
    """No worker is registered for this task queue, or the handle that was meant is gone."""


class StaleCompletion(WorkerNotRegistered):
    """A completion for something that is no longer open under this generation and token; it was not sent."""


class Registration:
    """A worker's wish that a task queue be served. It points to the handle that serves it now, if there is one."""

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
        """Whether its worker no longer wants this queue served."""
        return self._end is not None

    def check(self) -> None:
        """Raise what its end means to callers that wait on it."""
        if self._end is not None:
            kind, message = self._end
            raise kind(message)

    def finish(self, kind: type[HourglassError], message: str) -> HandleRecord | None:
        """End it, with what its waiters are to hear; returns the handle that served it."""
        if self._end is not None:
            return None
        self._end = (kind, message)
        if self.unwatch is not None:
            self.unwatch()
        record, self.current = self.current, None
        self.changed.notify_all()
        return record

    def serve(self, record: HandleRecord) -> None:
        """From now on this handle serves it."""
        self.current, self.was_active = record, True
        self.changed.notify_all()


logger = logging.getLogger("hourglass.bridge")


@dataclass(slots=True)
class Counters:
    """What happened so far, over the lives of all holders."""

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


class Listener(Protocol):
    """Hears from the tables what happens to handles: the holder that started last."""

    def handle_broke(self, record: HandleRecord, error: BaseException) -> None:
        """An active handle has ended by itself, or a completion failed for good."""
        ...

    def attempt_cancelled(self, record: HandleRecord, cancel: ActivityCancel) -> None:
        """An attempt should stop, and no poll loop is there any more that would dispatch that."""
        ...

    def handle_ended(self, record: HandleRecord) -> None:
        """A handle is closed or left behind: its generation will not be heard of again."""
        ...

    def run_evicted(self, record: HandleRecord, run_id: str) -> None:
        """A run was forgotten by its engine, and its eviction was not dispatched, or not answered in time."""
        ...

    def item_arrived(self, record: HandleRecord, item: Activation | ActivityItem) -> None:
        """A handle that drains has brought what is to be dispatched all the same, though no receiver is attached."""
        ...

    def too_many_abandoned(self) -> None:
        """So many handles were left behind that what is below them cannot be trusted."""
        ...


class HandleTables:
    """Every registration, every handle that is not closed, the tasks that work on them, and the counters."""

    def __init__(self, *, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self.registrations: dict[str, Registration] = {}
        self.records: dict[int, HandleRecord] = {}
        self.opening: list[tuple[Connection, str]] = []
        self.farewells: set[str] = set()
        self.counters = Counters()
        self.changed = Condition()
        self.epoch = 0
        self.shared: Connection | None = None
        self.listener: Listener | None = None
        self.now_ns = now_ns
        self._left_behind = 0
        self._generations = itertools.count(1)
        self._tokens = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._bounded: set[asyncio.Task[Any]] = set()
        self._patience: dict[float, CallDeadlines] = {}
        self.set_limits(HandleLimits())
        self._around = HandleContext(
            next_token=self._tokens.__next__, now_ns=now_ns, broken=self.handle_broke
        )

    def enter(self, config: HandleConfig, handle: Handle, connection: Connection) -> HandleRecord:
        """Write down a handle that was just opened."""
        record = HandleRecord(next(self._generations), config, handle, connection, self._around)
        self.records[record.generation] = record
        self.counters.opened += 1
        record.start()
        return record

    def of_queue(self, queue: str) -> list[HandleRecord]:
        """The handles of a queue, the oldest first."""
        return [record for record in self.records.values() if record.queue == queue]

    def distrust(self) -> None:
        """No handle of now is to be adopted: what is below them is made anew."""
        for record in self.records.values():
            record.trusted = False

    def handle_broke(self, record: HandleRecord, error: BaseException) -> None:
        """Tell the holder, unless the handle is at its end anyway."""
        if record.state is HandleState.ACTIVE and self.listener is not None:
            tell(self.listener.handle_broke, record, error)

    def leave(self, record: HandleRecord) -> None:
        """Strike out a handle whose life is over."""
        if self.records.pop(record.generation, None) is None:
            return
        for run_id in tuple(record.runs.closed):  # with its handle a run is gone
            tell(record.runs.evicted, run_id)
        if record.state is HandleState.ABANDONED:
            self.counters.abandoned += 1
            self._left_behind += 1
        else:
            self.counters.closed += 1
        self.let_go(record.connection)
        if self.listener is not None:
            tell(self.listener.handle_ended, record)
            if self._left_behind > self.limits.max_abandoned:
                self._left_behind = 0
                tell(self.listener.too_many_abandoned)
        self.changed.notify_all()

    def is_used(self, connection: Connection, queue: str | None = None) -> bool:
        """Whether a handle, or one of this queue, lives on this connection or is being opened on it."""
        used = [(record.connection, record.queue) for record in self.records.values()] + self.opening
        return any(each is connection and queue in (None, whose) for each, whose in used)

    def let_go(self, connection: Connection) -> None:
        """Close a connection that was made for a handle and serves no other."""
        if connection is not self.shared and not self.is_used(connection):
            self.spawn(self._close(connection), bounded=True)

    async def _close(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self.limits.connect):
                await connection.close()
        except Exception as error:
            logger.warning("a connection to %s did not close: %s", connection.target, type(error).__name__)

    def working_connection(self, otherwise: Connection) -> Connection:
        """The connection of the newest active handle, which is the likeliest to work."""
        for record in reversed(self.records.values()):
            if record.state is HandleState.ACTIVE:
                return record.connection
        return self.shared or otherwise

    def set_limits(self, limits: HandleLimits) -> None:
        """From now on these hold."""
        self.limits = limits
        self.completing = self.patience(limits.completion)
        """The deadlines of completions that are on their way."""
        self.reporting = self.patience(limits.resend)
        """Those of the ends of attempts, which are then sent again."""

    def patience(self, limit: float) -> CallDeadlines:
        """The timer for all calls with this limit in seconds."""
        patience = self._patience.get(limit)
        if patience is None:
            patience = self._patience[limit] = CallDeadlines(limit)
        return patience

    @property
    def busy(self) -> bool:
        """Whether a handle is not closed yet, or something is under way that ends by itself in time."""
        return bool(self.records or self._bounded)

    def spawn(self, work: Coroutine[Any, Any, T], *, bounded: bool = False) -> asyncio.Task[T]:
        """Run something that belongs to the tables: no holder's death ends it. `bounded` if it keeps a time
        limit itself.
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


def tell(callback: Callable[..., object], *arguments: object) -> None:
    """Call a listener whose failure must not harm the tables."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a callback of the bridge failed")
