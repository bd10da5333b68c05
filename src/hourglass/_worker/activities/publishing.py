"""What attempts publish: it goes to the engine by the client's calls alone, in order, before the attempt's result.

Invariants:

- What an attempt publishes is numbered, by name, from 0. There is one call at a time for an attempt; of what waits for
  the next the newest is kept, within a bound. It leaves before the attempt's result, unless the engine does not answer.
- Where an engine keeps it in the place of the heartbeat's details, each brings the other along; what a heartbeat that was
  under way longer has written over is brought again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import sleep
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import islice

from hourglass._contract.handle import (
    ActivityOk,
    ActivityResult,
    ActivityTask,
)
from hourglass._contract.progress import (
    CarriedProgress,
    ProgressItems,
    ProgressSeen,
    ProgressTaken,
    PublishProgress,
    ReadProgress,
    carrier,
    with_tail,
)
from hourglass._contract.service import EngineService
from hourglass._evaluator.specs import Payloads
from hourglass._worker.activities.attempts import Attempt
from hourglass._worker.activities.reporting import FINAL, RPC_TIMEOUT
from hourglass.converter import (
    Codec,
    Converter,
    Payload,
    WorkflowSerializationContext,
    default_converter,
    in_context,
    seal,
)
from hourglass.errors import ServiceError

logger = logging.getLogger("hourglass.worker")

MOST_ITEMS = 1000
MOST_BYTES = 256 * 1024
"""So much of one name is kept here: what waits for the next call, and what has left, for an engine that has lost it."""

_RECENT = 3.0
"""An engine that keeps only what the last call brought is brought again what is so young: followers look seldomer."""

_MOST_IN_TAIL = 64 * 1024
_LAST_PATIENCE = 5.0
_LAST_LOOK = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

_LOOKS = (0.2, 0.4, 0.8, 1.6)
"""After such pauses it is looked whether items that have left are still there. Followers look once a second at least."""


class _Items:
    """The newest items of one name: the first has the number `first`, those before `sent` have left, at `left_at`."""

    def __init__(self) -> None:
        self.values: deque[Payload] = deque()
        self.left_at: deque[float] = deque()
        self.first = 0
        self.sent = 0
        self._size = 0

    @property
    def next(self) -> int:
        """The number of the next item."""
        return self.first + len(self.values)

    def add(self, value: Payload) -> None:
        """Keep one more, and let go of the oldest where there is no room."""
        self.values.append(value)
        self.left_at.append(math.inf)
        self._size += len(value.data)
        while len(self.values) > MOST_ITEMS or (self._size > MOST_BYTES and len(self.values) > 1):
            self._size -= len(self.values.popleft().data)
            self.left_at.popleft()
            self.first += 1
        self.sent = max(self.sent, self.first)

    def since(self, name: str, begin: int) -> ProgressItems:
        """The items from this number on."""
        begin = max(begin, self.first)
        return ProgressItems(
            name=name, first=begin, items=tuple(islice(self.values, begin - self.first, None))
        )

    def youngest(self, now: float) -> int:
        """The number of the first that has left only lately, or not at all."""
        return self.first + sum(left < now - _RECENT for left in self.left_at)

    def leave(self, end: int, now: float) -> None:
        """All before this number have left."""
        for index in range(self.sent - self.first, end - self.first):
            self.left_at[index] = now
        self.sent = max(self.sent, end)


class _Publishing:
    """One attempt that publishes. `last` is what its last call brought, `carried` the same as a detail of its heartbeats."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.task = attempt.task
        self.names: dict[str, _Items] = {}
        self.last: tuple[ProgressItems, ...] = ()
        self.carried: Payloads = ()
        self.left_at = -math.inf
        self.keeper = ""
        self.keeps: bool | None = None
        self.refused = False
        self.sending: asyncio.Task[None] | None = None
        self.looking: asyncio.Task[None] | None = None
        self.ending = asyncio.Event()

    @property
    def is_due(self) -> bool:
        """Whether something has not left yet, and shall."""
        return not self.refused and any(each.sent < each.next for each in self.names.values())

    def request(self, now: float) -> PublishProgress:
        """The next call: what has not left yet, for a keeper that has the rest; else all that is young."""
        task, published = self.task, []
        for name, items in self.names.items():
            begin = items.sent if self.keeper else min(items.sent, items.youngest(now))
            if begin < items.next:
                published.append(items.since(name, begin))
        return PublishProgress(
            token=task.token,
            workflow_id=task.workflow_id,
            run_id=task.run_id,
            activity_id=task.activity_id,
            attempt=task.attempt,
            published=tuple(published),
            keeper=self.keeper,
            details=self.attempt.context.last_details,
            rpc_timeout=RPC_TIMEOUT,
        )

    def taken(self, request: PublishProgress, answer: ProgressTaken, now: float) -> None:
        """What became of a call."""
        self.keeps = answer.keeps
        if not answer.taken:  # another keeper, which has nothing: all that is left is sent again
            for items in self.names.values():
                items.sent = items.first
        else:
            for each in request.published:
                self.names[each.name].leave(each.first + len(each.items), now)
        self.keeper = answer.keeper
        self.last, self.left_at = request.published, now

    def bring_again(self) -> None:
        """What the last call brought has not left, after all."""
        for each in self.last:
            items = self.names[each.name]
            items.sent = max(items.first, min(items.sent, each.first))

    @property
    def is_doubtful(self) -> bool:
        """Whether a heartbeat that was under way may have written over what has left."""
        return self.keeps is False and self.attempt.has_sent_heartbeat

    def look(self, name: str) -> ReadProgress:
        """The question for the newest item of a name."""
        task = self.task
        newest = ProgressSeen(task.activity_id, 0, task.attempt, self.names[name].sent - 1)
        return ReadProgress(
            workflow_id=task.workflow_id,
            run_id=task.run_id,
            name=name,
            seen=(newest,),
            rpc_timeout=RPC_TIMEOUT,
        )

    def tail(self, now: float) -> CarriedProgress | None:
        """What followers may not have seen yet; None if it is too much to travel with a result."""
        published = tuple(
            items.since(name, items.youngest(now)) for name, items in self.names.items() if items.values
        )
        if sum(len(value.data) for each in published for value in each.items) > _MOST_IN_TAIL:
            return None
        return CarriedProgress(self.task.attempt, published)


