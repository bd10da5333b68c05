"""What a run publishes, and how a follower reads it: the run's buffer, the follower (written once), its two faces.

The buffer holds the last items of each name in the run's memory; a query reads them. It must not know clients.
Publishing issues no command and writes no event: the items follow from executing the run, as its variables do.
Invariants: offsets count from 0 and never go back; at most `limit` items are kept, the newest.

A follower waits for the history to grow and then asks, in this order, so that nothing is published unseen in between.
What a run publishes changes only when one of its workflow tasks completes: other events are not worth a question. It
must not know threads, nor loops other than the one it is asked on.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec

from hourglass import workflow
from hourglass._contract.service import (
    DescribeWorkflow,
    GetHistory,
    HistoryPage,
    QueryAnswer,
    QueryWorkflow,
    Request,
)
from hourglass._engine.fibers import require_fiber
from hourglass._engine.options import Duration, optional_seconds
from hourglass._history.codec import read_event
from hourglass.client._operations import Reference, ask_through_outage
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.errors import QueryFailedError, ServiceError, UsageError

# --- the buffer, in the run -----------------------------------------------------------------------


Batch = tuple[int, int, list[Any]]
"""The offset of the first item, how many have been published so far, and the items."""

MOST_AT_ONCE = 100
MOST_BYTES = 512 * 1024
"""What an answer may hold: an engine takes two megabytes at most."""


class Buffer:
    """The newest items of one name."""

    def __init__(self, limit: int) -> None:
        self._items: deque[tuple[Any, int]] = deque(maxlen=limit)
        self._published = 0

    def add(self, value: Any, size: int) -> None:
        """Keep an item of so many bytes."""
        self._items.append((value, size))
        self._published += 1

    def read(self, begin: int, most: int) -> Batch:
        """Items from an offset on, as many as fit into an answer; a negative one counts from the end."""
        oldest = self._published - len(self._items)
        begin = self._published + begin if begin < 0 else begin
        first = min(max(begin, oldest), self._published)
        skipped = first - oldest
        found: list[Any] = []
        room = MOST_BYTES
        for value, size in islice(self._items, skipped, skipped + max(0, min(most, MOST_AT_ONCE))):
            room -= size
            if room < 0 and found:
                break
            found.append(value)
        return first, self._published, found


def query_name(name: str) -> str:
    """The query by which the items of a name are read; from other programs and languages, too."""
    return f"progress.{name}"


def buffer_of_run(name: str, limit: int) -> Buffer:
    """The buffer of a name in the current run; set up when it is first asked for."""
    fiber = require_fiber("publishing progress")
    run = fiber.run
    if run.latched:
        run.refuse(fiber, "publishing progress")
    known = run.handlers.known.get(("query", query_name(name)))
    if known is not None:
        found: Buffer = vars(known[0].fn)["buffer"]
        return found
    made = Buffer(limit)

    def read(begin: int = 0, most: int = MOST_AT_ONCE) -> Batch:
        """What the workflow has published: the first item's offset, how many there were in all, and the items."""
        return made.read(begin, most)

    vars(read)["buffer"] = made
    workflow.query(name=query_name(name))(read)
    return made


# --- the follower ---------------------------------------------------------------------------------


A = TypeVar("A")
T = TypeVar("T")

NEW_ONES = sys.maxsize
"""The offset of a follower that only wants what is still to come."""

_TASK_DONE = b"EVENT_TYPE_WORKFLOW_TASK_COMPLETED"


@dataclass(frozen=True)
class Heard:
    """What came of one question; no answer where nothing was published yet, `ended` where nothing will come any more."""

    answer: QueryAnswer | None
    ended: bool


