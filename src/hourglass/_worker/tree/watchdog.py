"""The watchdog: checks every few seconds for states that should be impossible, and repairs those that persist.

Nothing here is part of the normal processing: every part recovers by itself, and the watchdog handles what falls
between them, when a worker looks healthy and does nothing. Three states are suspicious: a handle without a polling
loop, an item from the engine without a task that works on it, and a queue without a Worker. A suspicion leads to a
repair only if it was present, unchanged, at every check during the whole patience. In addition, the engine is asked
whether it sees our polls (`Sightings`), whether it answers (`Reachability`), and which runs it reports as parked
(`parked_watch`).
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
_REASON = "no task in this worker was working on it any more"


@dataclass(frozen=True, kw_only=True)
class WatchLimits:
    """The interval of the watchdog's checks, and how long a state must be suspicious before it is repaired, in seconds."""

    interval: float = 5.0
    patience: float = 30.0


@dataclass(frozen=True, slots=True)
class NobodyPolls:
    """No poll is outstanding on an active handle, and nothing has arrived since the last check."""

    queue: str
    generation: int
    kind: str
    received: int


@dataclass(frozen=True, slots=True)
class Orphan:
    """The engine waits for a completion, and no task works on it. `key` is a run id or a task token."""

    queue: str
    generation: int
    key: str | bytes = field(repr=False)
    token: int = 0


@dataclass(frozen=True, slots=True)
class NoWorker:
    """A queue should be served and has no Worker, not even one that is about to be restarted."""

    queue: str


Suspicion: TypeAlias = NobodyPolls | Orphan | NoWorker


class Suspicions:
    """Records since when each suspicion exists. Pure except for this record; the caller passes the time."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[Suspicion, float] = {}

    def overdue(self, seen: Iterable[Suspicion], now: float) -> list[Suspicion]:
        """Return suspicions that have lasted too long. They are then forgotten, and start again with the whole patience."""
        self._since = {suspicion: self._since.get(suspicion, now) for suspicion in seen}
        late = [suspicion for suspicion, since in self._since.items() if now - since >= self._limit]
        for suspicion in late:
            del self._since[suspicion]
        return late


def watchdog(app: Application) -> Start:
    """Return the body of the Watchdog's process, which also runs the queries to the engine."""

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
    """Check once: repair what has been suspicious for too long."""
    for suspicion in suspicions_so_far.overdue(suspicions(app), now):
        logger.error("the watchdog repairs: %r", suspicion)
        _repair(app, suspicion)


def suspicions(app: Application) -> Iterator[Suspicion]:
    """Yield everything that is suspicious at this moment. Most of it is only in transition."""
    served = {view.id for view in app.workers.children()}
    for services in app.configured():
        if services.child_id not in served:
            yield NoWorker(services.queue)
    for record in app.tables.records.values():
        if record.state is HandleState.ACTIVE:
            yield from _handle_suspicions(record)


def _handle_suspicions(record: HandleRecord) -> Iterator[Suspicion]:
    queue, generation = record.queue, record.generation
    for kind, polls in (("workflow", record.activations), ("activity", record.activities)):
        if record.spare is None and not polls.is_attended:
            yield NobodyPolls(queue, generation, kind, polls.received)
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
                worker.kill()  # its replacement registers again, with a new handle and new loops
        case Orphan(_, generation, key):
            # As when a handle drains: after a failure the engine starts the task again.
            record = app.tables.records[generation]
            if isinstance(key, str):
                fail_run(app.tables, record, key, _REASON)
            else:
                fail_attempt(app.tables, record, key, _REASON)
        case NoWorker():
            try:
                app.require_tree().kill(LAUNCHER)  # the restarted launcher starts what is missing
            except SupervisionError:
                pass  # the launcher is not running: its start will do the same


# A handle may be active and have polls outstanding, and still not reach the engine. Once a minute, and more often if
# something is suspicious, the engine is asked when it last saw us poll. Polls are renewed within a minute even without
# work, so an answer that stays the same for longer means that our polls do not arrive: the handle is recycled, over a
# new connection. The clocks of the engine and this process differ, so the only criterion is whether the answer changes.
# No conclusion is drawn from an engine that does not answer, or while all slots are in use. A recycle without effect is
# not repeated before the engine has seen us again.


