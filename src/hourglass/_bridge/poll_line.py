"""A poll line: one kind of poll on one handle. It owns the raw poll, keeps what came until somebody says that
it was dispatched, and hands on what a dead taker left behind.

Must not know: what items mean (its `Book` does), generations, registrations. Invariants:

- At most one raw poll is out, in a task of its own. Nobody who waits here can cancel it.
- Between a raw poll's return and the item's entry in the book there is no await: what the engine gave out is
  known.
- An item is in one place: kept (nobody has it), handed (a living taker has it), or acknowledged (gone from
  here).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hourglass._bridge.bell import Bell

T = TypeVar("T")
C = TypeVar("C", contravariant=True)

OURS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
"""What an engine does not raise. All else is its failure, also a panic, which is no Exception."""


class Owner(Protocol):
    """Somebody whose death can be watched."""

    def add_death_callback(self, callback: Callable[[], object], /) -> Callable[[], object]:
        """Call back when it dies (at once if it is dead); returns what takes the callback back."""
        ...


class Book(Protocol[C]):
    """Who writes down what is outstanding."""

    def arrived(self, item: C) -> None:
        """The engine gave this out."""
        ...

    def handed(self, item: C) -> int:
        """Somebody is given it; returns the token that fences its completion."""
        ...

    def acknowledged(self, item: C) -> None:
        """It was dispatched."""
        ...

    def still_open(self, item: C) -> bool:
        """Whether anybody still has to deal with it."""
        ...

    def poll_ended(self, error: BaseException, /) -> None:
        """The raw poll raised: there will be no more items."""
        ...


class Claim(NamedTuple):
    """Who may complete an activation: the holder of this token, on this generation of this queue's handle."""

    queue: str
    generation: int
    token: int


class Ticket(Generic[T]):
    """An item that was handed out. `acknowledge` it when it is dispatched: until then it passes on if its
    taker dies.
    """

    __slots__ = ("_line", "claim", "item")

    def __init__(self, line: PollLine[T], claim: Claim, item: T) -> None:
        self._line = line
        self.claim = claim
        self.item = item

    def __repr__(self) -> str:
        return f"<Ticket {self.claim.queue!r} generation {self.claim.generation} token {self.claim.token}>"

    @property
    def queue(self) -> str:
        """The task queue it came from."""
        return self.claim.queue

    @property
    def generation(self) -> int:
        """The generation of the handle it came from."""
        return self.claim.generation

    @property
    def token(self) -> int:
        """What fences its completion."""
        return self.claim.token

    def acknowledge(self) -> bool:
        """It is dispatched. False: too late, somebody else has it now; let go of it."""
        return self._line.acknowledge(self.claim.token)


@dataclass(frozen=True, slots=True)
class _Handed(Generic[T]):
    item: T
    unwatch: Callable[[], object]


class PollLine(Generic[T]):
    """See the module."""

    def __init__(
        self,
        poll: Callable[[], Awaitable[T]],
        book: Book[T],
        address: tuple[str, int],
        now_ns: Callable[[], int],
        changed: Callable[[], object],
    ) -> None:
        self.bell = Bell()
        self.kept: deque[T] = deque()
        self.call: asyncio.Task[None] | None = None
        self.end: BaseException | None = None
        self.received = 0
        self.issued_ns = 0
        self.returned_ns = 0
        self._poll = poll
        self._book = book
        self._address = address
        self._now_ns = now_ns
        self._changed = changed
        self._handed: dict[int, _Handed[T]] = {}

    @property
    def in_flight(self) -> bool:
        """Whether a raw poll is out."""
        return self.call is not None

    @property
    def in_hand(self) -> int:
        """How many items takers have and have not acknowledged."""
        return len(self._handed)

    def ask(self) -> None:
        """See to it that a raw poll is out, unless polling is over."""
        if self.call is None and self.end is None:
            self.issued_ns = self._now_ns()
            self.call = asyncio.get_running_loop().create_task(
                self._run(), name=f"poll of {self._address[0]} generation {self._address[1]}"
            )

    async def _run(self) -> None:
        try:
            item = await self._poll()
        except OURS:
            # The loop ends, or somebody did what must not be done: whoever asks next polls again.
            self.call = None
            self._ring()
            raise
        except BaseException as error:
            self.call, self.end, self.returned_ns = None, error, self._now_ns()
            self._book.poll_ended(error)
            self._ring()
            return
        self.call, self.returned_ns = None, self._now_ns()
        self.received += 1
        self._book.arrived(item)
        self.kept.append(item)
        self._ring()

    def take(self, taker: Owner | None = None) -> Ticket[T] | None:
        """An item, if one is kept. Its taker is `taker`, or the current task."""
        if not self.kept:
            return None
        item = self.kept.popleft()
        token = self._book.handed(item)
        watch = taker.add_death_callback if taker is not None else _watch_current_task()
        # Entered first: a taker that is dead already gives it back at once.
        self._handed[token] = _Handed(item, _nothing)
        unwatch = watch(lambda: self._give_back(token))
        if token in self._handed:
            self._handed[token] = _Handed(item, unwatch)
        return Ticket(self, Claim(*self._address, token), item)

    def acknowledge(self, token: int) -> bool:
        """The item that was handed out under this token is dispatched."""
        handed = self._handed.pop(token, None)
        if handed is None:
            return False
        handed.unwatch()
        self._book.acknowledged(handed.item)
        return True

    def _give_back(self, token: int) -> None:
        handed = self._handed.pop(token, None)
        if handed is not None and self._book.still_open(handed.item):
            self.kept.appendleft(handed.item)
            self._book.handed(handed.item)  # a new token: what the dead taker had is void
            self._ring()

    def _ring(self) -> None:
        self.bell.ring()
        self._changed()

    def cancel(self) -> None:
        """Give up the raw poll: only for a handle that is left behind."""
        if self.call is not None:
            self.call.cancel()


def _watch_current_task() -> Callable[[Callable[[], object]], Callable[[], object]]:
    current: asyncio.Task[Any] | None = asyncio.current_task()
    return _unwatched if current is None else partial(_watch, current)


def _watch(task: asyncio.Task[Any], callback: Callable[[], object]) -> Callable[[], object]:
    def done(_: asyncio.Future[Any]) -> None:
        callback()

    task.add_done_callback(done)
    return lambda: task.remove_done_callback(done)


def _unwatched(_: Callable[[], object]) -> Callable[[], object]:
    return _nothing


def _nothing() -> None:
    return None
