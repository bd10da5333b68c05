"""The watchdog: looks every few seconds for what should be impossible, and mends what stays so for too long.

Nothing here is on the way of any work: every part has its own recovery, and this catches what falls between them.
Such a worker looks healthy and does nothing. Three things are suspicious: a handle on which no loop polls, an item
handed out that no job has in work, and a queue without a Worker. A suspicion is mended only after it was seen
unchanged at every look for the whole patience. Beside that the engine is asked whether it sees us (`Sightings`), and whether
it answers at all (`Reachability`), and which runs it reports as parked (`parked_watch`).
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hourglass._contract.deployments import DescribeNamespace, LastSeen
from hourglass._contract.handle import Shutdown
from hourglass._contract.service import Connection
from hourglass._supervision import Context, SupervisionError
from hourglass._supervision.spec import Start
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.holder import WorkerNotRegistered
from hourglass._worker.handles.life import HandleState
from hourglass._worker.handles.sending import fail_attempt, fail_run
from hourglass._worker.tree.parked_watch import watch_parked
from hourglass.errors import HourglassError, ServiceError

if TYPE_CHECKING:
    from hourglass._worker.tree.application import Application

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


class Suspicions:
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
        patience = Suspicions(app.watch.patience)
        await context.started()
        loop = asyncio.get_running_loop()
        watches = (watch_sightings(app), watch_reachability(app), watch_parked(app))
        asking = [loop.create_task(watch) for watch in watches]
        context.process.monitor(lambda _: [each.cancel() for each in asking])
        while True:
            await sleep(app.watch.interval)
            look(app, patience, context.node.clock.now())

    return body


def look(app: Application, patience: Suspicions, now: float) -> None:
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
    for inbox in record.inboxes():
        if record.spare is None and not inbox.is_attended:
            yield NobodyPolls(queue, generation, inbox.kind.value, inbox.received)
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


# --- whether the engine sees us -----------------------------------------------------------------------------
#
# A handle may say that it is active, have its polls out, and not reach the engine. Once a minute, and more often where
# something is suspicious, the engine is asked when it last saw us poll. Polls are renewed within a minute also where there is
# nothing to do, so an answer that stays the same for longer means that our polls do not arrive: the handle is recycled, over a
# fresh connection. The engine's clock and ours differ: all that counts is whether the answer moves. Nothing is concluded from an
# engine that does not answer, nor while we want no more work; a recycle that did not help is not repeated before we were seen
# again.


@dataclass(frozen=True, kw_only=True)
class SightLimits:
    """How often the engine is asked, how often where something is suspicious, and how long we may be unseen, in seconds."""

    ask: float = 60.0
    ask_again: float = 10.0
    unseen: float = 90.0
    answer: float = 5.0


class PollKind(NamedTuple):
    """One kind of poll on one handle."""

    queue: str
    generation: int
    activities: bool


class Sightings:
    """Remembers since when each answer has not moved. Pure but for that; the time is given."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[PollKind, tuple[int, float]] = {}
        self._mended: set[tuple[str, bool]] = set()

    def told(self, kind: PollKind, time_ns: int, now: float) -> bool:
        """The engine's answer; whether we are unseen for too long, and something should be done about it."""
        before = self._since.get(kind)
        if before is None or before[0] != time_ns:
            if before is not None:  # seen twice at different times: what was done has helped
                self._mended.discard((kind.queue, kind.activities))
            self._since[kind] = (time_ns, now)
            return False
        if now - before[1] < self._limit:
            return False
        del self._since[kind]
        again = (kind.queue, kind.activities) in self._mended
        self._mended.add((kind.queue, kind.activities))
        return not again

    def forget(self, kind: PollKind) -> None:
        """Nothing can be said of it now."""
        self._since.pop(kind, None)

    def keep(self, kinds: set[PollKind]) -> None:
        """All others are gone."""
        self._since = {kind: since for kind, since in self._since.items() if kind in kinds}

    def suspicious(self, now: float) -> bool:
        """Whether an answer has stayed the same for longer than one look explains."""
        return any(now - since >= self._limit / 2 for _, since in self._since.values())