@dataclass(frozen=True, kw_only=True)
class SightLimits:
    """The interval of queries, the interval while something is suspicious, and how long we may be unseen, in seconds."""

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
    """Records since when each answer has not changed. Pure except for this record; the caller passes the time."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[PollKind, tuple[int, float]] = {}
        self._recycled: set[tuple[str, bool]] = set()

    def record_answer(self, kind: PollKind, time_ns: int, now: float) -> bool:
        """Record the engine's answer. Return whether we have been unseen for too long and the handle should be recycled."""
        before = self._since.get(kind)
        if before is None or before[0] != time_ns:
            if before is not None:  # the answer has changed: a recycle, if any, has helped
                self._recycled.discard((kind.queue, kind.activities))
            self._since[kind] = (time_ns, now)
            return False
        if now - before[1] < self._limit:
            return False
        del self._since[kind]
        again = (kind.queue, kind.activities) in self._recycled
        self._recycled.add((kind.queue, kind.activities))
        return not again

    def forget(self, kind: PollKind) -> None:
        """Forget a kind of poll about which nothing is known now."""
        self._since.pop(kind, None)

    def keep(self, kinds: set[PollKind]) -> None:
        """Forget all kinds of polls except these."""
        self._since = {kind: since for kind, since in self._since.items() if kind in kinds}

    def suspicious(self, now: float) -> bool:
        """Whether an answer has stayed the same for longer than the interval of queries explains."""
        return any(now - since >= self._limit / 2 for _, since in self._since.values())


class PollersNotReported(Exception):
    """This engine cannot report pollers, or we lack the permission."""


class ConnectionSilent(Exception):
    """The engine does not answer over this connection."""


_BLIND = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED"})
_SILENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN"})


async def watch_sightings(app: Application) -> None:
    """Query for as long as the engine can report pollers."""
    limits, sightings = app.sight, Sightings(app.sight.unseen)
    loop = asyncio.get_running_loop()
    asked_at, failures = loop.time(), _send_failures(app)
    while True:
        await sleep(limits.ask_again)
        now = loop.time()
        if now - asked_at < limits.ask and not sightings.suspicious(now) and failures == _send_failures(app):
            continue
        asked_at, failures = now, _send_failures(app)
        try:
            await check_sightings(app, sightings)
        except PollersNotReported:
            logger.debug("this engine does not report pollers")
            return
        except Exception:
            logger.exception("the watchdog could not query the engine's pollers")


def _send_failures(app: Application) -> int:
    """Return a counter that grows when the engine does not accept what we send."""
    counters = app.tables.counters
    return counters.unanswered_completions + counters.resent


async def check_sightings(app: Application, sightings: Sightings) -> None:
    """Query every serving handle once. Raises `PollersNotReported` if the engine cannot report pollers."""
    kinds = dict(_kinds(app))
    sightings.keep(set(kinds))
    for kind, record in kinds.items():
        answer = None if _is_full(record, kind) else await _last_seen_ns(app, record, kind)
        if answer is None:
            sightings.forget(kind)
        elif sightings.record_answer(kind, answer, asyncio.get_running_loop().time()):
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
    """Whether all slots are in use, so that the handle rightly does not poll."""
    config = record.config
    if kind.activities:
        return len(record.attempts.open) >= config.max_concurrent_activities
    return len(record.runs.open) >= config.max_concurrent_workflow_tasks


async def _last_seen_ns(app: Application, record: HandleRecord, kind: PollKind) -> int | None:
    """Return the engine's answer, over the handle's connection, or over a new one if that is silent; None without an
    answer."""
    with suppress(ConnectionSilent):
        return await _answer(app, record.connection, record, kind)
    logger.info("%r: its own connection does not answer", record)
    try:
        async with asyncio.timeout(app.limits.connect):
            new_connection = await app.connect()
    except Exception:  # whatever the reason, the engine cannot be reached
        return None
    try:
        return await _answer(app, new_connection, record, kind)
    except ConnectionSilent:
        return None
    finally:
        app.tables.let_go(new_connection)


async def _answer(
    app: Application, connection: Connection, record: HandleRecord, kind: PollKind
) -> int | None:
    request = LastSeen(
        task_queue=kind.queue,
        polled_by=record.config.identity or record.connection.identity,
        activities=kind.activities,
        rpc_timeout=app.sight.answer,
    )
    try:
        async with asyncio.timeout(2 * app.sight.answer):
            return (await connection.call(request)).time_ns
    except ServiceError as error:
        if error.status in _BLIND:
            raise PollersNotReported from None
        if error.status not in _SILENT:
            return None  # the engine can be reached, but does not answer this request
        raise ConnectionSilent from None
    except Exception:  # our own timeout, or a closed connection
        raise ConnectionSilent from None


