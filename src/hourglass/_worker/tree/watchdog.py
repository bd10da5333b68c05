"""The watchdog: checks every few seconds for states that should be impossible, and repairs the states that persist.

Normal processing does not depend on the watchdog: every part recovers automatically. The watchdog covers failures
between the parts, after which a worker would look healthy but do nothing. Three states are suspicious: a handle without
a poll loop, an item from the engine without a job, and a queue without a Worker. A suspicion leads to a repair only if
it was present, unchanged, at every check during the configured time. In addition, the engine is asked whether it sees
our polls (`sightings`), whether it answers (`reachability`), and which runs it reports as parked (`parked_watch`).
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from hourglass._supervision import Context, SupervisionError
from hourglass._supervision.spec import Start
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.life import HandleState
from hourglass._worker.handles.sending import fail_attempt, fail_run
from hourglass._worker.tree.parked_watch import watch_parked
from hourglass._worker.tree.reachability import watch_reachability
from hourglass._worker.tree.sightings import watch_sightings

if TYPE_CHECKING:
    from hourglass._worker.tree.application import Application

logger = logging.getLogger("hourglass.worker")

LAUNCHER = "Application/Subsystem/WorkerLauncher"
_REASON = "no task of this worker was processing it"


@dataclass(frozen=True, kw_only=True)
class WatchLimits:
    """The interval of the watchdog's checks, and how long a state must be suspicious before it is repaired, in seconds."""

    interval: float = 5.0
    patience: float = 30.0


@dataclass(frozen=True, slots=True)
class NobodyPolls:
    """An active handle has no poll loop that receives its items, and no item has arrived since the last check."""

    queue: str
    generation: int
    kind: str
    received: int


@dataclass(frozen=True, slots=True)
class Orphan:
    """The engine waits for the completion of an item, but no job works on the item. `key` is a run id or a task token."""

    queue: str
    generation: int
    key: str | bytes = field(repr=False)
    token: int = 0


@dataclass(frozen=True, slots=True)
class NoWorker:
    """A queue should be served but has no Worker, not even a Worker that is about to be restarted."""

    queue: str


Suspicion: TypeAlias = NobodyPolls | Orphan | NoWorker


class Suspicions:
    """The time at which each current suspicion was first seen. Pure except for this record. The caller passes the time."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[Suspicion, float] = {}

    def overdue(self, seen: Iterable[Suspicion], now: float) -> list[Suspicion]:
        """Return the suspicions that have lasted too long. Forget them, so that a new suspicion must last for the full
        time again.
        """
        self._since = {suspicion: self._since.get(suspicion, now) for suspicion in seen}
        late = [suspicion for suspicion, since in self._since.items() if now - since >= self._limit]
        for suspicion in late:
            del self._since[suspicion]
        return late


def watchdog(app: Application) -> Start:
    """Return the body of the Watchdog's process, which also queries the engine in separate tasks."""

    async def body(context: Context) -> None:
        suspicions_so_far = Suspicions(app.watch.patience)
        await context.started()
        loop = asyncio.get_running_loop()
        watches = (watch_sightings(app), watch_reachability(app), watch_parked(app))
        queries = [loop.create_task(watch) for watch in watches]
        context.process.monitor(lambda _: [query.cancel() for query in queries])
        while True:
            await sleep(app.watch.interval)
            check(app, suspicions_so_far, context.node.clock.now())

    return body


def check(app: Application, suspicions_so_far: Suspicions, now: float) -> None:
    """Check once, and repair each state that has been suspicious for too long."""
    for suspicion in suspicions_so_far.overdue(suspicions(app), now):
        logger.error("the watchdog repairs: %r", suspicion)
        _repair(app, suspicion)


def suspicions(app: Application) -> Iterator[Suspicion]:
    """Yield all current suspicions. Most of them are only transitional states."""
    served = {view.id for view in app.workers.children()}
    for services in app.configured():
        if services.child_id not in served:
            yield NoWorker(services.queue)
    for record in app.tables.records.values():
        if record.state is HandleState.ACTIVE:
            yield from _handle_suspicions(record)


def _handle_suspicions(record: HandleRecord) -> Iterator[Suspicion]:
    queue, generation = record.queue, record.generation
    for inbox in record.inboxes():
        if record.spare is None and not inbox.is_attended:
            yield NobodyPolls(queue, generation, inbox.kind.value, inbox.received)
    for run_id, run in record.runs.open.items():
        if run.is_dispatched and not run.is_in_work:
            yield Orphan(queue, generation, run_id, run.token)
    for token, attempt in record.attempts.open.items():
        if attempt.is_dispatched and not attempt.is_in_work:
            yield Orphan(queue, generation, token)


def _repair(app: Application, suspicion: Suspicion) -> None:
    match suspicion:
        case NobodyPolls(queue, generation):
            app.tables.records[generation].trusted = False
            worker = app.registry.whereis(queue)
            if worker is not None:
                worker.kill()  # the restarted Worker registers again, with a new handle and new loops
        case Orphan(_, generation, key):
            # As when a handle drains: after a failure the engine starts the task again.
            record = app.tables.records[generation]
            if isinstance(key, str):
                fail_run(app.tables, record, key, _REASON)
            else:
                fail_attempt(app.tables, record, key, _REASON)
        case NoWorker():
            try:
                app.require_tree().kill(LAUNCHER)  # the restarted launcher starts the missing Workers
            except SupervisionError:
                pass  # the launcher is not running: its start will do the same