class Blind(Exception):
    """This engine cannot tell which pollers it sees, or may not tell us."""


class Silent(Exception):
    """The engine does not answer over this connection."""


_BLIND = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED"})
_SILENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN"})


async def watch_sightings(app: Application) -> None:
    """Ask for as long as the engine can tell."""
    limits, sightings = app.sight, Sightings(app.sight.unseen)
    loop = asyncio.get_running_loop()
    asked, trouble = loop.time(), _trouble(app)
    while True:
        await sleep(limits.ask_again)
        now = loop.time()
        if now - asked < limits.ask and not sightings.suspicious(now) and trouble == _trouble(app):
            continue
        asked, trouble = now, _trouble(app)
        try:
            await look_for_us(app, sightings)
        except Blind:
            logger.debug("this engine does not tell whom it sees")
            return
        except Exception:
            logger.exception("the watchdog could not ask whether the engine sees us")


def _trouble(app: Application) -> int:
    """Grows when the engine does not take what we send."""
    counters = app.tables.counters
    return counters.unanswered_completions + counters.resent


async def look_for_us(app: Application, sightings: Sightings) -> None:
    """One look at every handle that serves; raises `Blind` where there is nothing to see."""
    kinds = dict(_kinds(app))
    sightings.keep(set(kinds))
    for kind, record in kinds.items():
        answer = None if _is_full(record, kind) else await _ask_when_seen(app, record, kind)
        if answer is None:
            sightings.forget(kind)
        elif sightings.told(kind, answer, asyncio.get_running_loop().time()):
            await _recycle(app, record, kind)


def _kinds(app: Application) -> Iterator[tuple[PollKind, HandleRecord]]:
    for registration in tuple(app.tables.registrations.values()):
        record = registration.current
        if record is None or not record.healthy:
            continue
        if record.config.workflows:
            yield PollKind(record.queue, record.generation, False), record
        if record.config.activities:
            yield PollKind(record.queue, record.generation, True), record


def _is_full(record: HandleRecord, kind: PollKind) -> bool:
    """Whether all slots are taken, so that the handle rightly does not poll."""
    config = record.config
    if kind.activities:
        return len(record.attempts.open) >= config.max_concurrent_activities
    return len(record.runs.open) >= config.max_concurrent_workflow_tasks


async def _ask_when_seen(app: Application, record: HandleRecord, kind: PollKind) -> int | None:
    """The engine's answer: over the handle's own connection, or over a fresh one if that is silent. None if there is none."""
    with suppress(Silent):
        return await _answer(app, record.connection, record, kind)
    logger.info("%r: its own connection does not answer", record)
    try:
        async with asyncio.timeout(app.limits.connect):
            fresh = await app.connect()
    except Exception:  # whatever it is, the engine cannot be reached
        return None
    try:
        return await _answer(app, fresh, record, kind)
    except Silent:
        return None
    finally:
        app.tables.let_go(fresh)


async def _answer(
    app: Application, connection: Connection, record: HandleRecord, kind: PollKind
) -> int | None:
    asked = LastSeen(
        task_queue=kind.queue,
        polled_by=record.config.identity or record.connection.identity,
        activities=kind.activities,
        rpc_timeout=app.sight.answer,
    )
    try:
        async with asyncio.timeout(2 * app.sight.answer):
            return (await connection.call(asked)).time_ns
    except ServiceError as error:
        if error.status in _BLIND:
            raise Blind from None
        if error.status not in _SILENT:
            return None  # it answers, though not this, and can be reached
        raise Silent from None
    except Exception:  # a deadline of ours, or a connection that is closed
        raise Silent from None


async def _recycle(app: Application, record: HandleRecord, kind: PollKind) -> None:
    what = "activities" if kind.activities else "workflow tasks"
    reason = f"the engine has not seen it poll for {what} for {app.sight.unseen:g} s"
    logger.error("the watchdog mends: %r: %s", record, reason)
    registration = app.tables.registrations.get(kind.queue)
    if registration is None or registration.current is not record:
        return  # it was replaced while we asked
    with suppress(WorkerNotRegistered, Shutdown, SupervisionError, TimeoutError):
        async with asyncio.timeout(app.limits.connect + app.limits.open):
            await app.holder.recycle(kind.queue, reason)


