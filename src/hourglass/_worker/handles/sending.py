"""Completions on their way to an engine: fenced, in order per run, at the same time across runs, never
cancelled.

Must not know: registrations, callers. A call begins at once, and most end at once: only what has to wait costs a
task, and no call a timer of its own. Invariants:

- Only what is open under the given token is sent, and taking it out of the book and sending it is one step.
- The caller is told once, in `then`: when the call has ended, or when the limit has passed; the call itself
  goes on.
- Nothing that an engine raises here reaches the caller, which could not mend it. An activation whose
  completion is refused is completed as failed, or its run would be stuck; an attempt's end that the handle
  does not take goes through the connection.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeGuard

import msgspec

from hourglass._contract.activities import CompleteActivity
from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    HandleBroken,
    RawCalls,
    Shutdown,
)
from hourglass._evaluator.commands import Completion, Succeeded, TaskFailed
from hourglass._evaluator.events import is_eviction
from hourglass._worker.handles.calls import CallDeadlines
from hourglass._worker.handles.handles import Drain, HandleRecord, HandleTables, logger, tell
from hourglass._worker.handles.life import is_hopeless
from hourglass._worker.handles.poll_line import OURS, InFlight
from hourglass.converter import ApplicationFailure, CanceledFailure, Failure
from hourglass.errors import WorkflowNotFoundError

Then: TypeAlias = Callable[[], object]


def _nothing() -> None:
    return None


def _unanswered(tables: HandleTables, what: str, then: Then) -> None:
    tables.counters.unanswered_completions += 1
    logger.warning("%s was not taken within %g s", what, tables.limits.completion)
    then()


# --- workflow tasks ---------------------------------------------------------------------------------------


def send_completion(
    tables: HandleTables, record: HandleRecord, completion: Completion, then: Then = _nothing
) -> None:
    """Close the activation of this run and send its completion behind those of the same run."""
    run_id = completion.run_id
    opened = record.runs.open.pop(run_id, None)
    here = record.handle.in_process
    # An engine in this process takes the answer in this very turn, unless an earlier one of this run is still on its
    # way: completions of one run keep their order.
    if here is not None and run_id not in record.tails:
        try:
            forgotten = here.answer_activation(completion)
        except OURS:
            raise
        except BaseException as error:
            call = _complete_after(tables, record, completion, error)
        else:
            if forgotten and not (opened is not None and opened.forgotten()) and tables.listener is not None:
                tell(tables.listener.run_evicted, record, run_id)
            if record.drain is not None:
                record.changed.notify_all()
            then()
            return
    elif record.raw is not None and run_id not in record.tails:
        _SentCompletion(tables, record, completion, then).begin(record.raw)
        return
    else:
        call = _complete(tables, record, completion, record.tails.get(run_id))
    _send(tables, record, run_id, call, then)


class _SentCompletion:
    """A completion on its way through a handle's raw call: one object and one callback, where a coroutine costs a task."""

    __slots__ = ("call", "completion", "patience", "record", "tables", "then")

    def __init__(
        self, tables: HandleTables, record: HandleRecord, completion: Completion, then: Then
    ) -> None:
        self.tables = tables
        self.record = record
        self.completion = completion
        self.then = then
        self.call: asyncio.Future[None] | None = None
        self.patience = tables.completing

    def begin(self, raw: RawCalls) -> None:
        try:
            self.call = call = raw.send_activation(self.completion)
        except OURS:
            raise
        except BaseException as error:
            self._mend(raw, error, self.then)
            return
        self.record.calls.add(self)
        self.record.tails[self.completion.run_id] = call
        self.patience.watch(self, _SentCompletion._late)
        call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Future[None]) -> None:
        record = self.record
        record.calls.discard(self)
        if record.tails.get(self.completion.run_id) is call:  # as `_untie` does
            del record.tails[self.completion.run_id]
        is_waited_for = self.patience.forget(self)
        error = None if call.cancelled() else call.exception()
        if error is not None and record.raw is not None and not record.state.over:
            self._mend(record.raw, error, self.then if is_waited_for else _nothing)
        elif is_waited_for:
            self.then()
        if record.drain is not None:
            record.changed.notify_all()

    def _mend(self, raw: RawCalls, error: BaseException, then: Then) -> None:
        mending = _mended(
            self.tables, self.record, self.completion, raw.mend_activation(self.completion, error)
        )
        _send(self.tables, self.record, self.completion.run_id, mending, then)

    def _late(self) -> None:
        self._untie()  # the next of this run has waited enough
        _unanswered(self.tables, f"the completion of run {self.completion.run_id}", self.then)

    def _untie(self) -> None:
        if self.record.tails.get(self.completion.run_id) is self.call:
            del self.record.tails[self.completion.run_id]

    def cancel(self) -> None:
        """The handle is left behind: the call itself goes on."""
        self.record.calls.discard(self)
        self._untie()
        if self.patience.forget(self):
            self.then()


async def _mended(
    tables: HandleTables, record: HandleRecord, completion: Completion, mending: Coroutine[Any, Any, None]
) -> None:
    error = await _tried(mending)
    if error is not None:
        await _complete_after(tables, record, completion, error)