async def _recycle(app: Application, record: HandleRecord, kind: PollKind) -> None:
    task_kind = "activities" if kind.activities else "workflow tasks"
    reason = f"the engine has not seen it poll for {task_kind} for {app.sight.unseen:g} s"
    logger.error("the watchdog repairs: %r: %s", record, reason)
    registration = app.tables.registrations.get(kind.queue)
    if registration is None or registration.current is not record:
        return  # it was replaced during the query
    with suppress(WorkerNotRegistered, Shutdown, SupervisionError, TimeoutError):
        async with asyncio.timeout(app.limits.connect + app.limits.open):
            await app.holder.recycle(kind.queue, reason)


#
# An outstanding poll proves nothing: it waits just as patiently on a server that is gone. Every few seconds the engine
# is asked for our namespace, over each connection on which a handle polls. `/ready` and `/status` show the result, and
# the log reports when the engine is lost and when it is back; nothing else changes. An engine that cannot be asked
# (`UNIMPLEMENTED`, or a key without permission to describe its namespace) counts as reachable, but only if it has never
# answered; a busy one (`RESOURCE_EXHAUSTED`) counts as answering.


@dataclass(frozen=True, kw_only=True)
class ReachLimits:
    """The interval of queries, and the timeout of an answer, in seconds: a loss shows within their sum."""

    interval: float = 3.0
    answer: float = 4.0


_BUSY = "RESOURCE_EXHAUSTED"
_CANNOT_BE_ASKED = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED"})
_NO_ANSWER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


@dataclass(frozen=True)
class Outage:
    """The engine does not serve us: the reason, for people, and since when. `kind` stays the same for the same problem."""

    kind: str
    reason: str
    since: float


class Reachability:
    """The conclusion from the latest answers. Pure except for the log; the caller passes the time."""

    def __init__(self) -> None:
        self.outage: Outage | None = None
        self._has_answered = False

    def answered(self, now: float) -> None:
        """Record that the engine answered and has our namespace."""
        self._has_answered = True
        self._end_outage(now)

    def _end_outage(self, now: float) -> None:
        outage, self.outage = self.outage, None
        if outage is not None:
            logger.info("the engine answers again, after %.0f s", now - outage.since)

    def refused(self, error: BaseException, now: float) -> bool:
        """Record a missing or negative answer. Return False if this engine cannot be asked and counts as reachable."""
        status = error.status if isinstance(error, ServiceError) else "UNKNOWN"
        if status == _BUSY:
            # The engine is there, but has not shown whether it can be asked: a file whose disk was full for a while
            # cannot, and would count as lost after its next answer.
            self._end_outage(now)
            return True
        if status in _CANNOT_BE_ASKED and not self._has_answered:
            self.outage = None
            return False
        kind = "UNAVAILABLE" if status in _NO_ANSWER else status
        before = self.outage
        # Only our own errors are known to contain no secrets.
        reason = str(error) if isinstance(error, HourglassError) else f"it failed with {type(error).__name__}"
        self.outage = Outage(kind, reason, now if before is None else before.since)
        if before is None or before.kind != kind:
            logger.warning("the engine is lost: %s. This worker gets no work until it is back", reason)
        return True


async def watch_reachability(app: Application) -> None:
    """Query for as long as the engine can be asked."""
    while True:
        if not await check_reachability(app):
            logger.debug("this engine cannot report whether it is available")
            return
        await sleep(app.reach.interval)


async def check_reachability(app: Application) -> bool:
    """Query once, over every connection on which a handle polls. Return False if this engine cannot be asked."""
    loop = asyncio.get_running_loop()
    connections = _connections(app)
    queries = [_ask(connection, app.reach.answer) for connection in connections]
    answers = await asyncio.gather(*queries, return_exceptions=True)
    # A connection that was replaced meanwhile may have been closed during its query.
    current = _connections(app)
    valid = [answer for connection, answer in zip(connections, answers, strict=True) if connection in current]
    errors = [answer for answer in valid if answer is not None]
    if not valid:
        return True  # no conclusion yet
    if errors:
        return app.reachability.refused(errors[0], loop.time())
    app.reachability.answered(loop.time())
    return True


def _connections(app: Application) -> list[Connection]:
    """Return the connections of serving handles; the client's own if there are none."""
    current = [registration.current for registration in app.tables.registrations.values()]
    by_id = {id(record.connection): record.connection for record in current if record is not None}
    return list(by_id.values()) or [app.raw]


async def _ask(connection: Connection, limit: float) -> None:
    # Twice the limit, for a connection that does not respect it.
    async with asyncio.timeout(2 * limit):
        await connection.call(DescribeNamespace(rpc_timeout=limit))