# --- whether the engine answers us --------------------------------------------------------------------------
#
# A poll that is out says nothing: it waits as patiently on a server that is gone. Every few seconds the engine is asked for our
# namespace, over each connection that a handle polls on. `/ready` and `/status` tell what came of it, and the log does once when
# the engine is lost and once when it is back; nothing is changed. An engine that cannot be asked (`UNIMPLEMENTED`, or a key that
# may not describe its namespace) counts as reachable, but only if it has never answered; one that is busy
# (`RESOURCE_EXHAUSTED`) answers.


@dataclass(frozen=True, kw_only=True)
class ReachLimits:
    """How often the engine is asked, and how long it may take to answer, in seconds: a loss shows within their sum."""

    interval: float = 3.0
    answer: float = 4.0


_BUSY = "RESOURCE_EXHAUSTED"
_CANNOT_BE_ASKED = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED"})
_NO_ANSWER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


@dataclass(frozen=True)
class Outage:
    """The engine does not serve us: why, for people, and since when. `kind` is the same for the same trouble."""

    kind: str
    reason: str
    since: float


class Reachability:
    """What the last answers said. Pure but for the log; the time is given."""

    def __init__(self) -> None:
        self.outage: Outage | None = None
        self._has_answered = False

    def answered(self, now: float) -> None:
        """The engine knows us and our namespace."""
        self._has_answered = True
        self._is_back(now)

    def _is_back(self, now: float) -> None:
        outage, self.outage = self.outage, None
        if outage is not None:
            logger.info("the engine answers again, after %.0f s", now - outage.since)

    def refused(self, error: BaseException, now: float) -> bool:
        """There was no answer, or not the right one. False: this engine cannot be asked, and counts as reachable."""
        status = error.status if isinstance(error, ServiceError) else "UNKNOWN"
        if status == _BUSY:
            # It is there, but has not said whether it can be asked: a file whose disk was full for a while cannot, and would be
            # taken for lost by its next answer.
            self._is_back(now)
            return True
        if status in _CANNOT_BE_ASKED and not self._has_answered:
            self.outage = None
            return False
        kind = "UNAVAILABLE" if status in _NO_ANSWER else status
        before = self.outage
        # Only our own errors are known to carry no secrets.
        reason = str(error) if isinstance(error, HourglassError) else f"it failed with {type(error).__name__}"
        self.outage = Outage(kind, reason, now if before is None else before.since)
        if before is None or before.kind != kind:
            logger.warning("the engine is lost: %s. This worker gets no work until it is back", reason)
        return True


async def watch_reachability(app: Application) -> None:
    """Ask for as long as the engine can be asked."""
    while True:
        if not await look_for_engine(app):
            logger.debug("this engine does not say whether it is there")
            return
        await sleep(app.reach.interval)


async def look_for_engine(app: Application) -> bool:
    """Ask once, over every connection that is polled on. False if this engine cannot be asked."""
    loop = asyncio.get_running_loop()
    asked = _connections(app)
    answers = await asyncio.gather(*[_ask(each, app.reach.answer) for each in asked], return_exceptions=True)
    still = _connections(app)  # one that was replaced meanwhile may have been closed under its question
    heard = [answer for each, answer in zip(asked, answers, strict=True) if each in still]
    errors = [answer for answer in heard if answer is not None]
    if not heard:
        return True  # nothing can be said yet
    if errors:
        return app.reachability.refused(errors[0], loop.time())
    app.reachability.answered(loop.time())
    return True


def _connections(app: Application) -> list[Connection]:
    """Those of the handles that serve; the client's own while there is none."""
    current = [each.current for each in app.tables.registrations.values()]
    found = {id(record.connection): record.connection for record in current if record is not None}
    return list(found.values()) or [app.raw]


async def _ask(connection: Connection, limit: float) -> None:
    # Twice the limit is for a connection that does not keep to it.
    async with asyncio.timeout(2 * limit):
        await connection.call(DescribeNamespace(rpc_timeout=limit))
