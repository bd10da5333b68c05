"""Server-sent events: an open page hears that what it shows has changed, and fetches it anew.

An event says only that; so a page holds no second copy of the truth, and one left open all day does not grow. What is compared
is a short mark of the content (`Mark`), asked for every second while the page is open. That something is the matter is an event,
too: the page says what it is, and that it is over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from hourglass.errors import HourglassError

PAUSE = 1.0
_SILENCE = 15.0

Mark: TypeAlias = Callable[[], Awaitable[tuple[str, str]]]
"""What a page shows, so short that it can be compared (a number of events, a hash); and what is the matter, if anything."""


async def changes(
    mark: Mark, gone: Callable[[], Awaitable[bool]], pause: float = PAUSE
) -> AsyncIterator[bytes]:
    """Events for one open page, until it is closed."""
    known: str | None = None
    told: str | None = None
    quiet = 0.0
    while not await gone():
        found: str | None = None
        try:
            found, trouble = await mark()
        except HourglassError as error:
            trouble = str(error).partition("\n")[0]
        if trouble != told:
            yield event("trouble", {"message": trouble}) if trouble else event("well", {})
            told, quiet = trouble, 0.0
        if found is not None:
            # The first one, too: what a page shows may have changed between its making and this connection.
            if found != known:
                yield event("change", {})
                quiet = 0.0
            known = found
        await asyncio.sleep(pause)
        quiet += pause
        if quiet >= _SILENCE:  # so that a connection that has gone is noticed
            yield b": still here\n\n"
            quiet = 0.0


def event(name: str, data: object) -> bytes:
    """One event, as it travels."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
