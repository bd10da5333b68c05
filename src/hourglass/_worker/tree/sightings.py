"""Sightings: whether the engine sees our polls.

A handle may be active and have polls outstanding, and still not reach the engine. Once a minute, and more often while
an answer is suspicious, the engine is asked when it last saw a poll. Polls are renewed within a minute even without
work, so an answer that stays the same for longer means that our polls do not arrive, and the handle is recycled over a
new connection. The clocks of the engine and this process may differ, so the only criterion is whether the answer
changes. No conclusion is drawn if the engine does not answer, or while all slots are in use. A recycle that has not
helped is not repeated until the engine has seen a poll again.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hourglass._contract.deployments import LastSeen
from hourglass._contract.handle import Shutdown
from hourglass._contract.service import Connection
from hourglass._supervision import SupervisionError
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.holder import WorkerNotRegistered
from hourglass.errors import ServiceError

if TYPE_CHECKING:
    from hourglass._worker.tree.application import Application

logger = logging.getLogger("hourglass.worker")


@dataclass(frozen=True, kw_only=True)
class SightLimits:
    """The interval of queries, the shorter interval while an answer is suspicious, the time that polls may remain
    unseen, and the timeout of an answer, in seconds.
    """

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
    """The engine's last answer for each kind of poll, and the time at which this answer was first received. Pure except
    for this record. The caller passes the time.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[PollKind, tuple[int, float]] = {}
        self._recycled: set[tuple[str, bool]] = set()

    def record_answer(self, kind: PollKind, time_ns: int, now: float) -> bool:
        """Record the engine's answer. Return whether our polls have been unseen for too long, so that the handle should
        be recycled.
        """
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
        """Forget a kind of poll because its answer is unknown."""
        self._since.pop(kind, None)

    def keep(self, kinds: set[PollKind]) -> None:
        """Forget all kinds of polls except these."""
        self._since = {kind: since for kind, since in self._since.items() if kind in kinds}

    def suspicious(self, now: float) -> bool:
        """Whether an answer has stayed the same for half of the limit, longer than polls normally take to be renewed."""
        return any(now - since >= self._limit / 2 for _, since in self._since.values())


class PollersNotReported(Exception):
    """The engine cannot report pollers, or the worker lacks the permission to ask."""


class ConnectionSilent(Exception):
    """The engine does not answer over this connection."""


_BLIND = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED"})
_SILENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN"})


async def watch_sightings(app: Application) -> None:
    """Query the engine at intervals. Return if the engine cannot report pollers."""
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
    """Return a counter that increases when the engine does not accept a completion in time."""
    counters = app.tables.counters
    return counters.unanswered_completions + counters.resent


async def check_sightings(app: Application, sightings: Sightings) -> None:
    """Query the engine once about every handle that serves a queue. Recycle a handle if its polls have been unseen for
    too long. Raises `PollersNotReported` if the engine cannot report pollers.
    """
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
    """Whether all slots are in use, so that the handle is not expected to poll."""
    config = record.config
    if kind.activities:
        return len(record.attempts.open) >= config.max_concurrent_activities
    return len(record.runs.open) >= config.max_concurrent_workflow_tasks


async def _last_seen_ns(app: Application, record: HandleRecord, kind: PollKind) -> int | None:
    """Return the time at which the engine last saw a poll; None without an answer. Ask over the handle's connection, or
    over a new connection if the engine does not answer.
    """
    with suppress(ConnectionSilent):
        return await _answer(app, record.connection, record, kind)
    logger.info("the connection of %r does not respond", record)
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
        app.tables.release(new_connection)


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
    logger.error("the watchdog replaces %r: %s", record, reason)
    registration = app.tables.registrations.get(kind.queue)
    if registration is None or registration.current is not record:
        return  # the handle was replaced during the query
    with suppress(WorkerNotRegistered, Shutdown, SupervisionError, TimeoutError):
        async with asyncio.timeout(app.limits.connect + app.limits.open):
            await app.holder.recycle(kind.queue, reason)
