"""The follower of a run's progress, and its blocking and asynchronous interfaces.

Two sources form one stream: the workflow's items, read from its buffer by a query (`_buffer`), and the items of its
activities, delivered by the engine (`ReadProgress`). An item of the workflow is stamped with the length of the history when
it was published. An item of an activity belongs to the event that scheduled the activity. So an activity's items come after
all items that the workflow had published before it scheduled the activity, and before all items that the workflow published
after it received the result.

A follower first waits for the history to grow and then queries, so that it misses no item in between. The workflow's items
change only when a workflow task completes, so other events do not cause a query. Must not know: threads, and event loops
other than the caller's.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import sleep
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from hourglass._contract.progress import (
    CarriedProgress,
    ProgressSeen,
    PublishedItem,
    ReadProgress,
    new_items,
    tail_of,
)
from hourglass._contract.workflows import (
    DescribeWorkflow,
    GetHistory,
    HistoryPage,
    QueryAnswer,
    QueryWorkflow,
)
from hourglass._evaluator.options import Duration, optional_seconds
from hourglass._history.codec import read_event
from hourglass._history.events import (
    ActivityTaskCanceled,
    ActivityTaskCompleted,
    ActivityTaskFailed,
    ActivityTaskScheduled,
    ActivityTaskTimedOut,
    HistoryEvent,
)
from hourglass.client._operations import Reference
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.client._waiting import call_through_outage
from hourglass.converter import Payload, unseal
from hourglass.errors import PayloadError, QueryFailedError, ServiceError, UsageError
from hourglass.progress._buffer import MOST_AT_ONCE, query_name

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """The attempt of an activity that published an item, and the index of the item within the attempt, from 0."""

    activity_id: str
    activity_type: str
    attempt: int
    number: int


class ActivityItems:
    """The activities of a run, as read from the run's history, and the items that the activities have published.

    `open` contains the activities that have not ended. `marks` contains the position in each activity's items: the attempt,
    and the index of the next item. `held` contains items of activities that have not appeared in the history yet.
    """

    def __init__(self, name: str, marks: Mapping[int, tuple[int, int]]) -> None:
        self.open: set[int] = set()
        self.held: list[PublishedItem] = []
        self.marks = dict(marks)
        self.missed = 0
        self._name = name
        self._ids: dict[int, tuple[str, str]] = {}
        self._scheduled: dict[str, int] = {}

    @property
    def is_any(self) -> bool:
        """Whether the run has scheduled any activities."""
        return bool(self._ids)

    def request(self, workflow_id: str, run_id: str, *, wait: bool) -> ReadProgress:
        """Return the request for new items."""
        seen = tuple(
            ProgressSeen(self._ids[scheduled][0], scheduled, *mark)
            for scheduled, mark in self._reading().items()
            if scheduled in self._ids
        )
        return ReadProgress(
            workflow_id=workflow_id,
            run_id=run_id,
            name=self._name,
            seen=seen,
            wait_new=wait,
        )

    def _reading(self) -> dict[int, tuple[int, int]]:
        """Return the position in each activity's items, including held items."""
        marks = dict(self.marks)
        for item in self.held:
            scheduled = self.scheduled(item)
            if scheduled:
                marks[scheduled] = max(marks.get(scheduled, (0, 0)), (item.attempt, item.number + 1))
        return marks

    def note(self, event: HistoryEvent) -> Payload | None:
        """Record an event about an activity. Return the result of a completed activity, because it may carry the last
        items."""
        match event.attributes:
            case ActivityTaskScheduled() as attributes:
                self._ids[event.id] = attributes.activity_id, attributes.activity_type
                self._scheduled[attributes.activity_id] = event.id
                self.open.add(event.id)
            case ActivityTaskCompleted() as end:
                self.open.discard(end.scheduled_event_id)
                return end.result
            case ActivityTaskFailed() | ActivityTaskTimedOut() | ActivityTaskCanceled() as end:
                self.open.discard(end.scheduled_event_id)
            case _:
                pass
        return None

    def note_tail(self, scheduled: int, carried: CarriedProgress) -> None:
        """Record the last items of an activity, carried by the activity's result."""
        id, type = self._ids.get(scheduled, ("", ""))
        for item in new_items(carried, self._name, id, type, {}):
            self.held.append(msgspec.structs.replace(item, scheduled_event_id=scheduled))

    def scheduled(self, item: PublishedItem) -> int:
        """Return the id of the event that scheduled the item's activity; 0 if that event has not been read yet."""
        event_id = item.scheduled_event_id or self._scheduled.get(item.activity_id, 0)
        return event_id if event_id in self._ids else 0

    def take(self, until: Callable[[int], bool], *, counts: bool) -> Iterator[PublishedItem]:
        """Yield held items of activities that were scheduled early enough. With `counts`, count gaps as missed items."""
        held, self.held = self.held, []
        for item in held:
            scheduled = self.scheduled(item)
            if not scheduled or not until(scheduled):
                self.held.append(item)
                continue
            attempt, expected = self.marks.get(scheduled, (0, 0))
            if (item.attempt, item.number) < (attempt, expected):
                continue
            if counts:
                self.missed += item.number - (expected if item.attempt == attempt else 0)
            self.marks[scheduled] = item.attempt, item.number + 1
            yield item


