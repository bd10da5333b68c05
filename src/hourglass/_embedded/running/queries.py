"""A query on its way: the question, and the future that its asker waits for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hourglass._engine.events import QueryReceived
from hourglass.converter import Failure, Payload
from hourglass.errors import HourglassError, QueryFailedError


@dataclass(eq=False)
class Query:
    """One question to one run. An asker that has gone away is no harm."""

    event: QueryReceived
    answer: asyncio.Future[Payload | None]

    def succeed(self, result: Payload | None) -> None:
        """The handler returned."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, failure: Failure) -> None:
        """The handler raised, or the run could not be brought to where it answers."""
        self.refuse(QueryFailedError(failure.message or "the query failed"))

    def refuse(self, error: HourglassError) -> None:
        """The engine cannot ask."""
        if not self.answer.done():
            self.answer.set_exception(error)
