"""Completions on their way to an engine: fenced, in order per run, never cancelled.

Must not know: registrations, callers. A completion that the handle accepts immediately has no further cost. A
completion that takes time is an object with a callback, and all these objects share one timer. Invariants:

- Only an item that is open under the given token is completed. The item is removed from the book and its completion is
  sent in one step.
- The caller is notified once, by `then`: when the handle has accepted the completion, or when the limit has passed.
  After the limit the call itself continues.
- No exception of an engine reaches the caller, which could not handle the exception: the handle is replaced, and the
  result of an attempt is sent through the connection instead.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable
from typing import Any, TypeAlias

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
    CompletionResult,
    HandleBroken,
)
from hourglass._evaluator.commands import Completion, Succeeded, TaskFailed
from hourglass._evaluator.events import Activation, is_eviction
from hourglass._worker.handles.calls import CallDeadlines
from hourglass._worker.handles.handles import (
    Drain,
    HandleRecord,
    HandleTables,
    logger,
    notify,
)
from hourglass._worker.handles.inbox import OURS, InFlight
from hourglass._worker.handles.life import is_hopeless
from hourglass.converter import ApplicationFailure, CanceledFailure, Failure
from hourglass.errors import WorkflowNotFoundError

Then: TypeAlias = Callable[[], object]


def _nothing() -> None:
    return None


def _unanswered(tables: HandleTables, what: str, then: Then) -> None:
    tables.counters.unanswered_completions += 1
    logger.warning("%s was not accepted within %g s", what, tables.limits.completion)
    then()


def _failed_to_send(tables: HandleTables, record: HandleRecord, what: str, error: BaseException) -> None:
    logger.error("%s could not be sent: %s", what, type(error).__name__)
    tables.handle_broke(record, error)


def _error_of(call: asyncio.Future[Any]) -> BaseException | None:
    return HandleBroken("the call was cancelled") if call.cancelled() else call.exception()


def send_completion(
    tables: HandleTables, record: HandleRecord, completion: Completion, then: Then = _nothing
) -> None:
    """Close the run's activation and send its completion, after earlier completions of the same run."""
    run_id = completion.run_id
    entry = record.runs.open.pop(run_id, None)
    earlier = record.tails.get(run_id)
    if earlier is not None:
        earlier.following = PendingCompletion(tables, record, completion, entry, then)
        return
    try:
        outcome = record.handle.complete_workflow_task(completion)
    except OURS:
        raise
    except BaseException as error:
        _failed_to_send(tables, record, f"the completion of run {run_id}", error)
        then()
        return
    if isinstance(outcome, CompletionResult):
        if outcome is not CompletionResult.RECEIVED:
            _note_result(tables, record, run_id, entry, outcome)
        if record.drain is not None:
            record.changed.notify_all()
        then()
    else:
        PendingCompletion(tables, record, completion, entry, then).follow(outcome)


def _note_result(
    tables: HandleTables,
    record: HandleRecord,
    run_id: str,
    entry: InFlight[Activation] | None,
    result: CompletionResult,
) -> None:
    """Count a rejected completion. If the engine no longer knows the run, notify the job, or else the receiver of
    `HandleEvents`, so that the worker drops the run.
    """
    if result is CompletionResult.REJECTED:
        tables.counters.refused_completions += 1
    elif result is CompletionResult.RUN_FORGOTTEN:
        notified = entry is not None and entry.forgotten()
        if not notified:
            notify(tables.events.run_evicted, record, run_id)