NEW_ONES = sys.maxsize
"""The offset of a follower that wants only future items."""

_TASK_DONE = b"EVENT_TYPE_WORKFLOW_TASK_COMPLETED"
_OF_ACTIVITY = b'"EVENT_TYPE_ACTIVITY_TASK_'
_STARTED = b'"EVENT_TYPE_ACTIVITY_TASK_STARTED"'
_MOST_READS = 100


@dataclass(frozen=True)
class StreamAnswer:
    """The result of a query. The answer is None if there is no item yet; `ended` is True if no more items will be published.

    `read_to` is the last history event that was read before the query, or 0 if the workflow was not queried.
    """

    answer: QueryAnswer | None
    ended: bool
    read_to: int = 0


class Follower(Generic[T]):
    """A reader of the items of one workflow."""

    def __init__(
        self, name: str, type: Any, reference: Reference, begin: str | int, limit: Duration | None
    ) -> None:
        self.pending: deque[T] = deque()
        self.ended = False
        self.origin: Origin | None = None
        self._missed = 0
        self._origins: deque[tuple[int, Origin] | None] = deque()
        self._name = name
        self._type = type
        self._workflow_id = reference.workflow_id
        self._limit = optional_seconds(limit, "timeout")
        self._token = b""
        self._closed = False
        self._successor = ""
        self._due = False
        self._last_answer: QueryAnswer | None = None
        self._run_id = reference.run_id
        self._offset = begin if isinstance(begin, int) else 0
        self._newest_only: int | None = None
        self._read_to = self._asked_to = 0
        self._taken: dict[int, tuple[int, int]] = {}
        if isinstance(begin, str):
            position, _, marks = begin.partition("+")
            self._run_id, self._offset = read_position(position)
            self._taken = read_marks(marks)
        elif begin < 0 or begin == NEW_ONES:
            self._newest_only = 0 if begin == NEW_ONES else -begin
        self._activities = ActivityItems(name, self._taken)

    @property
    def missed(self) -> int:
        """The number of items that were dropped before they could be read."""
        return self._missed + self._activities.missed

    @property
    def position(self) -> str:
        """The position where another follower can continue: after the last item that was returned."""
        own = sum(origin is None for origin in self._origins)
        marks = ",".join(f"{scheduled}.{at[0]}.{at[1]}" for scheduled, at in self._taken.items())
        return f"{self._run_id}/{self._offset - own}" + (f"+{marks}" if marks else "")

    def take(self) -> T:
        """Return the next pending item."""
        entry = self._origins.popleft()
        self.origin = None if entry is None else entry[1]
        if entry is not None:
            self._taken[entry[0]] = entry[1].attempt, entry[1].number + 1
        return self.pending.popleft()

    def more(self) -> ClientOperation[None]:
        """Wait for new items. Repeat the call until `pending` contains items or `ended` is True."""

        async def ask(session: ClientSession) -> tuple[StreamAnswer, ClientSession]:
            return await self._ask_in_time(session), session

        return ClientOperation(ask, lambda answer: self._take(*answer))

    def as_it_is(self) -> ClientOperation[None]:
        """Read the existing items without waiting or following."""

        async def ask(session: ClientSession) -> tuple[StreamAnswer, ClientSession]:
            await self._find_run(session)
            await self._read_items(session)
            while self._activities.held and not self._closed:  # the history determines their order
                page = await call_through_outage(session, self._history(wait=False))
                await self._note_page(session, page)
            try:
                answer = await self._query(session)
            except QueryFailedError:
                answer = None
            return StreamAnswer(answer, True, self._read_to), session

        return ClientOperation(ask, lambda answer: self._take(*answer))

    async def _ask_in_time(self, session: ClientSession) -> StreamAnswer:
        try:
            async with session.within(self._limit):
                return await self._ask(session)
        except TimeoutError as error:
            if isinstance(error, ServiceError) or self._limit is None:
                raise
            raise TimeoutError(
                f"workflow {self._workflow_id!r} has published no further item of {self._name!r} within {self._limit:g} s"
            ) from None

    async def _ask(self, session: ClientSession) -> StreamAnswer:
        """Query until the answer differs from the previous answer, or activities have published items.

        The first query is sent immediately if it is due. Later queries are sent when a workflow task has completed.
        """
        await self._find_run(session)
        while True:
            if not self._due:
                # The query stays due until it is answered, because the wait may be interrupted.
                self._due = await self._something_happens(session)
            if not self._due:
                return StreamAnswer(None, False)
            closed, read_to = self._closed, self._read_to
            answer = await self._query(session)
            if answer is None and not 0 <= self._offset < NEW_ONES:
                self._offset = 0  # no existing items, and all future ones
            if self._activities.is_any:
                # Read after the query, so that all items published before its answer are included.
                await self._read_items(session)
            if closed or (answer is not None and answer != self._last_answer) or self._activities.held:
                return StreamAnswer(answer, closed, read_to)
            self._due, self._asked_to, self._newest_only = False, read_to, None

    async def _find_run(self, session: ClientSession) -> None:
        if not self._run_id:
            current = await session.call(DescribeWorkflow(workflow_id=self._workflow_id))
            self._run_id = current.summary.run_id

    async def _query(self, session: ClientSession) -> QueryAnswer | None:
        request = QueryWorkflow(
            workflow_id=self._workflow_id,
            run_id=self._run_id,
            query_name=query_name(self._name),
            arguments=tuple(session.converter.encode_all((self._offset, MOST_AT_ONCE, True))),
        )
        try:
            return await call_through_outage(session, request)
        except QueryFailedError:
            if self._closed and self._offset:
                raise  # it has published before, so its code can no longer report its last items
            return None  # it has not published yet, or cannot answer now

    async def _read_items(self, session: ClientSession) -> None:
        """Read all items that activities have published so far."""
        for _ in range(_MOST_READS):
            request = self._activities.request(self._workflow_id, self._run_id, wait=False)
            read = await call_through_outage(session, request)
            self._activities.held += read.items
            if not read.items or read.pause:
                return

    async def _something_happens(self, session: ClientSession) -> bool:
        """Wait for the history to grow and, while activities run, for items from them. Return whether to query the
        workflow."""
        while not self._closed:
            page = await self._page_or_items(session)
            if page is None:
                return False
            await self._note_page(session, page)
            if self._closed or any(_TASK_DONE in event for event in page.events):
                return True
        return True

    async def _page_or_items(self, session: ClientSession) -> HistoryPage | None:
        if not self._activities.open:
            return await call_through_outage(session, self._history(wait=True))
        growth = asyncio.ensure_future(call_through_outage(session, self._history(wait=True)))
        items = asyncio.ensure_future(self._wait_for_items(session))
        try:
            await asyncio.wait({growth, items}, return_when=asyncio.FIRST_COMPLETED)
            if items.done():
                self._activities.held += items.result()
            return growth.result() if growth.done() else None
        finally:
            for task in (growth, items):
                task.cancel()
            await asyncio.gather(growth, items, return_exceptions=True)

    async def _wait_for_items(self, session: ClientSession) -> tuple[PublishedItem, ...]:
        while True:
            request = self._activities.request(self._workflow_id, self._run_id, wait=True)
            read = await call_through_outage(session, request)
            if read.items:
                return read.items
            await sleep(read.pause)

    def _history(self, *, wait: bool) -> GetHistory:
        return GetHistory(
            workflow_id=self._workflow_id, run_id=self._run_id, next_page_token=self._token, wait_new=wait
        )

    async def _note_page(self, session: ClientSession, page: HistoryPage) -> None:
        self._token = page.next_page_token
        for event in page.events:
            await self._note(session, event)
        if not page.next_page_token:
            self._closed, self._successor = True, _successor(page)

    async def _note(self, session: ClientSession, data: bytes) -> None:
        self._read_to += 1
        if _OF_ACTIVITY not in data or _STARTED in data:
            return
        event = read_event(msgspec.json.decode(data))
        result = self._activities.note(event)
        if result is None or not isinstance(event.attributes, ActivityTaskCompleted):
            return
        if session.codec is not None:
            try:
                result = await asyncio.to_thread(unseal, result, session.codec, session.converter)
            except PayloadError:
                return  # encoded by another codec: a client that waits for the result receives the error
        carried = tail_of(result)
        if carried is not None:
            self._activities.note_tail(event.attributes.scheduled_event_id, carried)

    def _take(self, answer: StreamAnswer, session: ClientSession) -> None:
        if not answer.read_to and not answer.ended:
            self._add_items(session, lambda scheduled: scheduled <= self._asked_to)
            return
        before = len(self.pending)
        self._last_answer = answer.answer
        self._due = False
        if answer.answer is not None and answer.answer.result:
            self._take_batch(
                answer.answer.result[0], session, sys.maxsize if answer.ended else answer.read_to
            )
        if not self._due:
            self._asked_to = answer.read_to
            self._add_items(session, lambda scheduled: answer.ended or scheduled <= answer.read_to)
        if self._newest_only is not None and not self._due:
            self._trim(before)
        if answer.ended and not self._due:
            self._move_on()

    def _take_batch(self, payload: Payload, session: ClientSession, read_to: int) -> None:
        """Take the workflow's items, merged with items of activities.

        Items of a workflow task wait for the next query if the end of the task has not been read yet, because earlier items
        of activities may still be missing.
        """
        converter = session.converter
        parts: list[Any] = converter.decode(payload, list[Any])
        stamped = len(parts) > 3
        hint: Any = tuple[int, int, list[self._type]]  # type: ignore[name-defined]
        if stamped:
            hint = tuple[int, int, list[self._type], list[int]]  # type: ignore[name-defined]
        first, published, items = converter.decode(payload, hint)[:3]
        if 0 <= self._offset < NEW_ONES:
            self._missed += max(0, first - self._offset)
        self._offset = first
        for number, item in enumerate(items):
            stamp = parts[3][number] if stamped else 0
            if stamp >= read_to:
                self._last_answer = None  # the next answer will be the same
                return
            if self._activities.held:
                self._add_items(session, lambda scheduled: scheduled < stamp)  # noqa: B023
            self.pending.append(item)
            self._origins.append(None)
            self._offset += 1
        self._due = self._offset < published

    def _add_items(self, session: ClientSession, until: Callable[[int], bool]) -> None:
        for item in self._activities.take(until, counts=self._newest_only is None):
            origin = Origin(item.activity_id, item.activity_type, item.attempt, item.number)
            self.pending.append(session.converter.decode(item.value, self._type))
            self._origins.append((self._activities.scheduled(item), origin))

    def _trim(self, before: int) -> None:
        """Drop all but the newest existing items."""
        assert self._newest_only is not None
        too_many = len(self.pending) - before - self._newest_only
        for _ in range(max(0, too_many)):
            self.take()
        self.origin = self._newest_only = None

    def _move_on(self) -> None:
        """Switch to the next run of the chain, if there is one. Offsets start from 0 in each run."""
        if not self._successor:
            self.ended = True
        elif not self.pending:  # otherwise the position would name the wrong run
            self._run_id, self._successor = self._successor, ""
            self._offset, self._token, self._closed, self._last_answer = 0, b"", False, None
            self._missed, self._read_to, self._asked_to, self._taken = self.missed, 0, 0, {}
            self._activities = ActivityItems(self._name, {})


