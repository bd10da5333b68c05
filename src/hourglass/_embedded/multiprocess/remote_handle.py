"""A worker's handle on an engine in another process, over the connection to the file's owner.

Must not know: locks, who owns the file next, how the owner chooses what it sends. It is what `workers.handle` is to an
engine in this process, and implements the same protocols: the owner has an `EngineHandle` for it, which keeps histories
and takes what waits; here arrives what that gives out. What a worker answers in one turn of the loop is sent as one
message.

Invariants: what has arrived is given to the worker in the order in which it was sent; nothing is sent after the
connection has ended, and then every poll raises `HandleBroken`: what the worker had is given to others by the owner, or
taken up by the next. Heartbeats are thinned out here, so that none costs a message which would count for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    HandleBroken,
    HandleConfig,
    InProcess,
    Shutdown,
)
from hourglass._embedded.activations.activity_slots import Heartbeats
from hourglass._embedded.clock import Bell, RealClock
from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.unix_socket import FRAME_LIMIT
from hourglass._evaluator.commands import Completion, Succeeded, TaskFailed
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import HourglassError

_UNSENDABLE = (msgspec.MsgspecError, OverflowError, ValueError, TypeError, RecursionError)
"""What is raised of a value that MessagePack has no form for, such as a number of more than 64 bits."""


class OwnerLink(Protocol):
    """What a handle needs of the connection to the owner."""

    @property
    def is_open(self) -> bool:
        """Whether anything can still be said."""
        ...

    @property
    def unconfirmed(self) -> dict[bytes, ActivityResult]:
        """Results that were sent and are not known to be durable, by token."""
        ...

    def tell(self, message: wire.ToOwner) -> None:
        """Send a message that has no answer."""
        ...

    def send(self, data: bytes) -> None:
        """Send a message that is encoded already."""
        ...

    async def close_handle(self, handle: int) -> None:
        """Have the owner close a handle of ours, and wait for that. Raises `ConnectionLost`."""
        ...


class RemoteHandle:
    """Implements `hourglass._contract.handle.Handle`, and `InProcess`: what the connection brings is given to the worker
    in the same turn of the loop.
    """

    def __init__(self, link: OwnerLink, number: int, config: HandleConfig) -> None:
        self.number = number
        self.in_process: InProcess = self
        self.on_activations: Callable[[Sequence[Activation]], object] | None = None
        self.on_activities: Callable[[Sequence[ActivityItem]], object] | None = None
        self._link = link
        self._activations: deque[Activation] = deque()
        self._activities: deque[ActivityItem] = deque()
        self._task_bell, self._activity_bell = Bell(), Bell()
        self._task_polls = self._activity_polls = 0
        self._tasks_ended = self._activities_ended = False
        self._broken: HandleBroken | None = None
        self._heartbeat_timeouts: dict[bytes, float] = {}
        self._heartbeats = Heartbeats(RealClock(), config, self._beat)
        self._answers = _Answers()
        self._will_send = False

    # --- from the owner -------------------------------------------------------------------------------------

    def heard(self, work: wire.HandleWork) -> None:
        """The owner sends work."""
        if work.activations:
            on_activations = self.on_activations
            if on_activations is not None and self._task_polls and not self._activations:
                on_activations(work.activations)
            else:
                self._activations.extend(work.activations)
                self._task_bell.ring()
        if work.tasks or work.cancels:
            for task in work.tasks:
                if not task.is_local:
                    self._heartbeat_timeouts[task.token] = task.spec.heartbeat_timeout
            items: tuple[ActivityItem, ...] = (*work.tasks, *work.cancels)
            on_activities = self.on_activities
            if on_activities is not None and self._activity_polls and not self._activities:
                on_activities(items)
            else:
                self._activities.extend(items)
                self._activity_bell.ring()

    def ended(self, end: wire.PollEnded) -> None:
        """The owner has no more of one kind."""
        if end.broken:
            self.fail(end.broken)
        elif end.activities:
            self._activities_ended = True
        else:
            self._tasks_ended = True
        self._ring()

    def fail(self, why: str) -> None:
        """The connection has ended, or the owner's engine has: nothing more comes, and nothing is heard."""
        if self._broken is None:
            self._heartbeats.close()
            self._broken = HandleBroken(why)
            self._activations.clear()
            for item in self._activities:  # the worker has not got them, and will not
                if isinstance(item, ActivityTask):
                    self._heartbeat_timeouts.pop(item.token, None)
            self._activities.clear()
            self._ring()

    @property
    def attempts(self) -> set[bytes]:
        """The attempts that the worker has, but for local ones, by their tokens."""
        waiting = {item.token for item in self._activities if isinstance(item, ActivityTask)}
        return {token for token in self._heartbeat_timeouts if token not in waiting}

    def _ring(self) -> None:
        self._task_bell.ring()
        self._activity_bell.ring()

    # --- polls ----------------------------------------------------------------------------------------------

    async def poll_activation(self) -> Activation:
        """Wait for the next activation; raise `Shutdown` at the end."""
        self._task_polls += 1
        try:
            while True:
                self._check()
                if self._activations:
                    return self._activations.popleft()
                if self._tasks_ended:
                    raise Shutdown("the handle is shut down")
                await self._task_bell.wait()
        finally:
            self._task_polls -= 1

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task or cancellation; raise `Shutdown` at the end."""
        self._activity_polls += 1
        try:
            while True:
                self._check()
                if self._activities:
                    return self._activities.popleft()
                if self._activities_ended:
                    raise Shutdown("the handle is shut down")
                await self._activity_bell.wait()
        finally:
            self._activity_polls -= 1

    def take_activations(self) -> list[Activation]:
        """Those that have arrived."""
        taken = list(self._activations)
        self._activations.clear()
        return taken

    def take_activities(self) -> list[ActivityItem]:
        """Those that have arrived."""
        taken = list(self._activities)
        self._activities.clear()
        return taken

    # --- to the owner ---------------------------------------------------------------------------------------

    async def complete_activation(self, completion: Completion) -> None:
        """Answer an activation."""
        self.answer_activation(completion)

    def answer_activation(self, completion: Completion) -> bool:
        """The same at once. What the owner makes of it comes later: a run that it forgets is evicted."""
        self._check()
        if isinstance(completion, Succeeded):
            self._answers.succeeded.append(completion)
        else:
            self._answers.failed_tasks.append(completion)
        self._send_soon()
        return False

    async def complete_activity(self, result: ActivityResult) -> None:
        """Report the end of an attempt."""
        self.answer_activity(result)

    def answer_activity(self, result: ActivityResult) -> None:
        """The same at once."""
        self._check()
        if (
            self._heartbeat_timeouts.pop(result.token, None) is not None
        ):  # local attempts are not listed there
            self._link.unconfirmed[result.token] = result
        self._heartbeats.end(result.token, flush=not isinstance(result, ActivityOk))
        self._answers.add_result(result)
        self._send_soon()

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives."""
        self._check()
        timeout = self._heartbeat_timeouts.get(token)
        if timeout is not None:
            self._heartbeats.beat(token, details, timeout)

    def _beat(self, token: bytes, details: Payloads) -> None:
        self._answers.heartbeats.append((token, details))
        self._send_soon()

    def request_eviction(self, run_id: str) -> None:
        """Ask that a run be evicted."""
        self._check()
        self._answers.evictions.append(run_id)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._will_send:
            self._will_send = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._will_send = False
        answers, self._answers = self._answers, _Answers()
        if self._broken is None and self._link.is_open:
            for data in answers.messages(self.number):
                self._link.send(data)

    # --- the end --------------------------------------------------------------------------------------------

    def initiate_shutdown(self) -> None:
        """Take no new work."""
        if self._broken is None:
            self._link.tell(wire.ShutDownHandle(self.number))

    async def finalize_shutdown(self) -> None:
        """Free everything: what is still in hand the owner gives to others."""
        if self._broken is None:
            self._send()
            try:
                await self._link.close_handle(self.number)
            except HourglassError:
                pass  # with the connection all is given back
        self.fail("the handle is shut down")

    def _check(self) -> None:
        if self._broken is not None:
            raise HandleBroken(str(self._broken))


