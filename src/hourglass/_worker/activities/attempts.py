"""One attempt of an activity: the call itself, its end as the engine wants to hear it, and the attempt in flight, as the
control loop sees it and as the activity may know it.

The calls (`call_plainly`, `call_on_loop`) are where user code runs: in the worker's threads, on its activity loop, and in the
processes beside it; they know none of these. Outcomes are pure: exceptions in, results out.

Invariants:

- Whatever the function lets out becomes a result; nothing escapes.
- A process that the function forked, and that came back out of it, ends there: it is a copy of the worker, whose threads,
  results and queued work are not its own. What it says before that is dropped here.
- The first to say how an attempt ended is heard; a later end is dropped.
- A heartbeat that cannot be sent ends nothing: the next is tried all the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Protocol, TypeVar, get_type_hints

import msgspec

from hourglass import _forks
from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    context_of,
)
from hourglass._evaluator.options import RetryPolicy, policy_from
from hourglass._evaluator.specs import ActivitySpec, Payloads
from hourglass._worker.portal import Mailbox
from hourglass._worker.work_log import facts_of
from hourglass.activity import ActivityDefinition, Info
from hourglass.activity._context import (
    ActivityContext,
    DeferredCompletion,
    Equipment,
    activity_call,
    check_size,
    current,
)
from hourglass.converter import ApplicationFailure, CanceledFailure, Converter, Failure, Payload, in_context
from hourglass.errors import ArgumentError, Cancelled, CancelledError, EncodeError, PayloadError, UsageError

# --- outcomes --------------------------------------------------------------------------------------------------------


_LOOP_BLOCKED = "ActivityLoopBlocked"

# A failure that is larger than the limit is told in this many characters.
_SHORT = 1000

# Only these reasons mean that the server waits for a cancellation; for the others it would refuse one.
_ASKED_FOR = frozenset({"CANCELLED", "NOT_FOUND", "TIMED_OUT"})


def failed(task: ActivityTask, type_: str, message: str, *, non_retryable: bool = False) -> AttemptFailed:
    """An attempt that failed for a reason of ours."""
    info = ApplicationFailure(type=type_, non_retryable=non_retryable)
    return AttemptFailed(task.token, Failure(message=message, info=info))


def refused(task: ActivityTask, error: BaseException) -> AttemptFailed:
    """An attempt that could not begin, or whose result cannot be told.

    Repeating it would change nothing, unless the activity is not known here: another worker may know it, or
    this one after its next deploy.
    """
    hopeless = isinstance(error, (ArgumentError, PayloadError))
    return failed(task, type(error).__name__, _text(error), non_retryable=hopeless)


def abandoned(task: ActivityTask, reason: str) -> AttemptFailed:
    """An attempt that this worker no longer waits for; another worker may try."""
    return failed(task, "WorkerShutdown", f"activity {task.activity_type}: {reason}")


def returned(task: ActivityTask, value: Any, converter: Converter, limit: int | None) -> ActivityResult:
    """What an activity's return value means."""
    try:
        payload = converter.encode(value)
        check_size((payload,), limit, "it")
    except Exception as error:
        note = EncodeError(f"the result of activity {task.activity_type} cannot be encoded: {_text(error)}")
        return refused(task, note)
    return ActivityOk(task.token, payload)


def equipped_for(task: ActivityTask, equipment: Equipment) -> Equipment:
    """What an attempt is given, with a converter that knows whose values it has."""
    return replace(equipment, converter=in_context(equipment.converter, context_of(task)))


def died(task: ActivityTask, exit_code: int | None) -> AttemptFailed:
    """The process that ran the attempt ended before the attempt did. It may be tried again."""
    return failed(
        task, "ProcessDied", f"the process that ran activity {task.activity_type} {_exit(exit_code)}"
    )


def died_thread(task: ActivityTask) -> AttemptFailed:
    """The thread that ran the attempt was ended from outside."""
    return failed(
        task, "ThreadDied", f"the thread that ran activity {task.activity_type} was ended from outside"
    )