class PendingCompletion:
    """The completion of a workflow task that its handle has not accepted yet. The run's next completion waits until
    this one is accepted or overdue.
    """

    __slots__ = ("completion", "deadlines", "entry", "following", "record", "tables", "then")

    def __init__(
        self,
        tables: HandleTables,
        record: HandleRecord,
        completion: Completion,
        entry: InFlight[Activation] | None,
        then: Then,
    ) -> None:
        self.tables = tables
        self.record = record
        self.completion = completion
        self.entry = entry
        self.then = then
        self.following: PendingCompletion | None = None
        """The run's next completion, which is sent once this one is accepted or overdue."""
        self.deadlines = tables.completing
        record.calls.add(self)
        record.tails[completion.run_id] = self
        self.deadlines.watch(self, PendingCompletion._overdue)

    def follow(self, call: asyncio.Future[CompletionResult]) -> None:
        """Wait for the handle's call to end, in a callback."""
        call.add_done_callback(self._ended)

    def send(self) -> None:
        """Send the completion now."""
        try:
            outcome = self.record.handle.complete_workflow_task(self.completion)
        except OURS:
            raise
        except BaseException as error:
            self._finish(error, None)
            return
        if isinstance(outcome, CompletionResult):
            self._finish(None, outcome)
        else:
            self.follow(outcome)

    def _ended(self, call: asyncio.Future[CompletionResult]) -> None:
        error = _error_of(call)
        self._finish(error, call.result() if error is None else None)

    def _finish(self, error: BaseException | None, result: CompletionResult | None) -> None:
        record, run_id = self.record, self.completion.run_id
        record.calls.discard(self)
        is_waited_for = self.deadlines.forget(self)
        if error is not None and not record.state.over:
            _failed_to_send(self.tables, record, f"the completion of run {run_id}", error)
        elif result is not None:
            _note_result(self.tables, record, run_id, self.entry, result)
        self._release()
        if is_waited_for:
            self.then()
        if record.drain is not None:
            record.changed.notify_all()

    def _release(self) -> None:
        """Let the next completion of the run be sent."""
        if self.record.tails.get(self.completion.run_id) is self:
            del self.record.tails[self.completion.run_id]
        following, self.following = self.following, None
        if following is not None:
            following.send()

    def _overdue(self) -> None:
        self._release()
        _unanswered(self.tables, f"the completion of run {self.completion.run_id}", self.then)

    def abandon(self) -> None:
        """Stop waiting for the call, because its handle was abandoned. The call itself continues."""
        self.record.calls.discard(self)
        self.following = None
        if self.record.tails.get(self.completion.run_id) is self:
            del self.record.tails[self.completion.run_id]
        if self.deadlines.forget(self):
            self.then()


def fail_run(tables: HandleTables, record: HandleRecord, run_id: str, reason: str) -> None:
    """Fail an activation that no evaluator will complete. Complete an eviction instead, because evictions cannot fail."""
    entry = record.runs.open.get(run_id)
    if entry is not None and is_eviction(entry.item):
        send_completion(tables, record, Succeeded(run_id))
        notify(tables.events.run_evicted, record, run_id)
        return
    tables.counters.forced_failures += 1
    send_completion(tables, record, TaskFailed(run_id, _failure(reason)))


def _failure(reason: str) -> Failure:
    return Failure(reason, ApplicationFailure(type="WorkerShutdown"), source="Hourglass")


def send_result(
    tables: HandleTables, record: HandleRecord, result: ActivityResult, then: Then = _nothing
) -> None:
    """Close this attempt and report its result."""
    entry = record.attempts.open.pop(result.token)
    if record.drain is not None:
        result = _as_ended_by_drain(record.drain, entry.item, result)
    try:
        outcome = record.handle.complete_activity(result)
    except OURS:
        raise
    except BaseException as error:
        PendingResult(tables, record, entry.item, result, then).fail(error)
        return
    if outcome is None:
        if record.drain is not None:
            record.changed.notify_all()
        then()
    else:
        PendingResult(tables, record, entry.item, result, then).follow(outcome)


def _as_ended_by_drain(drain: Drain, item: ActivityItem, result: ActivityResult) -> ActivityResult:
    """Return the result. If the drain has stopped this local attempt, mark the result so that the attempt is not
    retried here.

    The workflow does not receive a marked result: the workflow task fails, and another handle starts the task again.
    """
    if not isinstance(result, AttemptFailed) or not isinstance(item, ActivityTask) or not item.is_local:
        return result
    if asyncio.get_running_loop().time() < drain.deadlines.stop_activities:
        return result
    drain.unfinished.add(item.run_id)
    return msgspec.structs.replace(result, is_last_here=True)


