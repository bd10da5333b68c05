"""Published progress of attempts. Client calls send the published items to the engine, in order, before the
attempt's result.

Invariants:

- The items of a name are numbered from 0. An attempt has one call in progress at a time. Of the items that wait
  for the next call, the newest are kept, within a limit. They are sent before the attempt's result, unless the
  engine does not answer.
- For an engine without storage for progress, the heartbeat details contain the items (`carrier`). Each
  heartbeat then also carries the recent items, and each publishing call also carries the heartbeat details.
  Items that a delayed heartbeat has overwritten are resent.
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
"""The limits for the kept items of a name. Unsent items are kept, and sent items in case the engine loses them."""

_RECENT = 3.0
"""The time in seconds for which sent items are repeated in later calls, for an engine that stores only the
items of the last call. Followers may not have read them yet.
"""

_MOST_IN_TAIL = 64 * 1024
_LAST_TIMEOUT = 5.0
_LAST_WAIT = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

_CHECK_PAUSES = (0.2, 0.4, 0.8, 1.6)
"""The pauses in seconds before each check whether sent items are still stored. Followers read at least once a
second.
"""


class _Items:
    """The newest items of a name. `first` is the number of the oldest kept item. Items with a number below
    `sent` were sent, at the times `sent_at`.
    """

    def __init__(self) -> None:
        self.values: deque[Payload] = deque()
        self.sent_at: deque[float] = deque()
        self.first = 0
        self.sent = 0
        self._size = 0

    @property
    def next(self) -> int:
        return self.first + len(self.values)

    def add(self, value: Payload) -> None:
        """Add an item, and drop the oldest items above the limits."""
        self.values.append(value)
        self.sent_at.append(math.inf)
        self._size += len(value.data)
        while len(self.values) > MOST_ITEMS or (self._size > MOST_BYTES and len(self.values) > 1):
            self._size -= len(self.values.popleft().data)
            self.sent_at.popleft()
            self.first += 1
        self.sent = max(self.sent, self.first)

    def since(self, name: str, begin: int) -> ProgressItems:
        """Return the items starting with this number."""
        begin = max(begin, self.first)
        return ProgressItems(
            name=name, first=begin, items=tuple(islice(self.values, begin - self.first, None))
        )

    def first_recent(self, now: float) -> int:
        """Return the number of the first item that was sent recently or has not been sent."""
        return self.first + sum(sent_at < now - _RECENT for sent_at in self.sent_at)

    def mark_sent(self, end: int, now: float) -> None:
        for index in range(self.sent - self.first, end - self.first):
            self.sent_at[index] = now
        self.sent = max(self.sent, end)


class _Publishing:
    """An attempt that publishes. `last` contains the items of its last call, and `carried` contains the same
    items as heartbeat details.
    """

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.task = attempt.task
        self.names: dict[str, _Items] = {}
        self.last: tuple[ProgressItems, ...] = ()
        self.carried: Payloads = ()
        self.sent_at = -math.inf
        self.keeper = ""
        self.keeps: bool | None = None
        self.rejected = False
        self.sending: asyncio.Task[None] | None = None
        self.checking: asyncio.Task[None] | None = None
        self.ending = asyncio.Event()

    @property
    def is_due(self) -> bool:
        """Whether there are unsent items that the engine accepts."""
        return not self.rejected and any(items.sent < items.next for items in self.names.values())

    def request(self, now: float) -> PublishProgress:
        """Return the next request. It contains the unsent items if the engine stores the earlier ones, or else
        all recent items.
        """
        task, published = self.task, []
        for name, items in self.names.items():
            begin = items.sent if self.keeper else min(items.sent, items.first_recent(now))
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

    def apply(self, request: PublishProgress, answer: ProgressTaken, now: float) -> None:
        """Apply the answer to a request."""
        self.keeps = answer.keeps
        if not answer.is_stored:  # another keeper without earlier items: all kept items are resent
            for items in self.names.values():
                items.sent = items.first
        else:
            for published in request.published:
                self.names[published.name].mark_sent(published.first + len(published.items), now)
        self.keeper = answer.keeper
        self.last, self.sent_at = request.published, now

    def mark_unsent(self) -> None:
        """Mark the items of the last call as unsent."""
        for published in self.last:
            items = self.names[published.name]
            items.sent = max(items.first, min(items.sent, published.first))

    @property
    def is_doubtful(self) -> bool:
        """Whether a delayed heartbeat may have overwritten sent items."""
        return self.keeps is False and self.attempt.has_sent_heartbeat

    def check_request(self, name: str) -> ReadProgress:
        """Return the request that reads the newest sent item of a name."""
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
        """Return the items that followers may not have read yet, or None if they are too large to be added to a
        result.
        """
        published = tuple(
            items.since(name, items.first_recent(now)) for name, items in self.names.items() if items.values
        )
        if sum(len(value.data) for items in published for value in items.items) > _MOST_IN_TAIL:
            return None
        return CarriedProgress(self.task.attempt, published)


class ProgressSender:
    """The sender of published items, which uses client calls. Must be used on the control loop."""

    def __init__(
        self, service: EngineService, *, codec: Codec | None = None, converter: Converter = default_converter
    ) -> None:
        self._service = service
        self._codec = codec
        self._converter = converter
        self._by_token: dict[bytes, _Publishing] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, attempt: Attempt, name: str, value: Payload) -> None:
        """Schedule the sending of an item of an attempt."""
        token = attempt.task.token
        publishing = self._by_token.get(token)
        if publishing is None:
            publishing = self._by_token[token] = _Publishing(attempt)
        items = publishing.names.get(name)
        if items is None:
            items = publishing.names[name] = _Items()
        items.add(value)
        if publishing.sending is None:
            publishing.sending = self._begin(self._send(publishing))

    def carried(self, task: ActivityTask) -> Payloads:
        """Return the additional details for a heartbeat of this attempt: the items that followers may not have
        read yet.
        """
        publishing = self._by_token.get(task.token)
        is_young = publishing is not None and asyncio.get_running_loop().time() - publishing.sent_at < _RECENT
        return publishing.carried if publishing is not None and is_young else ()

    def end(
        self, task: ActivityTask, result: ActivityResult, then: Callable[[ActivityResult], object]
    ) -> None:
        """Send the remaining items of an attempt that has ended, then call `then` with its result."""
        publishing = self._by_token.get(task.token)
        if publishing is None:
            then(result)
        else:
            publishing.ending.set()
            self._begin(self._end(publishing, result, then))

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end(
        self, publishing: _Publishing, result: ActivityResult, then: Callable[[ActivityResult], object]
    ) -> None:
        try:
            if publishing.sending is not None:
                await asyncio.wait({publishing.sending}, timeout=_LAST_TIMEOUT)
            if publishing.is_due:
                logger.warning(
                    "activity %s (%s): its last published items did not reach the engine",
                    publishing.task.activity_type,
                    publishing.task.activity_id,
                )
            if publishing.keeps is False:
                result = await self._keep_last_items(publishing, result)
        finally:
            self._by_token.pop(publishing.task.token, None)
            if publishing.sending is not None:
                publishing.sending.cancel()
            then(result)

    async def _keep_last_items(self, publishing: _Publishing, result: ActivityResult) -> ActivityResult:
        """Keep the last items readable on an engine that drops the heartbeat details at the end of an attempt.

        A successful result carries the items. A failed result cannot carry them, and the next attempt would
        overwrite them, so the result is delayed until followers have read the items.
        """
        tail = publishing.tail(asyncio.get_running_loop().time())
        if isinstance(result, ActivityOk) and tail is not None:
            value = self._converter.encode(None) if result.result is None else result.result
            return ActivityOk(result.token, with_tail(value, tail))
        for _ in range(4):
            await sleep(_LAST_WAIT / 4)
            if publishing.is_doubtful and not await self._is_stored(publishing):
                publishing.mark_unsent()
                await self._send(publishing)
        return result

    async def _resend_overwritten(self, publishing: _Publishing) -> None:
        """Resend items that a heartbeat has overwritten, after it was delayed in Core or on the network."""
        for pause in _CHECK_PAUSES:
            await _pause(publishing.ending, pause)
            if publishing.checking is not asyncio.current_task() or publishing.ending.is_set():
                return  # newer items and the attempt's end have their own checks
            if not await self._is_stored(publishing) and publishing.sending is None:
                publishing.mark_unsent()
                publishing.sending = self._begin(self._send(publishing))
                return

    async def _is_stored(self, publishing: _Publishing) -> bool:
        """Whether the items of the last call can be read from the engine. Return True if this cannot be
        determined.
        """
        try:
            return all(
                [
                    (await self._service.call(publishing.check_request(items.name))).items
                    for items in publishing.last
                ]
            )
        except Exception:
            return True

    async def _send(self, publishing: _Publishing) -> None:
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        try:
            while publishing.is_due:
                request = publishing.request(loop.time())
                try:
                    sealed = await self._sealed(request)
                    answer = await self._service.call(sealed)
                except Exception as error:
                    publishing.rejected = getattr(error, "status", "") in ("NOT_FOUND", *FINAL)
                    self._explain(publishing, error, pause)
                    if publishing.rejected:
                        return
                    await _pause(publishing.ending, pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    pause = _FIRST_PAUSE
                    publishing.apply(request, answer, loop.time())
                    if not answer.keeps:
                        publishing.carried = (carrier(CarriedProgress(sealed.attempt, sealed.published)),)
                    if answer.pause:
                        await _pause(publishing.ending, answer.pause)
            if publishing.is_doubtful and not publishing.ending.is_set():
                publishing.checking = self._begin(self._resend_overwritten(publishing))
        finally:
            publishing.sending = None

    async def _sealed(self, request: PublishProgress) -> PublishProgress:
        if self._codec is None:
            return request
        # Followers decode the items as payloads of the workflow.
        namespace: str = getattr(self._service, "namespace", "")
        codec = in_context(self._codec, WorkflowSerializationContext(namespace, request.workflow_id))
        return await asyncio.to_thread(seal, request, codec, self._converter)

    def _explain(self, publishing: _Publishing, error: Exception, pause: float) -> None:
        if pause == _FIRST_PAUSE and getattr(error, "status", "") != "NOT_FOUND":
            logger.warning(
                "activity %s (%s): its published items have not reached the engine: %s",
                publishing.task.activity_type,
                publishing.task.activity_id,
                error if isinstance(error, ServiceError) else type(error).__name__,
            )


async def _pause(ending: asyncio.Event, seconds: float) -> None:
    """Wait for `seconds`, or until the attempt has ended."""
    try:
        async with asyncio.timeout(seconds):
            await ending.wait()
    except TimeoutError:
        return