def _send(
    tables: HandleTables, record: HandleRecord, run_id: str, call: Coroutine[Any, Any, None], then: Then
) -> None:
    """Begin a call that completes a run; those of the same run wait behind it."""
    task = record.call(call)
    if task is None:
        then()
        return
    record.tails[run_id] = task
    patience = tables.completing

    def untie() -> None:
        if record.tails.get(run_id) is task:
            del record.tails[run_id]

    def late(_: object) -> None:
        untie()  # the next of this run has waited enough
        _unanswered(tables, f"the completion of run {run_id}", then)

    def ended(_: asyncio.Task[None]) -> None:
        untie()
        if patience.forget(task):
            then()

    patience.watch(task, late)
    task.add_done_callback(ended)


async def _complete(
    tables: HandleTables, record: HandleRecord, completion: Completion, former: asyncio.Future[None] | None
) -> None:
    if former is not None:
        await asyncio.wait({former}, timeout=tables.limits.completion)
    error = await _tried(record.handle.complete_activation(completion))
    if error is not None:
        await _complete_after(tables, record, completion, error)


async def _complete_after(
    tables: HandleTables, record: HandleRecord, completion: Completion, refusal: BaseException
) -> None:
    """The engine did not take a completion: the task fails, or the handle is broken."""
    error: BaseException | None = refusal
    if not _means_broken(error):
        tables.counters.refused_completions += 1
        logger.error(
            "the completion of run %s was refused (%s); its task fails",
            completion.run_id,
            type(error).__name__,
        )
        error = await _tried(
            record.handle.complete_activation(failed_task(completion.run_id, "the completion was refused"))
        )
    if error is not None:
        logger.error(
            "the completion of run %s could not be sent: %s", completion.run_id, type(error).__name__
        )
        tables.handle_broke(record, error)


def fail_run(tables: HandleTables, record: HandleRecord, run_id: str, reason: str) -> None:
    """Fail an activation that no evaluator will answer any more; an eviction is answered as done."""
    opened = record.runs.open.get(run_id)
    if opened is not None and is_eviction(opened.item):
        send_completion(tables, record, Succeeded(run_id))
        if tables.listener is not None:
            tell(tables.listener.run_evicted, record, run_id)
        return
    tables.counters.forced_failures += 1
    send_completion(tables, record, failed_task(run_id, reason))


def failed_task(run_id: str, reason: str) -> TaskFailed:
    """A task that fails for a reason of ours; the engine tries it again."""
    return TaskFailed(run_id, _failure(reason))


def _failure(reason: str) -> Failure:
    return Failure(reason, ApplicationFailure(type="WorkerShutdown"), source="Hourglass")


# --- activities -------------------------------------------------------------------------------------------


def send_result(
    tables: HandleTables, record: HandleRecord, result: ActivityResult, then: Then = _nothing
) -> None:
    """Close this attempt and report its end."""
    opened = record.attempts.open.pop(result.token)
    here = record.handle.in_process
    if record.drain is not None:
        result = _as_ended_by_drain(record, record.drain, opened.item, result)
    if here is not None:
        try:
            here.answer_activity(result)
        except OURS:
            raise
        except BaseException:
            pass  # asked again by a call that may wait, which tells what became of it
        else:
            if record.drain is not None:
                record.changed.notify_all()
            then()
            return
    _Report(tables, record, opened, result, then).begin()


def _as_ended_by_drain(
    record: HandleRecord, drain: Drain, item: ActivityItem, result: ActivityResult
) -> ActivityResult:
    """The end of a local attempt that the drain stopped: for good, or Core would begin it again on this very handle, and
    again, and never end. What its run is told of that is not evaluated any more.
    """
    if not isinstance(result, AttemptFailed):
        return result
    if asyncio.get_running_loop().time() < drain.deadlines.stop_activities:
        return result
    if not isinstance(item, ActivityTask) or not item.is_local:
        return result
    drain.unfinished.add(item.run_id)
    info = result.failure.info
    if record.handle.in_process is not None or not isinstance(info, ApplicationFailure):
        return result
    final = msgspec.structs.replace(info, non_retryable=True)
    return AttemptFailed(result.token, msgspec.structs.replace(result.failure, info=final))