class PendingResult:
    """The result of an attempt that its handle has not accepted yet.

    During an outage an engine can receive results and lose them silently, and sending a result twice is harmless. A
    result that is not accepted in time is therefore also sent through the connection.
    """

    __slots__ = ("deadlines", "is_settled", "item", "record", "result", "tables", "then")

    def __init__(
        self,
        tables: HandleTables,
        record: HandleRecord,
        item: ActivityItem,
        result: ActivityResult,
        then: Then,
    ) -> None:
        self.tables = tables
        self.record = record
        self.item = item
        self.result = result
        self.then = then
        self.is_settled = False  # the handle's own call has ended, or nobody waits for it any longer
        self.deadlines: CallDeadlines | None = None

    def follow(self, call: asyncio.Future[None]) -> None:
        """Wait for the handle's call to end, in a callback."""
        self.record.calls.add(self)
        # One deadline at a time: most results are accepted long before the first.
        self.deadlines = self.tables.reporting
        self.deadlines.watch(self, PendingResult._overdue)
        call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Future[None]) -> None:
        record = self.record
        record.calls.discard(self)
        error = _error_of(call)
        if not self.is_settled and not (error is not None and record.state.over):
            if error is not None:
                self.fail(error)
            else:
                self.is_settled = True
                self._finish()
        if record.drain is not None:
            record.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Replace the handle, which has not accepted the result, and send the result through the connection."""
        self.is_settled = True
        _failed_to_send(self.tables, self.record, "the result of an attempt", error)
        self._watch_for(self.tables.limits.completion, PendingResult._unanswered)
        self._resend()

    def abandon(self) -> None:
        """Detach this result from the abandoned handle. The result is still sent again if the handle's call takes too
        long.
        """
        self.record.calls.discard(self)

    def _watch_for(self, limit: float, overdue: Callable[[PendingResult], object]) -> None:
        if self.deadlines is not None:
            self.deadlines.forget(self)
        self.deadlines = self.tables.patience(limit)
        self.deadlines.watch(self, overdue)

    def _overdue(self) -> None:
        self.is_settled = True
        limits = self.tables.limits
        self._watch_for(limits.completion - limits.resend, PendingResult._unanswered)
        self._resend()

    def _resend(self) -> None:
        is_local = isinstance(self.item, ActivityTask) and self.item.is_local
        request = None if is_local else completion_request(self.result)
        if request is None:
            self._finish()
            return
        # The result may be sent twice. The task token makes the second call harmless, and the first one may have been
        # lost silently.
        self.tables.counters.resent += 1
        resending = self.tables.spawn(_send_again(self.tables, self.record, request))
        resending.add_done_callback(lambda _: self._finish())

    def _finish(self) -> None:
        then, self.then = self.then, _nothing
        if self.deadlines is not None:
            self.deadlines.forget(self)
        then()

    def _unanswered(self) -> None:
        then, self.then = self.then, _nothing
        _unanswered(self.tables, "the result of an attempt", then)


async def _send_again(tables: HandleTables, record: HandleRecord, request: CompleteActivity) -> None:
    """Send the result of an attempt through any working connection, even if its caller no longer waits.

    Otherwise the engine would wait for an attempt that has no timeout until the engine's process ends.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + tables.limits.resending
    setbacks = 0
    while True:
        try:
            await tables.working_connection(record.connection).call(request)
            return
        except WorkflowNotFoundError:
            return  # the result arrived earlier, or nobody waits for it any longer
        except Exception as error:
            setbacks += 1
            pause = tables.limits.pause(setbacks)
            if is_hopeless(error) or loop.time() + pause > deadline:
                logger.warning("the result of an attempt could not be sent again: %s", type(error).__name__)
                return
        await sleep(pause)


def completion_request(result: ActivityResult) -> CompleteActivity | None:
    """Return the client request that reports a result; None if a client will complete the activity."""
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
    """Report an attempt that no executor will complete as failed, so that the engine retries the activity."""
    tables.counters.forced_failures += 1
    send_result(tables, record, AttemptFailed(token, _failure(reason)))