def encode_results(results: Iterable[ActivityResult]) -> Iterator[bytes]:
    """Encode results that were kept since an earlier owner as messages to the next one."""
    answers = _Answers()
    for result in results:
        answers.add_result(result)
    yield from answers.messages(wire.NO_HANDLE)


class _Answers:
    """What a worker has said since the last message."""

    __slots__ = (
        "cancelled",
        "deferred",
        "evictions",
        "failed",
        "failed_tasks",
        "heartbeats",
        "returned",
        "succeeded",
    )

    def __init__(self) -> None:
        self.heartbeats: list[tuple[bytes, Payloads]] = []
        self.returned: list[ActivityOk] = []
        self.failed: list[AttemptFailed] = []
        self.cancelled: list[AttemptCancelled] = []
        self.deferred: list[ActivityDeferred] = []
        self.succeeded: list[Succeeded] = []  # as they are: what is read has the same form
        self.failed_tasks: list[TaskFailed] = []
        self.evictions: list[str] = []

    def add_result(self, result: ActivityResult) -> None:
        """Add the result of an attempt."""
        if isinstance(result, ActivityOk):
            self.returned.append(result)
        elif isinstance(result, AttemptFailed):
            self.failed.append(result)
        elif isinstance(result, ActivityDeferred):
            self.deferred.append(result)
        else:
            self.cancelled.append(result)

    def messages(self, handle: int) -> Iterator[bytes]:
        """All of it, as one message; where that cannot be, each answer as its own, and as a failure where it cannot be."""
        try:
            data = wire.encode(self._message(handle))
        except _UNSENDABLE:
            data = b""
        if data and len(data) <= FRAME_LIMIT:
            yield data
            return
        for field in self.__slots__:
            for each in getattr(self, field):
                alone = _Answers()
                getattr(alone, field).append(each)
                yield alone._alone(handle, each)

    def _alone(self, handle: int, answer: object) -> bytes:
        try:
            data = wire.encode(self._message(handle))
            problem = f"it has {len(data)} bytes, more than the {FRAME_LIMIT} that can be"
            if len(data) <= FRAME_LIMIT:
                return data
        except _UNSENDABLE as error:
            problem = str(error)
        failure = Failure(
            f"what the worker answers cannot be sent to the engine: {problem}",
            ApplicationFailure(type="Unsendable"),
            source="Hourglass",
        )
        instead = _Answers()
        if isinstance(answer, (Succeeded, TaskFailed)):
            instead.failed_tasks.append(TaskFailed(answer.run_id, failure))
        elif isinstance(answer, (ActivityOk, AttemptFailed, AttemptCancelled)):
            instead.failed.append(AttemptFailed(answer.token, failure))
        return wire.encode(instead._message(handle))

    def _message(self, handle: int) -> wire.WorkAnswers:
        return wire.WorkAnswers(
            handle=handle, **{field: tuple(getattr(self, field)) for field in self.__slots__}
        )
