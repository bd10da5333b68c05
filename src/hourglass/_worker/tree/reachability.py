"""Reachability: whether the engine answers.

An outstanding poll proves nothing: it would wait just as long on a server that is gone. Every few seconds the engine is
therefore asked to describe the namespace, over each connection on which a handle polls. `/ready` and `/status` show the
result, and the log reports when the engine is lost and when it is back. The check has no other effect. An engine that
does not support the query (`UNIMPLEMENTED`, or a key without permission to describe its namespace) counts as reachable,
unless it has answered before. A busy engine (`RESOURCE_EXHAUSTED`) counts as reachable.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hourglass._contract.deployments import DescribeNamespace
from hourglass._contract.service import Connection
from hourglass.errors import HourglassError, ServiceError

if TYPE_CHECKING:
    from hourglass._worker.tree.application import Application

logger = logging.getLogger("hourglass.worker")


@dataclass(frozen=True, kw_only=True)
class ReachLimits:
    """The interval of queries, and the timeout of an answer, in seconds: a loss is noticed within their sum."""

    interval: float = 3.0
    answer: float = 4.0


_BUSY = "RESOURCE_EXHAUSTED"
_CANNOT_DESCRIBE = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED"})
_NO_ANSWER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


@dataclass(frozen=True)
class Outage:
    """A period in which the engine does not serve this worker: its start, and the reason as readable text. `kind` stays
    the same for the same problem.
    """

    kind: str
    reason: str
    since: float


class Reachability:
    """The conclusion from the engine's latest answers. Pure except for logging. The caller passes the time."""

    def __init__(self) -> None:
        self.outage: Outage | None = None
        self._has_answered = False

    def answered(self, now: float) -> None:
        """Record that the engine answered and has the namespace."""
        self._has_answered = True
        self._end_outage(now)

    def _end_outage(self, now: float) -> None:
        outage, self.outage = self.outage, None
        if outage is not None:
            logger.info("the engine is available again after %.0f s", now - outage.since)

    def refused(self, error: BaseException, now: float) -> bool:
        """Record a missing or negative answer. Return False if this engine does not support the query and counts as
        reachable.
        """
        status = error.status if isinstance(error, ServiceError) else "UNKNOWN"
        if status == _BUSY:
            # The engine is reachable, but has not shown that it supports the query. If this counted as an answer, a
            # later `UNIMPLEMENTED` would be taken for an outage.
            self._end_outage(now)
            return True
        if status in _CANNOT_DESCRIBE and not self._has_answered:
            self.outage = None
            return False
        kind = "UNAVAILABLE" if status in _NO_ANSWER else status
        before = self.outage
        # Only our own errors are known to contain no secrets.
        reason = str(error) if isinstance(error, HourglassError) else f"it failed with {type(error).__name__}"
        self.outage = Outage(kind, reason, now if before is None else before.since)
        if before is None or before.kind != kind:
            logger.warning(
                "the engine is not available: %s. This worker receives no tasks until the engine is available again",
                reason,
            )
        return True


async def watch_reachability(app: Application) -> None:
    """Query the engine at intervals. Return if the engine does not support the query."""
    while True:
        if not await check_reachability(app):
            logger.debug("this engine cannot report whether it is available")
            return
        await sleep(app.reach.interval)


async def check_reachability(app: Application) -> bool:
    """Query once, over every connection on which a handle polls. Return False if the engine does not support the query."""
    loop = asyncio.get_running_loop()
    connections = _connections(app)
    queries = [_describe_namespace(connection, app.reach.answer) for connection in connections]
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
    """Return the connections of all handles that serve a queue, or the client's own connection if there are none."""
    current = [registration.current for registration in app.tables.registrations.values()]
    by_id = {id(record.connection): record.connection for record in current if record is not None}
    return list(by_id.values()) or [app.raw]


async def _describe_namespace(connection: Connection, limit: float) -> None:
    # Twice the limit, in case the connection does not respect the RPC timeout.
    async with asyncio.timeout(2 * limit):
        await connection.call(DescribeNamespace(rpc_timeout=limit))
