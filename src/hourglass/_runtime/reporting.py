"""Heartbeats and results of attempts that outlive the handle they came through, sent by the handle while it takes
them, else by the client's calls; and what attempts publish, which goes by the client's calls alone.

Invariants:

- Of heartbeats there is one call at a time for an attempt, and never two within the throttle; of those that come
  meanwhile only the newest is kept, with its details, since a heartbeat without them wipes them on the server.
- A completion that was begun is never cancelled. Nothing is raised; what cannot be told is logged, and the engine's
  own timeouts mend it.
- What an attempt publishes is numbered, by name, from 0. There is one call at a time for an attempt; of what waits for
  the next the newest is kept, within a bound. It leaves before the attempt's result, unless the engine does not answer.
- Where an engine keeps it in the place of the heartbeat's details, each brings the other along; what a heartbeat that was
  under way longer has written over is brought again.
- Local activities live in the handle alone: their results cannot be sent again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from itertools import islice

from hourglass._contract.activities import CompleteActivity, HeartbeatActivity
from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    context_of,
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
    without_carrier,
)
from hourglass._contract.service import EngineService
from hourglass._engine.specs import Payloads
from hourglass._runtime.attempts import Attempt, Heartbeat
from hourglass._runtime.work_log import facts_of
from hourglass.converter import (
    CanceledFailure,
    Codec,
    Converter,
    Payload,
    WorkflowSerializationContext,
    default_converter,
    in_context,
    seal,
)
from hourglass.errors import ServiceError

# --- heartbeats ------------------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")

THROTTLE = 5.0
RPC_TIMEOUT = 10.0


class HeartbeatSender:
    """A `Heartbeat` around another, the handle's. On the control loop; `cancel` is the executor's.

    An attempt goes on when its worker or handle is gone; without heartbeats the server would give it up and have it
    run a second time beside the first. While the handle takes heartbeats nothing happens here. The answer to a call
    of the client's tells what the handle can tell no more: that the attempt was cancelled, or that the server does
    not wait for it any more.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        service: EngineService,
        cancel: Callable[[bytes, str], None],
        *,
        codec: Codec | None = None,
        converter: Converter = default_converter,
        throttle: float = THROTTLE,
    ) -> None:
        self._heartbeat = heartbeat
        self._service = service
        self._cancel = cancel
        self._codec = codec
        self._converter = converter
        self._throttle = throttle
        self._newest: dict[bytes, Payloads | None] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def __call__(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives: by the handle, else by the client."""
        try:
            self._heartbeat(token, details)
            return
        except Exception as error:
            if token in self._newest:
                self._newest[token] = details
                return
            logger.info("a heartbeat goes by the client: its handle says %s", type(error).__name__)
        self._newest[token] = None
        task = asyncio.get_running_loop().create_task(self._send(token, details))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, token: bytes, details: Payloads) -> None:
        following: Payloads | None = details
        try:
            while following is not None:
                self._newest[token] = None
                await self._call(token, following)
                await asyncio.sleep(self._throttle)
                following = self._newest[token]
        finally:
            self._newest.pop(token, None)

    async def _call(self, token: bytes, details: Payloads) -> None:
        request = HeartbeatActivity(token=token, details=details, rpc_timeout=RPC_TIMEOUT)
        try:
            if self._codec is not None:
                own = without_carrier(details)
                sealed = await asyncio.to_thread(seal, own, self._codec, self._converter)
                request = HeartbeatActivity(
                    token=token, details=(*sealed, *details[len(own) :]), rpc_timeout=RPC_TIMEOUT
                )
            answer = await self._service.call(request)
        except ServiceError as error:
            if error.status == "NOT_FOUND":
                self._cancel(token, "NOT_FOUND")
            else:
                logger.warning("a heartbeat could not be sent by the client: %s", error)
        except Exception as error:
            logger.warning("a heartbeat could not be sent by the client: %s", type(error).__name__)
        else:
            if answer.cancel_requested:
                self._cancel(token, "CANCELLED")


# --- what attempts publish -------------------------------------------------------------------------------------------


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
        return self.keeps is False and self.attempt.has_beaten

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
            await asyncio.sleep(_LAST_LOOK / 4)
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
                    found.refused = getattr(error, "status", "") in ("NOT_FOUND", *_FINAL)
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


# --- results ---------------------------------------------------------------------------------------------------------


PATIENCE = 5.0
PAUSES: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0, 10.0)

# Asking again would be answered the same.
_FINAL = frozenset(("INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"))

Complete = Callable[[ActivityResult], Awaitable[None]]


class Delivery(Enum):
    """How a result got to the engine."""

    BY_HANDLE = "by handle"
    BY_CLIENT = "by client"
    UNWANTED = "unwanted"
    LOST = "lost"


class ResultSender:
    """Gets the result of an attempt to the engine, also when the handle it came through is gone or does not answer.
    On the control loop; `service` is the raw connection, which a codec is given for.

    The handle's own completion is tried first. If it raises, or is not through after a few seconds (after an outage
    of 6 to 10 seconds Core drops results silently), the same result is sent by the client's call, again and again
    with growing pauses. Sending it twice is harmless: the second completion is answered with NOT_FOUND, for the
    activity does not wait any more.
    """

    def __init__(
        self,
        service: EngineService,
        *,
        codec: Codec | None = None,
        converter: Converter = default_converter,
        patience: float = PATIENCE,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._service = service
        self._codec = codec
        self._converter = converter
        self._patience = patience
        self._pauses = pauses
        self._begun: set[asyncio.Future[None]] = set()
        self.resent = 0
        self.lost = 0

    async def send(self, task: ActivityTask, result: ActivityResult, complete: Complete) -> Delivery:
        """Report the end of an attempt: by the handle, else by the client. `complete` is the handle's."""
        own = self._begin(complete, result)
        await asyncio.wait({own}, timeout=self._patience)
        if _through(own):
            return Delivery.BY_HANDLE
        if not (task.is_local and own.done()):
            self._explain(task, own)
        if task.is_local or isinstance(result, ActivityDeferred):
            await asyncio.wait({own})  # the client has no call for it: only the handle can take it
            if _through(own):
                return Delivery.BY_HANDLE
            return self._lose_local(task) if task.is_local else self._give_up(task, "it has no other way")
        try:
            request = await self._sealed(request_of(task, result), task)
        except Exception as error:
            return self._give_up(task, f"its codec failed: {type(error).__name__}")
        return await self._resend(task, request, own)

    async def _resend(
        self, task: ActivityTask, request: CompleteActivity, own: asyncio.Future[None]
    ) -> Delivery:
        problem: Exception | None = None
        for pause in (*self._pauses, None):
            try:
                await self._service.call(request)
            except ServiceError as error:
                if error.status == "NOT_FOUND":
                    # The handle's completion got through first, or the server gave the attempt up.
                    return Delivery.BY_HANDLE if _through(own) else Delivery.UNWANTED
                problem = error
            except Exception as error:
                problem = error
            else:
                self.resent += 1
                return Delivery.BY_CLIENT
            if pause is None or getattr(problem, "status", "") in _FINAL:
                break
            await _rest(own, pause)
            if _through(own):
                return Delivery.BY_HANDLE
        return self._give_up(task, str(problem))

    def _begin(self, complete: Complete, result: ActivityResult) -> asyncio.Future[None]:
        async def run() -> None:
            await complete(result)

        own: asyncio.Future[None] = asyncio.get_running_loop().create_task(run())
        self._begun.add(own)  # asyncio holds tasks weakly, and this one goes on after `send` has returned
        own.add_done_callback(self._ended)
        return own

    def _ended(self, own: asyncio.Future[None]) -> None:
        self._begun.discard(own)
        if not own.cancelled():
            own.exception()  # looked at: asyncio shall not complain

    def _explain(self, task: ActivityTask, own: asyncio.Future[None]) -> None:
        why = _problem(own) if own.done() else f"the engine has not taken it within {self._patience:g} s"
        logger.warning(
            "the result of activity %s (%s) does not get through: %s",
            task.activity_type,
            task.activity_id,
            why,
            extra=facts_of(task),
        )

    def _lose_local(self, task: ActivityTask) -> Delivery:
        self.lost += 1
        logger.warning(
            "local activity %s (%s) of workflow %s ended after its worker's handle, or was ended with it: it does not count. Its "
            "workflow task is tried again, and the activity with it",
            task.activity_type,
            task.activity_id,
            task.workflow_id,
            extra=facts_of(task),
        )
        return Delivery.LOST

    def _give_up(self, task: ActivityTask, why: str) -> Delivery:
        self.lost += 1
        logger.error(
            "the result of activity %s (%s) is lost: %s; its timeouts will tell",
            task.activity_type,
            task.activity_id,
            why,
            extra=facts_of(task),
        )
        return Delivery.LOST

    async def _sealed(self, request: CompleteActivity, task: ActivityTask) -> CompleteActivity:
        codec = self._codec
        if codec is None:
            return request
        codec = in_context(codec, context_of(task))
        return await asyncio.to_thread(seal, request, codec, self._converter)