class Follower(Generic[T]):
    """One reader of one workflow's items."""

    def __init__(
        self, name: str, type: Any, reference: Reference, begin: str | int, limit: Duration | None
    ) -> None:
        self.missed = 0
        self.pending: deque[T] = deque()
        self.ended = False
        self._name = name
        self._batch = tuple[int, int, list[type]]
        self._workflow_id = reference.workflow_id
        self._limit = optional_seconds(limit, "timeout")
        self._token = b""
        self._closed = False
        self._successor = ""
        self._due = False
        self._last_answer: QueryAnswer | None = None
        self._run_id = reference.run_id
        self._offset = begin if isinstance(begin, int) else 0
        if isinstance(begin, str):
            self._run_id, self._offset = read_position(begin)

    @property
    def position(self) -> str:
        """Where the next item will be looked for: after those that were taken."""
        return f"{self._run_id}/{self._offset - len(self.pending)}"

    def more(self) -> ClientOperation[None]:
        """Wait until the workflow has something to say. To be repeated until there is something `pending`, or it has
        `ended`.
        """
        session_used: list[ClientSession] = []

        async def ask(session: ClientSession) -> Heard:
            session_used.append(session)
            return await self._ask_in_time(session)

        return ClientOperation(ask, lambda heard: self._take(heard, session_used[0]))

    # --- on the control loop: nothing is decoded here ---------------------------------------------------------

    async def _ask_in_time(self, session: ClientSession) -> Heard:
        try:
            async with session.within(self._limit):
                return await self._ask(session)
        except TimeoutError as error:
            if isinstance(error, ServiceError) or self._limit is None:
                raise
            raise TimeoutError(
                f"workflow {self._workflow_id!r} has published nothing more of {self._name!r} within {self._limit:g} s"
            ) from None

    async def _ask(self, session: ClientSession) -> Heard:
        """Ask until there is another answer than the last one: at once if a question is due, else whenever something has
        happened.
        """
        if not self._run_id:
            current = await session.call(DescribeWorkflow(workflow_id=self._workflow_id))
            self._run_id = current.summary.run_id
        while True:
            if not self._due:
                await self._something_happens(session)
                self._due = True  # until it is answered: the wait may be interrupted in between
            closed = self._closed
            answer = await self._query(session)
            if answer is None and not 0 <= self._offset < NEW_ONES:
                self._offset = 0  # the newest of none, and all that are still to come
            if closed or (answer is not None and answer != self._last_answer):
                return Heard(answer, closed)
            self._due = False

    async def _query(self, session: ClientSession) -> QueryAnswer | None:
        request = QueryWorkflow(
            workflow_id=self._workflow_id,
            run_id=self._run_id,
            query_name=query_name(self._name),
            arguments=tuple(session.converter.encode_all((self._offset, MOST_AT_ONCE))),
        )
        try:
            return await _through_outages(session, request)
        except QueryFailedError:
            if self._closed and self._offset:
                raise  # it has published before: its code cannot tell any more what came last
            return None  # it has published nothing yet, or cannot answer now

    async def _something_happens(self, session: ClientSession) -> None:
        while not self._closed:
            request = GetHistory(
                workflow_id=self._workflow_id, run_id=self._run_id, next_page_token=self._token, wait_new=True
            )
            page = await _through_outages(session, request)
            self._token = page.next_page_token
            if not page.next_page_token:
                self._closed, self._successor = True, _successor(page)
            if self._closed or any(_TASK_DONE in event for event in page.events):
                return

    # --- in the caller's thread -------------------------------------------------------------------------------

    def _take(self, heard: Heard, session: ClientSession) -> None:
        self._last_answer = heard.answer
        self._due = False
        if heard.answer is not None and heard.answer.result:
            first, published, items = session.converter.decode(heard.answer.result[0], self._batch)
            if 0 <= self._offset < NEW_ONES:
                self.missed += max(0, first - self._offset)
            self._offset = first + len(items)
            self.pending.extend(items)
            self._due = self._offset < published
        if heard.ended and not self._due:
            self._move_on()

    def _move_on(self) -> None:
        """This run is read to its end: the next of its chain, if there is one, begins to count anew."""
        if not self._successor:
            self.ended = True
        elif not self.pending:  # else the position would name the wrong run
            self._run_id, self._successor = self._successor, ""
            self._offset, self._token, self._closed, self._last_answer = 0, b"", False, None


def read_position(position: str) -> tuple[str, int]:
    """The run and the offset that a position names."""
    run_id, _, offset = position.rpartition("/")
    if not run_id or not offset.isdecimal():
        raise UsageError("after= takes the position of a stream, as its .position gave it")
    return run_id, int(offset)


def _successor(page: HistoryPage) -> str:
    """The run that follows the one whose last events these are; empty if none does."""
    last = read_event(msgspec.json.decode(page.events[-1])).attributes if page.events else None
    return str(getattr(last, "new_run_id", ""))


async def _through_outages(session: ClientSession, request: Request[A]) -> A:
    """Ask, and while the service is away ask again: both requests change nothing."""
    try:
        return await session.call(request)
    except ServiceError as error:
        return await ask_through_outage(session, request, error)


# --- the two faces: an iterator that blocks, and one that is awaited ------------------------------


class _StreamFacts(Generic[T]):
    def __init__(self, session: ClientSession, follower: Follower[T]) -> None:
        self._session = session
        self._follower = follower

    @property
    def position(self) -> str:
        """Where it stands, as a text: `follow(handle, after=position)` goes on there, in another process, too."""
        return self._follower.position

    @property
    def missed(self) -> int:
        """How many items were gone before they could be read, because the workflow keeps only the newest."""
        return self._follower.missed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.position}{', ended' if self._follower.ended else ''}>"


# --- faces: awaited, the source of what follows ---


class AsyncProgressStream(_StreamFacts[T], Generic[T]):
    """What a workflow publishes, item by item, until it has closed: `async for item in stream`."""

    def __aiter__(self) -> AsyncProgressStream[T]:
        return self

    async def __anext__(self) -> T:
        """The next item; waits for it. Raises `TimeoutError` where `follow` was given a time limit."""
        follower = self._follower
        while not follower.pending:
            if follower.ended:
                raise StopAsyncIteration
            await self._session.arun(follower.more())
        return follower.pending.popleft()


# --- faces: blocking, made by `make faces` from the lines above: edit those ---


class ProgressStream(_StreamFacts[T], Generic[T]):
    """What a workflow publishes, item by item, until it has closed: `for item in stream`."""

    def __iter__(self) -> ProgressStream[T]:
        return self

    def __next__(self) -> T:
        """The next item; waits for it. Raises `TimeoutError` where `follow` was given a time limit."""
        follower = self._follower
        while not follower.pending:
            if follower.ended:
                raise StopIteration
            self._session.run(follower.more())
        return follower.pending.popleft()


# --- faces: end ---
