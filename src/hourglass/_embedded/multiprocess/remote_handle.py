"""A worker's handle on an engine in another process, over the connection to the file's owner.

Must not know: locks, which process owns the file next, how the owner dispatches work. The owner has an `EngineHandle`
that represents this handle, keeps the histories and receives the work; this handle delivers it to the worker. All
completions of one iteration of the event loop are sent as one message.

Invariants: items are delivered in the order in which they were sent; when the connection has ended, the handle sends no
more messages and ends with `HandleBroken`; the owner gives the worker's tasks and attempts to others, or the next owner
takes them over. Heartbeats are throttled here, so that none is sent that the owner would ignore.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    CompletionResult,
    HandleBroken,
    HandleConfig,
    OnActivations,
    OnActivities,
    OnEnd,
    Shutdown,
    WorkKind,
)
from hourglass._embedded.activations.heartbeats import Heartbeats
from hourglass._embedded.clock import RealClock
from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.unix_socket import FRAME_LIMIT
from hourglass._evaluator.commands import Completion, Succeeded, TaskFailed
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import HourglassError

if TYPE_CHECKING:
    from hourglass._embedded.multiprocess.remote import OwnerConnection

_UNSENDABLE = (msgspec.MsgspecError, OverflowError, ValueError, TypeError, RecursionError)
"""The errors raised for a value that MessagePack cannot represent, such as a number of more than 64 bits."""


class RemoteHandle:
    """A handle over the connection to the owner. Implements `hourglass._contract.handle.Handle`. Work is delivered in
    the iteration of the event loop in which it arrives.
    """

    def __init__(self, link: OwnerConnection, number: int, config: HandleConfig) -> None:
        self.number = number
        self._link = link
        self._receivers: tuple[OnActivations, OnActivities, OnEnd] | None = None
        self._paused: set[WorkKind] = set()
        self._kept_activations: deque[Activation] = deque()
        self._kept_activities: deque[ActivityItem] = deque()
        self._ends: dict[WorkKind, Shutdown | HandleBroken] = {}
        self._reported: set[WorkKind] = set()
        self._will_deliver = False
        self._broken: HandleBroken | None = None
        self._is_closing = False
        self._heartbeat_timeouts: dict[bytes, float] = {}
        self._heartbeats = Heartbeats(RealClock(), config, self._beat)
        self._answers = _Answers()
        self._will_send = False

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        self._receivers = on_activations, on_activities, on_end
        self._deliver_soon()

    def pause(self, kind: WorkKind) -> None:
        """Keep arriving items of this kind instead of delivering them. The owner sends no more items than the worker
        has slots.
        """
        if not self._is_closing:
            self._paused.add(kind)

    def resume(self, kind: WorkKind) -> None:
        self._paused.discard(kind)
        self._deliver_soon()

    def receive(self, work: wire.HandleWork) -> None:
        self._kept_activations.extend(work.activations)
        for task in work.tasks:
            if not task.is_local:
                self._heartbeat_timeouts[task.token] = task.spec.heartbeat_timeout
        self._kept_activities.extend(work.tasks)
        self._kept_activities.extend(work.cancels)
        self._deliver()

    def end(self, end: wire.PollEnded) -> None:
        """Record that the owner has no more work of one kind."""
        if end.broken:
            self.fail(end.broken)
            return
        kind = WorkKind.ACTIVITIES if end.activities else WorkKind.WORKFLOWS
        self._ends.setdefault(kind, Shutdown("the handle is shut down"))
        self._deliver()

    def fail(self, why: str) -> None:
        """End the handle because the connection or the owner's engine has ended: no more messages arrive or are sent."""
        if self._broken is None:
            self._heartbeats.close()
            self._broken = HandleBroken(why)
            self._kept_activations.clear()
            for item in self._kept_activities:  # the worker has not received these, and will not
                if isinstance(item, ActivityTask):
                    self._heartbeat_timeouts.pop(item.token, None)
            self._kept_activities.clear()
            for kind in WorkKind:
                self._ends.setdefault(kind, self._broken)
            self._deliver_soon()

    @property
    def attempts(self) -> set[bytes]:
        """The tokens of the attempts that the worker has received and not completed, except those of local activities."""
        waiting = {item.token for item in self._kept_activities if isinstance(item, ActivityTask)}
        return {token for token in self._heartbeat_timeouts if token not in waiting}

    def _deliver_soon(self) -> None:
        if not self._will_deliver:
            self._will_deliver = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._will_deliver = False
        if self._receivers is None:
            return
        on_activations, on_activities, on_end = self._receivers
        if self._kept_activations and WorkKind.WORKFLOWS not in self._paused:
            activations = tuple(self._kept_activations)
            self._kept_activations.clear()
            on_activations(activations)
        if self._kept_activities and WorkKind.ACTIVITIES not in self._paused:
            activities = tuple(self._kept_activities)
            self._kept_activities.clear()
            on_activities(activities)
        for kind, why in self._ends.items():
            pending = self._kept_activations if kind is WorkKind.WORKFLOWS else self._kept_activities
            if not pending and kind not in self._reported:
                self._reported.add(kind)
                on_end(kind, why)

    def complete_workflow_task(self, completion: Completion) -> CompletionResult:
        """Complete an activation. If the owner later rejects the completion, it evicts the run."""
        self._check()
        self._answers.add(completion)
        self._send_soon()
        return CompletionResult.RECEIVED

    def complete_activity(self, result: ActivityResult) -> None:
        self._check()
        is_local = self._heartbeat_timeouts.pop(result.token, None) is None
        if not is_local:
            self._link.unconfirmed[result.token] = result
        self._heartbeats.end(result.token, flush=not isinstance(result, ActivityOk))
        self._answers.add(result)
        self._send_soon()

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Send a heartbeat of an attempt, subject to throttling."""
        self._check()
        timeout = self._heartbeat_timeouts.get(token)
        if timeout is not None:
            self._heartbeats.beat(token, details, timeout)

    def _beat(self, token: bytes, details: Payloads) -> None:
        self._answers.add((token, details), "heartbeats")
        self._send_soon()

    def request_eviction(self, run_id: str) -> None:
        self._check()
        self._answers.add(run_id, "evictions")
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
                self._link.send_encoded(data)

    def initiate_shutdown(self) -> None:
        self._is_closing = True
        self._paused.clear()
        self._deliver_soon()
        if self._broken is None:
            self._link.send(wire.ShutDownHandle(self.number))

    async def finalize(self) -> None:
        """Close the handle. The owner gives the worker's remaining work to other workers."""
        if self._broken is None:
            self._send()
            try:
                await self._link.close_handle(self.number)
            except HourglassError:
                pass  # the connection has ended, and the owner gives the work to others anyway
        self.fail("the handle is shut down")

    def _check(self) -> None:
        if self._broken is not None:
            raise HandleBroken(str(self._broken))