def loop_blocked(task: ActivityTask, running: str, stack: str) -> AttemptFailed:
    """The loop of an attempt was blocked for too long, by another activity; a new attempt is made on another loop."""
    text = (
        f"activity {task.activity_type}: the loop on which it waited was blocked by {running}, so that it is tried again on "
        f"another; blocking calls belong in a `def` activity or in asyncio.to_thread"
    )
    info = ApplicationFailure(type=_LOOP_BLOCKED)
    return AttemptFailed(task.token, Failure(message=text, info=info, stack_trace=stack))


def can_be_tried_again(task: ActivityTask) -> bool:
    """Whether the engine makes another attempt where this one fails as its loop is blocked."""
    rule = task.spec.retry_policy
    if rule is None:
        return True
    is_last = bool(rule.maximum_attempts) and task.attempt >= rule.maximum_attempts
    return not is_last and _LOOP_BLOCKED not in rule.non_retryable_error_types


def stopped(task: ActivityTask, reason: str) -> ActivityResult:
    """An attempt that was asked to stop, and did, or was made to."""
    if reason in _ASKED_FOR:
        return AttemptCancelled(task.token, Failure(message="Cancelled", info=CanceledFailure()))
    if reason == "WORKER_SHUTDOWN":
        return abandoned(task, "stopped because its worker shuts down")
    return failed(task, "AttemptStopped", f"activity {task.activity_type} was stopped: {reason}")


def ended_by(
    task: ActivityTask,
    error: BaseException,
    cancel_reason: str | None,
    converter: Converter,
    limit: int | None = None,
) -> ActivityResult:
    """What an exception means that an activity let out."""
    match error:
        case DeferredCompletion():
            return ActivityDeferred(task.token)
        case Cancelled() | CancelledError() | asyncio.CancelledError() if cancel_reason is not None:
            return stopped(task, cancel_reason)
        case UsageError():
            return AttemptFailed(task.token, _without_retry(_as_failure(error, converter, limit)))
        case Exception():
            return AttemptFailed(task.token, _as_failure(error, converter, limit))
        case _:
            # SystemExit, KeyboardInterrupt, a cancellation that neither the engine nor the worker asked for: of the
            # activity's own making, which is never a failure of another kind.
            kind = type(error).__name__
            made = _as_failure(error, converter, limit)
            info = ApplicationFailure(type=kind)
            return AttemptFailed(
                task.token, msgspec.structs.replace(made, message=made.message or kind, info=info)
            )


def _as_failure(error: BaseException, converter: Converter, limit: int | None) -> Failure:
    try:
        return _within(converter.to_failure(error), limit)
    except Exception as problem:
        info = ApplicationFailure(type=type(error).__name__)
        note = f"{_text(error)[:_SHORT]} (its details cannot be encoded: {type(problem).__name__})"
        return Failure(message=note, info=info)


def _within(failure: Failure, limit: int | None) -> Failure:
    """The failure, or a short one where a server would refuse it for its size."""
    size = len(msgspec.msgpack.encode(failure))
    if limit is None or size <= limit:
        return failure
    note = f"(cut: the failure takes {size:,} bytes, more than the limit of {limit:,})"
    info = failure.info
    if isinstance(info, ApplicationFailure):
        info = msgspec.structs.replace(info, type=info.type[:_SHORT], details=())
    return Failure(
        message=f"{failure.message[:_SHORT]} {note}",
        info=info if isinstance(info, ApplicationFailure) else ApplicationFailure(type="Failure"),
        stack_trace=failure.stack_trace[-10 * _SHORT :],
        source=failure.source,
    )


def _without_retry(failure: Failure) -> Failure:
    """The API was misused: trying again meets the same code."""
    if not isinstance(failure.info, ApplicationFailure):
        return failure
    info = msgspec.structs.replace(failure.info, non_retryable=True)
    return msgspec.structs.replace(failure, info=info)


def _exit(code: int | None) -> str:
    if code is None:
        return "was lost"
    if code >= 0:
        return f"ended by itself, with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ": out of memory, perhaps" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return type(error).__name__


# --- calls -----------------------------------------------------------------------------------------------------------


