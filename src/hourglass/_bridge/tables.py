"""The tables of one Application's handles: all that must outlive a crash of the holder, or its handles become
ghosts that keep polling and take tasks with them.

They hold every registration, every handle that is not closed, the tasks that work on them, and the counters.
They decide nothing; the holder that started last listens to them. All of it belongs to one loop. Invariants:
generations and tokens never repeat, whoever hands them out; a handle stays in `records` until it is closed or
left behind.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hourglass._bridge.begun import Patience
from hourglass._bridge.bell import Bell
from hourglass._bridge.handle_life import HandleState, Limits
from hourglass._bridge.handle_record import HandleRecord, Surroundings
from hourglass._bridge.poll_line import Ticket
from hourglass._bridge.registration import Registration
from hourglass._contract.handle import ActivityCancel, Handle, HandleConfig
from hourglass._contract.service import Connection

T = TypeVar("T")

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
    """Whom the tables tell what happens to handles: the holder that started last."""

    def handle_broke(self, record: HandleRecord, error: BaseException) -> None:
        """An active handle's poll or completion failed for good, or it shut down unasked."""
        ...

    def attempt_cancelled(self, record: HandleRecord, cancel: ActivityCancel) -> None:
        """An attempt should stop, and there is no poll any more that would say so."""
        ...

    def handle_ended(self, record: HandleRecord) -> None:
        """A handle is closed or left behind: its generation will not be heard of again."""
        ...

    def run_evicted(self, record: HandleRecord, run_id: str) -> None:
        """A run was forgotten by its engine, and nobody was handed an eviction, or nobody answered it in time."""
        ...

    def item_arrived(self, record: HandleRecord, ticket: Ticket[Any]) -> None:
        """A handle that drains has brought something that is to be dispatched all the same, though nobody polls it."""
        ...

    def too_many_abandoned(self) -> None:
        """So many handles were left behind that what is below them cannot be trusted."""
        ...


class HandleTables:
    """See the module."""

    def __init__(self, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.registrations: dict[str, Registration] = {}
        self.records: dict[int, HandleRecord] = {}
        self.opening: list[tuple[Connection, str]] = []
        self.farewells: set[str] = set()
        self.counters = Counters()
        self.bell = Bell()
        self.epoch = 0
        self.limits = Limits()
        self.shared: Connection | None = None
        self.listener: Listener | None = None
        self.now_ns = now_ns
        self._left_behind = 0
        self._generations = itertools.count(1)
        self._tokens = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._bounded: set[asyncio.Task[Any]] = set()
        self._patience: dict[float, Patience] = {}
        self._around = Surroundings(next_token=self._tokens.__next__, now_ns=now_ns, broken=self.handle_broke)

    # --- handles ------------------------------------------------------------------------------------------

    def enter(self, config: HandleConfig, handle: Handle, connection: Connection) -> HandleRecord:
        """Write down a handle that was just opened."""
        record = HandleRecord(next(self._generations), config, handle, connection, self._around)
        self.records[record.generation] = record
        self.counters.opened += 1
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
        self.bell.ring()

    # --- connections --------------------------------------------------------------------------------------

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

    def patience(self, limit: float) -> Patience:
        """Who tells of all that takes longer than so many seconds."""
        patience = self._patience.get(limit)
        if patience is None:
            patience = self._patience[limit] = Patience(limit)
        return patience

    # --- tasks --------------------------------------------------------------------------------------------

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
        self.bell.ring()


def tell(callback: Callable[..., object], *arguments: object) -> None:
    """Call somebody who must not be able to harm us."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a callback of the bridge failed")
