"""Whether the engine answers us: a poll that is out says nothing, it waits as patiently on a server that is gone.

Every few seconds the engine is asked for our namespace, over each connection that a handle polls on. `/ready` and `/status` tell
what came of it, and the log does once when the engine is lost and once when it is back. Whether the engine sees our polls is
another question, which `sightings` asks.

Must not know: how a handle is mended; nothing is changed here. Invariants: an engine that cannot be asked (`UNIMPLEMENTED`, or a
key that may not describe its namespace) counts as reachable, but only if it has never answered; an engine that is busy
(`RESOURCE_EXHAUSTED`) answers.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hourglass._contract.service import Connection, DescribeNamespace
from hourglass.errors import HourglassError, ServiceError

if TYPE_CHECKING:
    from hourglass._runtime.application import Application

logger = logging.getLogger("hourglass.worker")


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
        outage, self.outage = self.outage, None
        if outage is not None:
            logger.info("the engine answers again, after %.0f s", now - outage.since)

    def refused(self, error: BaseException, now: float) -> bool:
        """There was no answer, or not the right one. False: this engine cannot be asked, and counts as reachable."""
        status = error.status if isinstance(error, ServiceError) else "UNKNOWN"
        if status == _BUSY:
            self.answered(now)
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
        if not await look(app):
            logger.debug("this engine does not say whether it is there")
            return
        await asyncio.sleep(app.reach.interval)


async def look(app: Application) -> bool:
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