def call_plainly(
    task: ActivityTask, context: ActivityContext, definition: ActivityDefinition
) -> ActivityResult:
    """Run a `def` activity here, to its end."""
    home = _forks.here
    try:
        arguments = definition.arguments(context.equipment.converter, task.arguments)
    except BaseException as error:
        return refused(task, error)
    try:
        # A context of its own: what the activity sets in context variables must not meet the next one in
        # this thread.
        given = context.equipment.variables
        variables = contextvars.Context() if given is None else given.copy()
        if definition.on_cancel == "heartbeat":
            value = variables.run(_call, task, context, definition.fn, arguments)
        else:
            value = context.run_interruptibly(
                lambda: variables.run(_call, task, context, definition.fn, arguments),
                silent=definition.on_cancel == "silent",
            )
    except BaseException as error:
        end_fork(home, 1)
        return _ended_by(task, context, error)
    if _forks.here != home:
        end_fork(home, 0)
    return _returned(task, context, value)


async def call_on_loop(
    task: ActivityTask, context: ActivityContext, definition: ActivityDefinition
) -> ActivityResult:
    """Run an `async def` activity on this loop, to its end."""
    home = _forks.here
    current.set(context)
    try:
        arguments = definition.arguments(context.equipment.converter, task.arguments)
    except BaseException as error:
        return refused(task, error)
    try:
        inbound = context.equipment.inbound
        if inbound is None:
            value = await definition.fn(*arguments)
        else:
            call = activity_call(task.activity_type, definition.fn, arguments, task.headers)
            value = await inbound.execute_async_activity(call)
    except BaseException as error:
        end_fork(home, 1)
        return _ended_by(task, context, error)
    end_fork(home, 0)
    return _returned(task, context, value)


def end_fork(home: int, code: int) -> None:
    """End this process if it is not the one that it should be."""
    if _forks.here == home:
        return
    try:
        os.write(2, b"hourglass: a process that an activity forked has left the activity, and ends here\n")
    finally:
        os._exit(code)


def _call(task: ActivityTask, context: ActivityContext, fn: Callable[..., Any], arguments: list[Any]) -> Any:
    current.set(context)
    inbound = context.equipment.inbound
    if inbound is None:
        return fn(*arguments)
    return inbound.execute_activity(activity_call(task.activity_type, fn, arguments, task.headers))


def _ended_by(task: ActivityTask, context: ActivityContext, error: BaseException) -> ActivityResult:
    own = context.equipment
    try:
        return ended_by(task, error, context.cancel_reason, own.converter, own.payload_limit)
    except BaseException as problem:  # a converter of the user's, or no memory: the attempt ends all the same
        return refused(task, problem)


def _returned(task: ActivityTask, context: ActivityContext, value: Any) -> ActivityResult:
    own = context.equipment
    try:
        result = returned(task, value, own.converter, own.payload_limit)
    except BaseException as problem:
        return refused(task, problem)
    most = own.payload_warn
    if most and type(result) is ActivityOk and result.result is not None and len(result.result.data) > most:
        logger.warning(
            "the result of activity %s takes %s bytes, more than %s: keep large data elsewhere, and return a reference to it",
            task.activity_type,
            f"{len(result.result.data):,}",
            f"{most:,}",
        )
    return result


# --- attempts in flight ----------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")

_BEAT_PAUSE = 0.1

T = TypeVar("T")
Heartbeat = Callable[[bytes, Payloads], None]


class AttemptWork(Protocol):
    """Where an attempt executes. On the control loop; nothing here waits."""

    def cancel(self, reason: str) -> None:
        """Tell it that it was asked to stop (the attempt's context knows already)."""
        ...

    def give_up(self) -> bool:
        """Free what it holds although it has not ended; False if that cannot be."""
        ...

    def stack(self) -> str:
        """Where it stands, the author's frames; empty where that cannot be seen from here."""
        ...