def encode_results(results: Iterable[ActivityResult]) -> Iterator[bytes]:
    """Encode results that were kept since an earlier owner as messages to the next one."""
    answers = _Answers()
    for result in results:
        answers.add(result)
    yield from answers.messages(wire.NO_HANDLE)


_FIELDS: dict[type, str] = {
    ActivityOk: "returned",
    AttemptFailed: "failed",
    AttemptCancelled: "cancelled",
    ActivityDeferred: "deferred",
    Succeeded: "succeeded",
    TaskFailed: "failed_tasks",
}
"""The field of `wire.WorkAnswers` for each kind of result and completion."""


class _Answers:
    """The completions, heartbeats and evictions of a worker since the last message, by field of `wire.WorkAnswers`."""

    def __init__(self) -> None:
        self._by_field: dict[str, list[Any]] = {}

    def add(self, answer: Any, field: str = "") -> None:
        """Add a result or a completion, or another answer with its field."""
        self._by_field.setdefault(field or _FIELDS[type(answer)], []).append(answer)

    def messages(self, handle: int) -> Iterator[bytes]:
        """Encode all answers as one message.

        If that message is too large or cannot be encoded, encode one message per answer, with a failure in place of
        each answer that cannot be sent.
        """
        try:
            data = self._encoded(handle)
        except _UNSENDABLE:
            data = b""
        if data and len(data) <= FRAME_LIMIT:
            yield data
            return
        # In the order in which the owner applies the fields: a completion may depend on a result.
        for field in wire.WorkAnswers.__struct_fields__:
            for answer in self._by_field.get(field, ()):
                yield _single_message(handle, answer, field)

    def _encoded(self, handle: int) -> bytes:
        fields = {field: tuple(answers) for field, answers in self._by_field.items()}
        return wire.encode(wire.WorkAnswers(handle=handle, **fields))


def _single_message(handle: int, answer: Any, field: str) -> bytes:
    single = _Answers()
    single.add(answer, field)
    try:
        data = single._encoded(handle)
        problem = f"it has {len(data)} bytes; the maximum is {FRAME_LIMIT}"
        if len(data) <= FRAME_LIMIT:
            return data
    except _UNSENDABLE as error:
        problem = str(error)
    failure = Failure(
        f"the worker's completion cannot be sent to the engine: {problem}",
        ApplicationFailure(type="Unsendable"),
        source="Hourglass",
    )
    replacement = _Answers()
    if isinstance(answer, (Succeeded, TaskFailed)):
        replacement.add(TaskFailed(answer.run_id, failure))
    elif isinstance(answer, (ActivityOk, AttemptFailed, AttemptCancelled)):
        replacement.add(AttemptFailed(answer.token, failure))
    return replacement._encoded(handle)