def read_position(position: str) -> tuple[str, int]:
    """Return the run id and the offset of a position."""
    run_id, _, offset = position.rpartition("/")
    if not run_id or not offset.isdecimal():
        raise UsageError(_NO_POSITION)
    return run_id, int(offset)


def read_marks(marks: str) -> dict[int, tuple[int, int]]:
    """Return the part of a position that covers activities: the attempt and next index for each scheduling event."""
    marks_by_event: dict[int, tuple[int, int]] = {}
    for mark in marks.split(",") if marks else ():
        numbers = mark.split(".")
        if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
            raise UsageError(_NO_POSITION)
        marks_by_event[int(numbers[0])] = int(numbers[1]), int(numbers[2])
    return marks_by_event


_NO_POSITION = "after= must be a position that the .position of a stream returned"


def _successor(page: HistoryPage) -> str:
    """Return the id of the run that continues this one, from its last events; "" if there is none."""
    last = read_event(msgspec.json.decode(page.events[-1])).attributes if page.events else None
    return str(getattr(last, "new_run_id", ""))


class _StreamFacts(Generic[T]):
    def __init__(self, session: ClientSession, follower: Follower[T]) -> None:
        self._session = session
        self._follower = follower

    @property
    def position(self) -> str:
        """The position as a str. `follow(handle, after=position)` continues from there, also in another process."""
        return self._follower.position

    @property
    def missed(self) -> int:
        """The number of items that were dropped before they could be read, because only the newest items are kept."""
        return self._follower.missed

    @property
    def origin(self) -> Origin | None:
        """The activity attempt that published the last returned item; None if the workflow published it."""
        return self._follower.origin

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.position}{', ended' if self._follower.ended else ''}>"


# --- faces: awaited, the source of what follows ---


class AsyncProgressStream(_StreamFacts[T], Generic[T]):
    """The published items of a workflow until it is closed: `async for item in stream`."""

    def __aiter__(self) -> AsyncProgressStream[T]:
        return self

    async def __anext__(self) -> T:
        """Return the next item, waiting if there is none. Raise `TimeoutError` if the timeout passed to `follow` expires."""
        follower = self._follower
        while not follower.pending:
            if follower.ended:
                raise StopAsyncIteration
            await self._session.arun(follower.more())
        return follower.take()


# --- faces: blocking, made by `make faces` from the lines above: edit those ---


class ProgressStream(_StreamFacts[T], Generic[T]):
    """The published items of a workflow until it is closed: `for item in stream`."""

    def __iter__(self) -> ProgressStream[T]:
        return self

    def __next__(self) -> T:
        """Return the next item, waiting if there is none. Raise `TimeoutError` if the timeout passed to `follow` expires."""
        follower = self._follower
        while not follower.pending:
            if follower.ended:
                raise StopIteration
            self._session.run(follower.more())
        return follower.take()


# --- faces: end ---