class ItemPublisher(Protocol):
    """Brings what attempts publish to the engine. On the control loop; nothing here waits."""

    def publish(self, attempt: Attempt, name: str, value: Payload) -> None:
        """An attempt publishes an item."""
        ...

    def carried(self, task: ActivityTask) -> Payloads:
        """What a heartbeat of an attempt brings along, where the engine keeps its items in the same place."""
        ...

    def end(
        self, task: ActivityTask, result: ActivityResult, then: Callable[[ActivityResult], object]
    ) -> None:
        """The attempt has ended so; what it published goes first, and `then` is called with its result."""
        ...


class Waiter(Protocol):
    """Is told how an attempt ended: the worker's dispatch."""

    def executed(self, result: ActivityResult) -> object:
        """It has ended so."""
        ...


@dataclass(frozen=True, kw_only=True)
class AttemptSurroundings:
    """What all attempts of an executor share. `ended` is told of the end of each, once, on the control loop."""

    equipment: Equipment
    mailbox: Mailbox
    heartbeat: Heartbeat
    publisher: ItemPublisher | None = None
    ended: Callable[[Attempt, ActivityResult], object]


class TaskContext(ActivityContext):
    """What the activity sees of an attempt. Once that is over its heartbeats go nowhere, and neither holds the other."""

    __slots__ = ("attempt", "task")

    task: ActivityTask
    attempt: Attempt | None

    def _make_info(self) -> Info:
        return info_of(self.task, self.equipment.converter)

    def _send(self, details: Payloads) -> None:
        attempt = self.attempt
        if attempt is not None:
            attempt.send(details)

    def _publish(self, name: str, value: Payload) -> None:
        attempt = self.attempt
        if attempt is not None:
            attempt.publish((name, value))


class Attempt:
    """One attempt in flight. Belongs to the control loop; `context` is what the activity sees of it."""

    __slots__ = (
        "_around",
        "_beat_is_due",
        "_failing_beats",
        "_last_beat",
        "_newest_beat",
        "_publishes",
        "_timers",
        "context",
        "generation",
        "has_beaten",
        "identity",
        "key",
        "over",
        "since",
        "task",
        "told_at",
        "waiter",
        "work",
    )

    def __init__(
        self, task: ActivityTask, waiter: Waiter, around: AttemptSurroundings, generation: int
    ) -> None:
        self.task = task
        self.waiter = waiter
        self.generation = generation
        self.identity = (task.workflow_id, task.run_id, task.activity_id)
        """Which activity this is an attempt of."""
        self.key: bytes | tuple[int, bytes] = (generation, task.token) if task.is_local else task.token
        self.since = self.told_at = monotonic()
        self.over = False
        self.work: AttemptWork | None = None
        self._around = around
        # Plain handles: for a delay that rounds to 0 ms uvloop gives one without `when()`.
        self._timers: dict[object, asyncio.Handle] | None = None
        self._newest_beat: Payloads = ()
        self._beat_is_due = False
        self._last_beat = float("-inf")
        self._failing_beats = False
        self._publishes = False
        self.has_beaten = False
        own = around.equipment
        if own.contextual:
            own = equipped_for(task, own)
        self.context = context = TaskContext(own, task.heartbeat_details)
        context.task, context.attempt = task, self

    def finish(self, result: ActivityResult) -> None:
        """The attempt has ended; only the first to say so counts."""
        if self._beat_is_due:
            self._beat_newest()  # its last words: they may hold the cursor for the next attempt
        if self.over:
            return
        if self._publishes and self._around.publisher is not None:
            self._publishes = False
            self._around.publisher.end(self.task, result, self.finish)
            return
        if self._timers is not None:
            self.let_go()
        else:  # the usual end: what `let_go` does, without the call
            self.over, self.context.attempt = True, None
        self._around.ended(self, result)

    def let_go(self) -> None:
        """It is over for the executor: a later result, its heartbeats and its timers are dropped."""
        self.over = True
        self.context.attempt = None
        if self._timers is not None:
            for timer in self._timers.values():
                timer.cancel()
            self._timers = None

    def finish_threadsafe(self, result: ActivityResult) -> None:
        """As `finish`, from another thread."""
        self._around.mailbox.post(self.finish, result)

    def after(self, delay: float, callback: Callable[[], object]) -> None:
        """Call something later, unless the attempt has ended by then."""
        if self.over:
            return
        if self._timers is None:
            self._timers = {}
        key = object()
        self._timers[key] = self._around.mailbox.loop.call_later(delay, self._due, key, callback)

    def _due(self, key: object, callback: Callable[[], object]) -> None:
        if self._timers is not None:
            self._timers.pop(key, None)  # what has fired is let go of: it holds this attempt
        callback()

    def beat_again(self, now: float) -> None:
        """Send the last details again: the attempt lives."""
        self.told_at = now
        self._beat(self.context.last_details)

    def take_beat(self, details: Payloads) -> None:
        """Pass on a heartbeat that the activity made in another process. From any thread."""
        self.context.last_details = details
        self.send(details)

    def publish(self, item: tuple[str, Payload]) -> None:
        """Have an item, by its name, brought to those who follow the run. From any thread, in order."""
        self.threadsafe(self._publish, item)

    def _publish(self, item: tuple[str, Payload]) -> None:
        publisher = self._around.publisher
        if not self.over and publisher is not None:
            self._publishes = True
            publisher.publish(self, *item)

    def threadsafe(self, callback: Callable[[T], object], argument: T) -> None:
        """Call something on the control loop, from another thread."""
        self._around.mailbox.post(callback, argument)

    def send(self, details: Payloads) -> None:
        """Have a heartbeat sent, from any thread. One that beats in a tight loop wakes the control loop a few times a second."""
        if self.task.is_local:
            return
        self._newest_beat = details
        if not self._beat_is_due:
            self._beat_is_due = True
            self.threadsafe(self._beat_soon, None)

    def _beat_soon(self, _: None) -> None:
        wait = _BEAT_PAUSE - (self._around.mailbox.loop.time() - self._last_beat)
        if wait <= 0.0 or self.over:
            self._beat_newest()
        else:
            self.after(wait, self._beat_newest)

    def _beat_newest(self) -> None:
        self._beat_is_due = False  # before it is read: a beat that comes from now on is sent after it
        self._last_beat = self._around.mailbox.loop.time()
        self._beat(self._newest_beat)

    def _beat(self, details: Payloads) -> None:
        if self.over:
            return
        if self._around.publisher is not None:
            details += self._around.publisher.carried(self.task)
        self.has_beaten = True
        try:
            self._around.heartbeat(self.task.token, details)
        except Exception as error:
            if not self._failing_beats:
                logger.warning(
                    "activity %s (%s): its heartbeats do not get through: %s",
                    self.task.activity_type,
                    self.task.activity_id,
                    error,
                    extra=facts_of(self.task),
                )
            self._failing_beats = True
        else:
            self._failing_beats = False


