"""Whether the engine sees us: a handle may say that it is active, have its polls out, and not reach it.

Once a minute, and more often where something is suspicious, the engine is asked when it last saw us poll. Polls are renewed
within a minute also where there is nothing to do, so an answer that stays the same for longer means that our polls do not
arrive. Such a handle is recycled, over a fresh connection.

Must not know: the engine's clock against ours, which differ; only whether its answer moves. Invariants: nothing is concluded
from an engine that does not answer, nor while we want no more work; a recycle that did not help is not repeated before we were
seen again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hourglass._bridge.handles import HandleRecord
from hourglass._bridge.holder import WorkerNotRegistered
from hourglass._contract.handle import Shutdown
from hourglass._contract.service import Connection, LastSeen
from hourglass._supervision import SupervisionError
from hourglass.errors import ServiceError

if TYPE_CHECKING:
    from hourglass._runtime.application import Application

logger = logging.getLogger("hourglass.worker")


@dataclass(frozen=True, kw_only=True)
class SightLimits:
    """How often the engine is asked, how often where something is suspicious, and how long we may be unseen, in seconds."""

    ask: float = 60.0
    ask_again: float = 10.0
    unseen: float = 90.0
    answer: float = 5.0


class SightingKind(NamedTuple):
    """One kind of poll on one handle."""

    queue: str
    generation: int
    activities: bool


class Sightings:
    """Remembers since when each answer has not moved. Pure but for that; the time is given."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[SightingKind, tuple[int, float]] = {}
        self._mended: set[tuple[str, bool]] = set()

    def told(self, kind: SightingKind, time_ns: int, now: float) -> bool:
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

    def forget(self, kind: SightingKind) -> None:
        """Nothing can be said of it now."""
        self._since.pop(kind, None)

    def keep(self, kinds: set[SightingKind]) -> None:
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
        await asyncio.sleep(limits.ask_again)
        now = loop.time()
        if now - asked < limits.ask and not sightings.suspicious(now) and trouble == _trouble(app):
            continue
        asked, trouble = now, _trouble(app)
        try:
            await look(app, sightings)
        except Blind:
            logger.debug("this engine does not tell whom it sees")
            return
        except Exception:
            logger.exception("the watchdog could not ask whether the engine sees us")


def _trouble(app: Application) -> int:
    """Grows when the engine does not take what we send."""
    counters = app.tables.counters
    return counters.unanswered_completions + counters.resent


async def look(app: Application, sightings: Sightings) -> None:
    """One look at every handle that serves; raises `Blind` where there is nothing to see."""
    kinds = dict(_kinds(app))
    sightings.keep(set(kinds))
    for kind, record in kinds.items():
        answer = None if _is_full(record, kind) else await _ask(app, record, kind)
        if answer is None:
            sightings.forget(kind)
        elif sightings.told(kind, answer, asyncio.get_running_loop().time()):
            await _mend(app, record, kind)


def _kinds(app: Application) -> Iterator[tuple[SightingKind, HandleRecord]]:
    for registration in tuple(app.tables.registrations.values()):
        record = registration.current
        if record is None or not record.healthy:
            continue
        if record.config.workflows:
            yield SightingKind(record.queue, record.generation, False), record
        if record.config.activities:
            yield SightingKind(record.queue, record.generation, True), record


def _is_full(record: HandleRecord, kind: SightingKind) -> bool:
    """Whether all slots are taken, so that the handle rightly does not poll."""
    config = record.config
    if kind.activities:
        return len(record.attempts.open) >= config.max_concurrent_activities
    return len(record.runs.open) >= config.max_concurrent_workflow_tasks


async def _ask(app: Application, record: HandleRecord, kind: SightingKind) -> int | None:
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
    app: Application, connection: Connection, record: HandleRecord, kind: SightingKind
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


async def _mend(app: Application, record: HandleRecord, kind: SightingKind) -> None:
    what = "activities" if kind.activities else "workflow tasks"
    reason = f"the engine has not seen it poll for {what} for {app.sight.unseen:g} s"
    logger.error("the watchdog mends: %r: %s", record, reason)
    registration = app.tables.registrations.get(kind.queue)
    if registration is None or registration.current is not record:
        return  # it was replaced while we asked
    with suppress(WorkerNotRegistered, Shutdown, SupervisionError, TimeoutError):
        async with asyncio.timeout(app.limits.connect + app.limits.open):
            await app.holder.recycle(kind.queue, reason)
