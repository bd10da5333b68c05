"""The owner's side of a process that works: an engine's handle for each that the process has opened, what it gives out
sent to the process, and what the process answers given to it.

Must not know: sockets, greetings, requests of clients. A handle's slots are the credit of its process: so many tasks and
attempts are with it at most, sent or about to be, and an answer makes room for the next. Nothing here waits for the
process: what it does not read stays with its connection, and is no more than the slots allow.

Invariants: what is sent may leave the engine (it is durable, or rests on nothing); when the connection ends all that the
process had is given to others at once; what comes for a handle that the owner does not know, or that was closed, is
dropped and harms nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

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
from hourglass._evaluator.commands import Completion, TaskFailed
from hourglass._evaluator.events import Activation
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import HourglassError, ServiceError

_log = logging.getLogger("hourglass.embedded")

CONFIRM_AFTER = 0.05
"""After how many seconds, at most, results are asked to be durable, to be confirmed together."""


class ProcessorUse:
    """How much of one processor a process uses, of late, and how much of it is work for the engine or with it: that of its
    control loop. The rest is the author's, in lanes and threads.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self.control = 0.0
        self._used = 0.0
        self._in_control = 0.0
        self._at = 0.0

    def note(self, used: float, in_control: float) -> None:
        """The process has used so many seconds so far, so many of them on its control loop."""
        now = monotonic()
        if self._at and now > self._at:
            self.share += (self._part(used - self._used, now) - self.share) * _WEIGHT_OF_NEW
            self.control += (self._part(in_control - self._in_control, now) - self.control) * _WEIGHT_OF_NEW
        self._used, self._in_control, self._at = used, in_control, now

    def _part(self, used: float, now: float) -> float:
        return min(max(used, 0.0) / (now - self._at), 1.0)


def next_handicap(before: float, ours: ProcessorUse, others: Sequence[ProcessorUse]) -> float:
    """How much heavier work is to weigh in the engine's process than in the others.

    While it is busier than they are it gets less, down to nearly nothing where the engine alone keeps it busy; where all are
    as busy, as with long computations in activities, this is right as it is; where it has time it gets the same as they.
    Where what the authors' code takes is little beside what it takes to have it done, to send it costs as much as it
    saves, and a third process would only take the processors from the first two: then it gets nearly all, and at
    the second look (0) all that it has room for.
    """
    control = ours.control + sum(each.control for each in others)
    is_light = ours.share + sum(each.share for each in others) < (1.0 + _LIGHT) * control
    if is_light and ours.share > _AT_WORK:
        return _LIGHTEST if before > _LIGHTEST else 0.0
    before = max(before, _LIGHTEST)
    if ours.share < _AT_LEISURE:
        return max(1.0, before * 0.7) if before > 1.0 else min(1.0, before * 1.5)
    busier = ours.share - sum(each.share for each in others) / len(others)
    return min(max(1.0, before * (1.0 + 2.0 * busier)), _HEAVIEST)


_WEIGHT_OF_NEW = 0.7
_AT_LEISURE, _AT_WORK = 0.5, 0.15
_HEAVIEST, _LIGHTEST = 50.0, 0.02
_LIGHT = 1.2
"""Authors' code that takes less than so many times what the control loops take is light. (The engine's own process has the
store's thread besides, which takes half of what its control loop does.)
"""


class Opener(Protocol):
    """Opens handles on the engine."""

    def __call__(self, config: HandleConfig, /) -> EngineHandle: ...


class ResultBook(Protocol):
    """Where results go that belong to no handle of this owner, and which says when results are durable."""

    @property
    def end_attempt(self) -> Callable[[ActivityResult], object]:
        """Record the result of an attempt that an earlier owner gave out."""
        ...

    @property
    def when_stored(self) -> Callable[[Callable[[], object]], object]:
        """Have a function called once all that has happened until now is durable."""
        ...