def info_of(task: ActivityTask, converter: Converter) -> Info:
    """What an activity may know of its attempt."""
    return Info(
        activity_id=task.activity_id,
        activity_type=task.activity_type,
        attempt=task.attempt,
        task_token=task.token,
        is_local=task.is_local,
        namespace=task.namespace,
        workflow_id=task.workflow_id,
        workflow_run_id=task.run_id,
        workflow_type=task.workflow_type,
        activity_run_id=task.activity_run_id or None,
        scheduled_time=_time(task.scheduled_time_ns),
        current_attempt_scheduled_time=_time(task.current_attempt_scheduled_time_ns),
        started_time=_time(task.started_time_ns),
        **{name: show(getattr(task.spec, name)) for name, show in _OF_SPEC.items()},
        headers=task.headers,
        encoded_heartbeat_details=task.heartbeat_details,
        converter=converter,
    )


def _time(ns: int) -> datetime | None:
    return datetime.fromtimestamp(ns / 1e9, UTC) if ns else None


def _duration(seconds: float) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds else None


_SHOWN: dict[Any, Callable[[Any], Any]] = {timedelta | None: _duration, RetryPolicy | None: policy_from}
_OF_SPEC: dict[str, Callable[[Any], Any]] = {
    name: _SHOWN.get(type_, lambda value: value)
    for name, type_ in get_type_hints(Info).items()
    if name in ActivitySpec.__struct_fields__
}
"""What an `Info` tells of the activity's spec, by the same names, and how each is shown."""
