"""The owner's side of another process with workers: an engine handle for each handle that the process has opened. Sends
the work of these handles to the process, and applies its answers.

Must not know: sockets, greetings, requests of clients. A handle's slots limit the work of its process: the tasks and
attempts that the process has, or that are queued for sending, never exceed the slots, and each answer frees a slot.
Nothing here waits for the process: work that it does not read stays in its connection's buffer, within the limit of the
slots.

Invariants: only work that may leave the engine is sent (it depends on durable changes only, or has no effect outside);
when the connection ends, the work of the process goes to others immediately; answers for an unknown or closed handle are
dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityItem,
    ActivityResult,
    ActivityTask,
    AttemptFailed,
    HandleBroken,
    HandleConfig,
    WorkKind,
)
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.unix_socket import FRAME_LIMIT
from hourglass._evaluator.commands import TaskFailed
from hourglass._evaluator.events import Activation
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import HourglassError, ServiceError

if TYPE_CHECKING:
    from hourglass._embedded.multiprocess.serving import OwnerInfo

_log = logging.getLogger("hourglass.embedded")

CONFIRM_AFTER = 0.05
"""Seconds for which the confirmation of a result may be delayed, so that several results are confirmed together."""


class ProcessorUse:
    """The recent CPU usage of a process, as fractions of one CPU: `share` for the whole process, `control` for its
    control loop. The difference is user code, on lanes and activity threads.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self.control = 0.0
        self._used = 0.0
        self._in_control = 0.0
        self._noted_at = 0.0

    def note(self, used: float, in_control: float) -> None:
        """Record the CPU seconds that the process and its control loop have used since the process started."""
        now = monotonic()
        if self._noted_at and now > self._noted_at:
            self.share += (self._share_since_note(used - self._used, now) - self.share) * _WEIGHT_OF_NEW
            self.control += (
                self._share_since_note(in_control - self._in_control, now) - self.control
            ) * _WEIGHT_OF_NEW
        self._used, self._in_control, self._noted_at = used, in_control, now

    def _share_since_note(self, used: float, now: float) -> float:
        return min(max(used, 0.0) / (now - self._noted_at), 1.0)


def next_handicap(before: float, ours: ProcessorUse, peers: Sequence[ProcessorUse]) -> float:
    """Return the weight of work in the engine's process relative to other processes, given the previous weight.

    - Mostly light work costs as much to send as to execute, and more processes would only compete for the CPUs: the
      engine's process gets nearly all of it (`_LIGHTEST`), and if that lasts, all that its slots allow (0).
    - If the engine's process has CPU time left, the weight returns to 1.
    - If it is busier than the others, the weight rises in proportion, up to `_HEAVIEST`: almost no work, if the engine
      alone keeps it busy. If all are equally busy, as with long computations in activities, the weight stays.
    """
    control = ours.control + sum(use.control for use in peers)
    is_light = ours.share + sum(use.share for use in peers) < (1.0 + _LIGHT_WORK) * control
    if is_light and ours.share > _NOT_IDLE:
        return _LIGHTEST if before > _LIGHTEST else 0.0
    before = max(before, _LIGHTEST)
    if ours.share < _HAS_TIME:
        return max(1.0, before * 0.7) if before > 1.0 else min(1.0, before * 1.5)
    busier = ours.share - sum(use.share for use in peers) / len(peers)
    return min(max(1.0, before * (1.0 + 2.0 * busier)), _HEAVIEST)


_WEIGHT_OF_NEW = 0.7
_HAS_TIME, _NOT_IDLE = 0.5, 0.15
_HEAVIEST, _LIGHTEST = 50.0, 0.02
_LIGHT_WORK = 1.2
"""Work is light if the total CPU time is less than this multiple of the CPU time of the control loops. (The engine's
process also has the store's thread, which uses half as much CPU time as the control loop.)
"""