class _Report:
    """The end of one attempt on its way.

    In an outage an engine can take results and lose them without a word, and repeating one is harmless: what the
    handle has not taken in time goes through the connection as well.
    """

    __slots__ = ("opened", "over", "patience", "record", "result", "tables", "then")

    def __init__(
        self,
        tables: HandleTables,
        record: HandleRecord,
        opened: InFlight[ActivityItem],
        result: ActivityResult,
        then: Then,
    ) -> None:
        self.tables = tables
        self.record = record
        self.opened = opened
        self.result = result
        self.then = then
        self.over = False  # the handle's own call has ended, or is not waited for any more
        self.patience: CallDeadlines | None = None

    def begin(self) -> None:
        record = self.record
        if record.raw is None:
            if record.call(self._call(record.handle.complete_activity(self.result))) is not None:
                self._watch()
            return
        try:
            call = record.raw.send_activity(self.result)
        except OURS:
            raise
        except BaseException as error:
            if record.call(self._call(record.raw.mend_activity(self.result, error))) is not None:
                self._watch()
            return
        record.calls.add(self)
        self._watch()
        call.add_done_callback(self._ended)

    def _watch(self) -> None:
        tables = self.tables
        # One deadline at a time: most ends are taken long before the first.
        if tables.limits.resend < tables.limits.completion:
            self.patience = tables.reporting
            self.patience.watch(self, _Report._late)
        else:
            self.patience = tables.completing
            self.patience.watch(self, _Report._unanswered)

    def _watch_for(self, limit: float, overdue: Callable[[_Report], object]) -> None:
        if self.patience is not None:
            self.patience.forget(self)
        self.patience = self.tables.patience(limit)
        self.patience.watch(self, overdue)

    def _ended(self, call: asyncio.Future[None]) -> None:
        """The raw call has ended."""
        record = self.record
        record.calls.discard(self)
        if not call.cancelled() and (error := call.exception()) is not None and not record.state.over:
            assert record.raw is not None
            record.call(self._call(record.raw.mend_activity(self.result, error)))
        elif not self.over and not call.cancelled() and call.exception() is None:
            self.over = True
            self._through()
        if record.drain is not None:
            record.changed.notify_all()

    def cancel(self) -> None:
        """The handle is left behind: the call itself goes on, and the result is sent again when that takes too long."""
        self.record.calls.discard(self)

    async def _call(self, call: Coroutine[Any, Any, None]) -> None:
        error = await _tried(call)
        if self.over:
            return
        self.over = True
        if error is None:
            self._through()
            return
        logger.warning("the end of an attempt could not be sent: %s", type(error).__name__)
        if _means_broken(error):
            self.tables.handle_broke(self.record, error)
        self._watch_for(self.tables.limits.completion, _Report._unanswered)
        self._resend()

    def _late(self) -> None:
        self.over = True
        limits = self.tables.limits
        if limits.completion > limits.resend:  # else its caller has been told
            self._watch_for(limits.completion - limits.resend, _Report._unanswered)
        self._resend()

    def _resend(self) -> None:
        task = self.opened.item
        is_local = isinstance(task, ActivityTask) and task.is_local
        request = None if is_local else _as_request(self.result)
        if request is None:
            self._through()
            return
        # Sent twice, perhaps: the task token makes the second one harmless, and the first may be lost without a word.
        self.tables.counters.resent += 1
        resending = self.tables.spawn(_send_again(self.tables, self.record, request))
        resending.add_done_callback(lambda _: self._through())

    def _through(self) -> None:
        then, self.then = self.then, _nothing
        if self.patience is not None:
            self.patience.forget(self)
        then()

    def _unanswered(self) -> None:
        then, self.then = self.then, _nothing
        limits = self.tables.limits
        if not self.over and limits.resend > limits.completion:
            self._watch_for(limits.resend - limits.completion, _Report._late)
        _unanswered(self.tables, "the end of an attempt", then)


async def _send_again(tables: HandleTables, record: HandleRecord, request: CompleteActivity) -> None:
    """Send the end of an attempt through whichever connection works, also when its caller waits no more: an attempt without a
    timeout, whose process lives, would be waited for as long as that does.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + tables.limits.resending
    setbacks = 0
    while True:
        try:
            await tables.working_connection(record.connection).call(request)
            return
        except WorkflowNotFoundError:
            return  # it has arrived before, or is no longer waited for
        except Exception as error:
            setbacks += 1
            pause = tables.limits.pause(setbacks)
            if is_hopeless(error) or loop.time() + pause > deadline:
                logger.warning("the end of an attempt could not be sent again: %s", type(error).__name__)
                return
        await sleep(pause)


def _means_broken(error: BaseException | None) -> TypeGuard[BaseException]:
    """Whether a handle that raised this is good for nothing any more; a panic is no Exception."""
    return error is not None and (
        isinstance(error, (HandleBroken, Shutdown)) or not isinstance(error, Exception)
    )


def _as_request(result: ActivityResult) -> CompleteActivity | None:
    match result:
        case ActivityOk():
            return CompleteActivity(token=result.token, result=result.result)
        case AttemptFailed():
            return CompleteActivity(token=result.token, failure=result.failure)
        case AttemptCancelled():
            info = result.failure.info
            details = info.details if isinstance(info, CanceledFailure) else ()
            return CompleteActivity(token=result.token, cancelled=True, cancelled_details=details)
        case ActivityDeferred():
            return None


def fail_attempt(tables: HandleTables, record: HandleRecord, token: bytes, reason: str) -> None:
    """Report an attempt as failed that no executor will end any more, so that the engine tries it again."""
    tables.counters.forced_failures += 1
    send_result(tables, record, AttemptFailed(token, _failure(reason)))


async def _tried(call: Coroutine[Any, Any, None]) -> BaseException | None:
    """What the call raised, panics included; our own cancellation passes through."""
    try:
        await call
    except OURS:
        raise
    except BaseException as error:
        return error
    return None