class WorkerPeer:
    """The handles of one process, and the way to it."""

    def __init__(self, opener: Opener, send: Callable[[bytes], object], book: ResultBook) -> None:
        self._opener = opener
        self._send = send
        self._book = book
        self._unconfirmed: list[bytes] = []
        self._confirmation: asyncio.TimerHandle | None = None
        self._handles: dict[int, _SentHandle] = {}
        self._silent = 0
        self.held: frozenset[bytes] = frozenset()
        """The attempts that the process has of the owner before this one."""
        self.use = ProcessorUse()

    @property
    def works(self) -> bool:
        """Whether the process has a handle here."""
        return bool(self._handles)

    def heard(self) -> None:
        """The process has said something."""
        self._silent = 0

    def is_silent(self) -> bool:
        """Look, once a second, whether the process still runs. Looks are counted, not time: if it was this process that
        stood still, the other is not to blame.
        """
        self._silent += 1
        return self.works and self._silent > wire.SILENT_LOOKS

    def open(self, message: wire.OpenHandle) -> None:
        """Open a handle, and begin to send what it gives out."""
        if message.handle in self._handles:
            raise ServiceError("a handle with this number is open", status="INVALID_ARGUMENT")
        try:
            # Its heartbeats were thinned out by the process: what comes counts.
            handle = self._opener(msgspec.structs.replace(message.config, heartbeat_throttle=0.0))
        except ValueError as error:
            raise ServiceError(str(error), status="INVALID_ARGUMENT") from None
        self._handles[message.handle] = _SentHandle(message.handle, handle, self._send)

    def answer(self, message: wire.WorkAnswers) -> None:
        """The process answers."""
        found = self._handles.get(message.handle)
        results: tuple[ActivityResult, ...] = (
            *message.returned,
            *message.failed,
            *message.cancelled,
            *message.deferred,
        )
        if found is not None:
            found.answer(message)
        elif message.handle == wire.NO_HANDLE:
            self._end_kept(results)
        if results:
            self._unconfirmed.extend(result.token for result in results)
            if self._confirmation is None:
                loop = asyncio.get_running_loop()
                self._confirmation = loop.call_later(CONFIRM_AFTER, self._confirm)

    def _end_kept(self, results: Sequence[ActivityResult]) -> None:
        try:
            for result in results:
                self._book.end_attempt(result)
        except ValueError:
            raise wire.Garbage("a token that names no attempt") from None

    def _confirm(self) -> None:
        """Tell the process which of its results are durable, once they are."""
        self._confirmation = None
        tokens, self._unconfirmed = tuple(self._unconfirmed), []
        self._book.when_stored(lambda: self._send(wire.encode(wire.ResultsStored(tokens))))

    def shut_down(self, handle: int) -> None:
        """A handle takes no more."""
        found = self._handles.get(handle)
        if found is not None:
            found.handle.initiate_shutdown()

    async def close(self, handle: int) -> None:
        """A handle is closed; what it still had is given to others."""
        found = self._handles.pop(handle, None)
        if found is not None:
            found.stop()
            await found.handle.finalize()
            stored = asyncio.Event()  # its results, too: the process may end when it has the answer
            self._book.when_stored(stored.set)
            await stored.wait()

    def lose(self) -> None:
        """The process has ended, or cannot be heard: others get its work."""
        if self._confirmation is not None:
            self._confirmation.cancel()
        handles, self._handles = self._handles, {}
        for sent in handles.values():
            sent.stop()
            try:
                sent.handle.lose()
            except HourglassError as error:  # the engine itself is over
                _log.debug("the work of a process could not be given back: %s", error)


class _SentHandle:
    """One handle of the engine, whose worker is in another process."""

    def __init__(self, number: int, handle: EngineHandle, send: Callable[[bytes], object]) -> None:
        self.handle = handle
        self._number = number
        self._send = send
        self._is_stopped = False
        handle.start(self._send_activations, self._send_activities, self._send_end)

    def stop(self) -> None:
        """Send nothing more."""
        self._is_stopped = True

    def _send_end(self, kind: WorkKind, why: Exception) -> None:
        if not self._is_stopped:
            broken = (str(why) or "the handle broke") if isinstance(why, HandleBroken) else ""
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
            failed = TaskFailed(activations[0].run_id, _too_large("what this run is to be told", len(data)))
            asyncio.get_running_loop().call_soon(self._complete, failed)

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
            failed = AttemptFailed(items[0].token, _too_large("this attempt's task", len(data)))
            asyncio.get_running_loop().call_soon(self._end, failed)

    def answer(self, message: wire.WorkAnswers) -> None:
        """Apply the worker's answers: heartbeats before results, results before the completions that may depend on them."""
        try:
            for token, details in message.heartbeats:
                self.handle.heartbeat(token, details)
            for group in (message.returned, message.failed, message.cancelled, message.deferred):
                for result in group:
                    self._end(result)
            for succeeded in message.succeeded:
                self._complete(succeeded.completion())
            for failed in message.failed_tasks:
                self._complete(failed)
            for run_id in message.evictions:
                self.handle.request_eviction(run_id)
        except HandleBroken:
            pass  # the engine is over: the connection ends, and the next owner takes up what is in flight
        except ValueError:
            raise wire.Garbage("a token that names no attempt") from None

    def _complete(self, completion: Completion) -> None:
        self.handle.complete_workflow_task(completion)

    def _end(self, result: ActivityResult) -> None:
        self.handle.complete_activity(result)


def _too_large(what: str, size: int) -> Failure:
    return Failure(
        f"{what} has {size} bytes, more than the {FRAME_LIMIT} that can be sent to another process",
        ApplicationFailure(type="TooLarge", non_retryable=True),
    )