class WorkerPeer:
    """The handles of another process on this owner's engine."""

    def __init__(
        self,
        opener: Callable[[HandleConfig], EngineHandle],
        send: Callable[[bytes], object],
        owner: OwnerInfo,
    ) -> None:
        self._opener = opener
        self._send = send
        self._owner = owner
        self._unconfirmed: list[bytes] = []
        self._confirmation: asyncio.TimerHandle | None = None
        self._handles: dict[int, _SentHandle] = {}
        self._silent_checks = 0
        self.held: frozenset[bytes] = frozenset()
        """The attempts that the process still has from the previous owner."""
        self.use = ProcessorUse()

    @property
    def has_handles(self) -> bool:
        return bool(self._handles)

    def note_message(self) -> None:
        self._silent_checks = 0

    def is_silent(self) -> bool:
        """Whether the process has sent nothing for `SILENT_CHECKS` calls of this method, which is called once a second.

        Calls are counted instead of time, so that the other process does not count as silent after this process itself
        was stopped.
        """
        self._silent_checks += 1
        return self.has_handles and self._silent_checks > wire.SILENT_CHECKS

    def open(self, message: wire.OpenHandle) -> None:
        """Open a handle, and begin to send work for it."""
        if message.handle in self._handles:
            raise ServiceError("a handle with this number is already open", status="INVALID_ARGUMENT")
        try:
            # The process throttles heartbeats before it sends them.
            handle = self._opener(msgspec.structs.replace(message.config, heartbeat_throttle=0.0))
        except ValueError as error:
            raise ServiceError(str(error), status="INVALID_ARGUMENT") from None
        self._handles[message.handle] = _SentHandle(message.handle, handle, self._send)

    def answer(self, message: wire.WorkAnswers) -> None:
        """Apply the answers of the process, and confirm the results once they are durable."""
        handle = self._handles.get(message.handle)
        results: tuple[ActivityResult, ...] = (
            *message.returned,
            *message.failed,
            *message.cancelled,
            *message.deferred,
        )
        if handle is not None:
            handle.answer(message)
        elif message.handle == wire.NO_HANDLE:
            self._end_earlier_attempts(results)
        if results:
            self._unconfirmed.extend(result.token for result in results)
            if self._confirmation is None:
                loop = asyncio.get_running_loop()
                self._confirmation = loop.call_later(CONFIRM_AFTER, self._confirm)

    def _end_earlier_attempts(self, results: Sequence[ActivityResult]) -> None:
        try:
            for result in results:
                self._owner.end_attempt(result)
        except ValueError:
            raise wire.InvalidMessage("the task token is malformed") from None

    def _confirm(self) -> None:
        """Confirm the collected results to the process once they are durable."""
        self._confirmation = None
        tokens, self._unconfirmed = tuple(self._unconfirmed), []
        self._owner.when_stored(lambda: self._send(wire.encode(wire.ResultsStored(tokens))))

    def shut_down(self, handle: int) -> None:
        sent = self._handles.get(handle)
        if sent is not None:
            sent.handle.initiate_shutdown()

    async def close(self, handle: int) -> None:
        """Close a handle, and give its work to other workers. Return once the handle's results are durable."""
        sent = self._handles.pop(handle, None)
        if sent is not None:
            sent.stop()
            await sent.handle.finalize()
            # The other process may end as soon as it has the answer, and could then not send unconfirmed results again.
            stored = asyncio.Event()
            self._owner.when_stored(stored.set)
            await stored.wait()

    def lose(self) -> None:
        """Give the work of the process to others, because the process has ended or does not respond."""
        if self._confirmation is not None:
            self._confirmation.cancel()
        handles, self._handles = self._handles, {}
        for sent in handles.values():
            sent.stop()
            try:
                sent.handle.lose()
            except HourglassError as error:  # the engine itself has ended
                _log.debug("the tasks of a lost process could not be returned to their queues: %s", error)


class _SentHandle:
    """An engine handle for a worker in another process. Sends the handle's work to that process."""

    def __init__(self, number: int, handle: EngineHandle, send: Callable[[bytes], object]) -> None:
        self.handle = handle
        self._number = number
        self._send = send
        self._is_stopped = False
        handle.start(self._send_activations, self._send_activities, self._send_end)

    def stop(self) -> None:
        self._is_stopped = True

    def _send_end(self, kind: WorkKind, why: Exception) -> None:
        if not self._is_stopped:
            broken = (str(why) or "the handle failed") if isinstance(why, HandleBroken) else ""
            self._send(wire.encode(wire.PollEnded(self._number, kind is WorkKind.ACTIVITIES, broken)))

    def _send_activations(self, activations: Sequence[Activation]) -> None:
        if self._is_stopped:
            return
        data = wire.encode(wire.HandleWork(handle=self._number, activations=tuple(activations)))
        if len(data) <= FRAME_LIMIT:
            self._send(data)
        elif len(activations) > 1:
            for activation in activations:
                self._send_activations([activation])
        else:
            failed = TaskFailed(activations[0].run_id, _too_large("an activation of this run", len(data)))
            asyncio.get_running_loop().call_soon(self.handle.complete_workflow_task, failed)

    def _send_activities(self, items: Sequence[ActivityItem]) -> None:
        if self._is_stopped:
            return
        work = wire.HandleWork(
            handle=self._number,
            tasks=tuple(item for item in items if isinstance(item, ActivityTask)),
            cancels=tuple(item for item in items if isinstance(item, ActivityCancel)),
        )
        data = wire.encode(work)
        if len(data) <= FRAME_LIMIT:
            self._send(data)
        elif len(items) > 1:
            for item in items:
                self._send_activities([item])
        else:
            failed = AttemptFailed(items[0].token, _too_large("the task of this attempt", len(data)))
            asyncio.get_running_loop().call_soon(self.handle.complete_activity, failed)

    def answer(self, message: wire.WorkAnswers) -> None:
        """Apply the worker's answers: heartbeats before results, and results before completions, which may depend on
        them.
        """
        try:
            for token, details in message.heartbeats:
                self.handle.heartbeat(token, details)
            for group in (message.returned, message.failed, message.cancelled, message.deferred):
                for result in group:
                    self.handle.complete_activity(result)
            for succeeded in message.succeeded:
                self.handle.complete_workflow_task(succeeded.completion())
            for failed in message.failed_tasks:
                self.handle.complete_workflow_task(failed)
            for run_id in message.evictions:
                self.handle.request_eviction(run_id)
        except HandleBroken:
            pass  # the engine has ended; the connection will end, and the next owner takes over the work in progress
        except ValueError:
            raise wire.InvalidMessage("the task token is malformed") from None


def _too_large(what: str, size: int) -> Failure:
    return Failure(
        f"{what} has {size} bytes; at most {FRAME_LIMIT} bytes can be sent to another process",
        ApplicationFailure(type="TooLarge", non_retryable=True),
    )