def request_of(task: ActivityTask, result: ActivityResult) -> CompleteActivity:
    """A result as a client's request. Pure."""
    match result:
        case AttemptFailed(token, failure):
            return CompleteActivity(token=token, failure=failure, rpc_timeout=RPC_TIMEOUT)
        case AttemptCancelled(token, failure):
            details = failure.info.details if isinstance(failure.info, CanceledFailure) else ()
            return CompleteActivity(
                token=token, cancelled=True, cancelled_details=details, rpc_timeout=RPC_TIMEOUT
            )
        case ActivityOk(token, payload):
            return CompleteActivity(token=token, result=payload, rpc_timeout=RPC_TIMEOUT)
        case ActivityDeferred():
            raise ValueError(
                f"activity {task.activity_type} is completed from outside, and has no end to report"
            )


def _through(own: asyncio.Future[None]) -> bool:
    return own.done() and not own.cancelled() and own.exception() is None


def _problem(own: asyncio.Future[None]) -> str:
    error = None if own.cancelled() else own.exception()
    return "cancelled" if error is None else f"{type(error).__name__}: {error}"


async def _rest(own: asyncio.Future[None], pause: float) -> None:
    """Wait, but not longer than the handle's own completion takes."""
    if own.done():
        await asyncio.sleep(pause)
    else:
        await asyncio.wait({own}, timeout=pause)