class ProgressSender:
    """Brings what attempts publish to the engine, by the client's calls; on the control loop."""

    def __init__(
        self, service: EngineService, *, codec: Codec | None = None, converter: Converter = default_converter
    ) -> None:
        self._service = service
        self._codec = codec
        self._converter = converter
        self._publishing: dict[bytes, _Publishing] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, attempt: Attempt, name: str, value: Payload) -> None:
        """An attempt publishes an item."""
        token = attempt.task.token
        found = self._publishing.get(token)
        if found is None:
            found = self._publishing[token] = _Publishing(attempt)
        items = found.names.get(name)
        if items is None:
            items = found.names[name] = _Items()
        items.add(value)
        if found.sending is None:
            found.sending = self._begin(self._send(found))

    def carried(self, task: ActivityTask) -> Payloads:
        """What a heartbeat of an attempt brings along: the items that followers may not have seen yet."""
        found = self._publishing.get(task.token)
        is_young = found is not None and asyncio.get_running_loop().time() - found.left_at < _RECENT
        return found.carried if found is not None and is_young else ()

    def end(
        self, task: ActivityTask, result: ActivityResult, then: Callable[[ActivityResult], object]
    ) -> None:
        """The attempt has ended so; what it published goes first, and `then` is called with its result."""
        found = self._publishing.get(task.token)
        if found is None:
            then(result)
        else:
            found.ending.set()
            self._begin(self._end(found, result, then))

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end(
        self, found: _Publishing, result: ActivityResult, then: Callable[[ActivityResult], object]
    ) -> None:
        try:
            if found.sending is not None:
                await asyncio.wait({found.sending}, timeout=_LAST_PATIENCE)
            if found.is_due:
                logger.warning(
                    "activity %s (%s): the last of what it published did not get through",
                    found.task.activity_type,
                    found.task.activity_id,
                )
            if found.keeps is False:
                result = await self._last_look(found, result)
        finally:
            self._publishing.pop(found.task.token, None)
            if found.sending is not None:
                found.sending.cancel()
            then(result)

    async def _last_look(self, found: _Publishing, result: ActivityResult) -> ActivityResult:
        """Where nothing can be read of an attempt that is over: have its result carry the last items. A failure has no
        such place, and the next attempt would write over them: the attempt stays until a follower has looked.
        """
        tail = found.tail(asyncio.get_running_loop().time())
        if isinstance(result, ActivityOk) and tail is not None:
            value = self._converter.encode(None) if result.result is None else result.result
            return ActivityOk(result.token, with_tail(value, tail))
        for _ in range(4):
            await sleep(_LAST_LOOK / 4)
            if found.is_doubtful and not await self._is_there(found):
                found.bring_again()
                await self._send(found)
        return result

    async def _look(self, found: _Publishing) -> None:
        """Bring again what a heartbeat has written over that was under way when it left, in Core or on the wire."""
        for pause in _LOOKS:
            await _pause(found.ending, pause)
            if found.looking is not asyncio.current_task() or found.ending.is_set():
                return  # there was something new, which has a look of its own; or the end looks
            if not await self._is_there(found) and found.sending is None:
                found.bring_again()
                found.sending = self._begin(self._send(found))
                return

    async def _is_there(self, found: _Publishing) -> bool:
        """Whether what the last call brought can be read; also if that cannot be said now."""
        try:
            return all([(await self._service.call(found.look(each.name))).items for each in found.last])
        except Exception:
            return True

    async def _send(self, found: _Publishing) -> None:
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        try:
            while found.is_due:
                request = found.request(loop.time())
                try:
                    sealed = await self._sealed(request)
                    answer = await self._service.call(sealed)
                except Exception as error:
                    found.refused = getattr(error, "status", "") in ("NOT_FOUND", *FINAL)
                    self._explain(found, error, pause)
                    if found.refused:
                        return
                    await _pause(found.ending, pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    pause = _FIRST_PAUSE
                    found.taken(request, answer, loop.time())
                    if not answer.keeps:
                        found.carried = (carrier(CarriedProgress(sealed.attempt, sealed.published)),)
                    if answer.pause:
                        await _pause(found.ending, answer.pause)
            if found.is_doubtful and not found.ending.is_set():
                found.looking = self._begin(self._look(found))
        finally:
            found.sending = None

    async def _sealed(self, request: PublishProgress) -> PublishProgress:
        if self._codec is None:
            return request
        # Those who follow it read it as the workflow's.
        namespace: str = getattr(self._service, "namespace", "")
        codec = in_context(self._codec, WorkflowSerializationContext(namespace, request.workflow_id))
        return await asyncio.to_thread(seal, request, codec, self._converter)

    def _explain(self, found: _Publishing, error: Exception, pause: float) -> None:
        if pause == _FIRST_PAUSE and getattr(error, "status", "") != "NOT_FOUND":
            logger.warning(
                "activity %s (%s): what it publishes does not get through: %s",
                found.task.activity_type,
                found.task.activity_id,
                error if isinstance(error, ServiceError) else type(error).__name__,
            )


async def _pause(ending: asyncio.Event, seconds: float) -> None:
    """Rest, but not once the attempt has ended."""
    try:
        async with asyncio.timeout(seconds):
            await ending.wait()
    except TimeoutError:
        return
