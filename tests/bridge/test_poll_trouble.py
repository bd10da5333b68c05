"""An engine that raises when it is asked for more items: the handle is broken, as when a poll raises."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from hourglass._worker.handles.poll_line import PollLine


class Book:
    """Writes down what the line tells it."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.ended: list[BaseException] = []

    def keep(self, item: str, /) -> None:
        self.items.append(item)

    def poll_ended(self, error: BaseException, /) -> None:
        self.ended.append(error)


def line_over(book: Book, more: Any) -> PollLine[str]:
    items = deque(["first"])

    async def poll() -> str:
        return items.popleft()

    return PollLine(poll, more, lambda _: None, book, "poll", lambda: None)


def test_a_line_whose_engine_cannot_say_what_else_there_is_has_ended() -> None:
    """What the poll brought is kept, the book hears that there is no more, and whoever waits is woken."""

    async def body() -> None:
        def more() -> list[str]:
            raise RuntimeError("a bug of the engine's")

        book = Book()
        line = line_over(book, more)
        line.ask()
        async with asyncio.timeout(20):
            await line.changed.wait()
        assert not line.in_flight
        assert [type(each) for each in book.ended] == [RuntimeError]
        assert line.end is book.ended[0]
        assert list(line.kept) == book.items == ["first"]

    asyncio.run(body())
