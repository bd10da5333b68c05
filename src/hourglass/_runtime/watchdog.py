"""The watchdog: looks every few seconds for what should be impossible, and mends what stays so for too long.

Nothing here is on the way of any work: every part has its own recovery, and this catches what falls between them.
Such a worker looks healthy and does nothing. Three things are suspicious: a handle on which no loop polls, an item
handed out that no job has in work, and a queue without a Worker. A suspicion is mended only after it was seen
unchanged at every look for the whole patience. Whether the engine sees us is looked for in `sightings`, whether it
answers at all in `reachability`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from hourglass._bridge.handles import HandleRecord, HandleState
from hourglass._bridge.sending import fail_attempt, fail_run
from hourglass._runtime.reachability import watch_reachability
from hourglass._runtime.sightings import watch_sightings
from hourglass._supervision import Context, SupervisionError
from hourglass._supervision.spec import Start

if TYPE_CHECKING:
    from hourglass._runtime.application import Application

logger = logging.getLogger("hourglass.worker")

LAUNCHER = "Application/Subsystem/WorkerLauncher"
_REASON = "nothing in this worker was at it any more"


@dataclass(frozen=True, kw_only=True)
class WatchLimits:
    """How often the watchdog looks, and how long something must look wrong before it is mended, in seconds."""

    interval: float = 5.0
    patience: float = 30.0


@dataclass(frozen=True, slots=True)
class NobodyPolls:
    """No poll is out on an active handle, and nothing has arrived since the last look."""

    queue: str
    generation: int
    kind: str
    received: int


@dataclass(frozen=True, slots=True)
class Orphan:
    """The engine waits for an answer, and no task is at it. `key` is a run's id or an attempt's token."""

    queue: str
    generation: int
    key: str | bytes = field(repr=False)
    token: int = 0


@dataclass(frozen=True, slots=True)
class NoWorker:
    """A queue should be served and has no Worker, not even one that waits to be started again."""

    queue: str


Suspicion: TypeAlias = NobodyPolls | Orphan | NoWorker


class Patience:
    """Remembers since when each thing looks wrong. Pure but for that; the time is given."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[Suspicion, float] = {}

    def overdue(self, seen: Iterable[Suspicion], now: float) -> list[Suspicion]:
        """What looks wrong for too long; it is then forgotten, and has the whole patience again."""
        self._since = {each: self._since.get(each, now) for each in seen}
        late = [each for each, since in self._since.items() if now - since >= self._limit]
        for each in late:
            del self._since[each]
        return late


def watchdog(app: Application) -> Start:
    """The body of the Watchdog's process; it asks the engine beside its own looks."""

    async def body(context: Context) -> None:
        patience = Patience(app.watch.patience)
        await context.started()
        loop = asyncio.get_running_loop()
        asking = [loop.create_task(watch_sightings(app)), loop.create_task(watch_reachability(app))]
        context.process.monitor(lambda _: [each.cancel() for each in asking])
        while True:
            await asyncio.sleep(app.watch.interval)
            look(app, patience, context.node.clock.now())

    return body


def look(app: Application, patience: Patience, now: float) -> None:
    """One look: mend what has looked wrong for too long."""
    for suspicion in patience.overdue(suspicions(app), now):
        logger.error("the watchdog mends: %r", suspicion)
        _mend(app, suspicion)


def suspicions(app: Application) -> Iterator[Suspicion]:
    """What looks wrong at this instant. Most of it is only under way."""
    served = {view.id for view in app.workers.children()}
    for services in app.configured():
        if services.child_id not in served:
            yield NoWorker(services.queue)
    for record in app.tables.records.values():
        if record.state is HandleState.ACTIVE:
            yield from _suspicions_of(record)


def _suspicions_of(record: HandleRecord) -> Iterator[Suspicion]:
    queue, generation = record.queue, record.generation
    for kind, line in (("workflow", record.activations), ("activity", record.activities)):
        if record.spare is None and not line.is_attended:
            yield NobodyPolls(queue, generation, kind, line.received)
    for run_id, run in record.runs.open.items():
        if run.is_dispatched and not run.is_in_work:
            yield Orphan(queue, generation, run_id, run.token)
    for token, attempt in record.attempts.open.items():
        if attempt.is_dispatched and not attempt.is_in_work:
            yield Orphan(queue, generation, token)


def _mend(app: Application, suspicion: Suspicion) -> None:
    match suspicion:
        case NobodyPolls(queue, generation):
            app.tables.records[generation].trusted = False
            worker = app.registry.whereis(queue)
            if worker is not None:
                worker.kill()  # its successor registers anew, with a new handle and new loops
        case Orphan(_, generation, key):
            # As the drain of a handle would: answered as failed, the engine begins anew.
            record = app.tables.records[generation]
            if isinstance(key, str):
                fail_run(app.tables, record, key, _REASON)
            else:
                fail_attempt(app.tables, record, key, _REASON)
        case NoWorker():
            try:
                app.require_tree().kill(LAUNCHER)  # it launches what is missing
            except SupervisionError:
                pass  # it is not running: then it will
