"""Log messages about runs and activity attempts that fail, time out or are dropped. Each is logged once, in the
process that executed it.

A failed attempt is logged as a WARNING with the time of the next attempt. If there is no next attempt, it is an
ERROR. An attempt for which the engine no longer waits is a WARNING, and so is a failed run. An error that the
author marked as benign is logged at DEBUG. The messages contain types, ids, messages of exceptions and the
author's frames. They never contain arguments, results or details, which are payloads.

If the logger `hourglass.runs` is at DEBUG when a worker starts, as in `hourglass dev`, the start and end of
every run are also logged. In production, this would be two lines per run.

The engine decides whether there is a next attempt. This module applies the same rule (`_evaluator.retries`),
because only the worker writes the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from hourglass._contract.handle import ActivityTask, AttemptFailed
from hourglass._evaluator.commands import CancelRun, CompleteRun, ContinueAsNew, FailRun
from hourglass._evaluator.events import RunStarted
from hourglass._evaluator.retries import next_delay, retry_state
from hourglass._evaluator.specs import RetryRule
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    TerminatedFailure,
    TimeoutFailure,
)
from hourglass.converter._data import causes, is_benign
from hourglass.converter._stacks import authors_frames
from hourglass.errors import RetryState

logger = logging.getLogger("hourglass.worker")
runs = logging.getLogger("hourglass.runs")

_DAY = 86_400_000_000_000  # in nanoseconds
_LONGEST_MESSAGE = 1000
_MOST_CAUSES = 5
_NO_MORE = {
    RetryState.NON_RETRYABLE_FAILURE: "the error is non-retryable",
    RetryState.MAXIMUM_ATTEMPTS_REACHED: "no attempts are left",
    RetryState.TIMEOUT: "no time is left for another attempt",
    RetryState.CANCEL_REQUESTED: "its cancellation was requested",
}


_ENDS: dict[type, str] = {
    CompleteRun: "completed",
    CancelRun: "was cancelled",
    ContinueAsNew: "continues as a new run",
}


def logs_runs() -> bool:
    """Whether the start and successful end of runs are logged."""
    return runs.isEnabledFor(logging.DEBUG)


def log_begun(started: RunStarted, run_id: str, queue: str) -> None:
    again = f", attempt {started.attempt}" if started.attempt > 1 else ""
    runs.info(
        "%s %s starts%s",
        started.workflow_type,
        started.workflow_id,
        again,
        extra=_run(started, run_id, queue),
    )


def log_closed(
    started: RunStarted, run_id: str, queue: str, result: object, now_ns: int, hint: str = ""
) -> None:
    """Log the end of a run. `now_ns` is the time of the engine's clock. `hint` is advice for the author."""
    took = duration_text(max(now_ns - started.start_time_ns, 0))
    facts = _run(started, run_id, queue)
    name = f"{started.workflow_type} {started.workflow_id}"
    if not isinstance(result, FailRun):
        runs.info("%s %s after %s", name, _ENDS.get(type(result), "ended"), took, extra=facts)
        return
    level = logging.DEBUG if is_benign(result.failure) else logging.WARNING
    text = _step_failed(result.failure) or "\n".join(_chain(result.failure))
    if hint:
        text = f"{text}\n  {hint}"
    *_, first = causes(result.failure)
    runs.log(
        level,
        "%s failed after %s: %s",
        name,
        took,
        text,
        extra={**facts, "error_type": _type(first)},
    )


def _run(started: RunStarted, run_id: str, queue: str) -> dict[str, object]:
    return {
        "task_queue": queue,
        "workflow_id": started.workflow_id,
        "run_id": run_id,
        "workflow_type": started.workflow_type,
        "attempt": started.attempt,
    }


def log_failed(task: ActivityTask, result: AttemptFailed, now_ns: int, cancel_reason: str | None) -> None:
    """Log a failed attempt. `now_ns` is the time of the engine's clock."""
    failure = result.failure
    next_attempt = retry_after(task, failure, now_ns, cancelled=cancel_reason == "CANCELLED")
    if is_benign(failure):
        level = logging.DEBUG
    else:
        level = logging.ERROR if isinstance(next_attempt, RetryState) else logging.WARNING
    if logger.isEnabledFor(level):
        facts = {**facts_of(task), "error_type": _type(failure)}
        if not isinstance(next_attempt, RetryState):
            facts["next_attempt_time"] = datetime.fromtimestamp(next_attempt / 1e9, UTC).isoformat(
                timespec="milliseconds"
            )
        logger.log(level, "%s", _failure_text(task, failure, next_attempt, now_ns), extra=facts)


def log_unwanted(task: ActivityTask, reason: str, seconds: float) -> None:
    """Log that the engine no longer waits for an attempt, which has run for `seconds` and may still be running."""
    if reason == "TIMED_OUT":
        what = f"timed out{_limits(task)}; the engine no longer waits for it"
    else:
        what = "is abandoned: it timed out, or its workflow has ended"
    logger.warning(
        "%s %s after %.1f s. Its cancellation was requested, and its result will be ignored",
        named(task),
        what,
        seconds,
        extra=facts_of(task),
    )


def named(task: ActivityTask) -> str:
    """Return a description of an attempt, for use as the subject of a sentence."""
    kind = "local activity" if task.is_local else "activity"
    rule = task.spec.retry_policy
    most = f" of {rule.maximum_attempts}" if rule is not None and rule.maximum_attempts else ""
    where = f" of workflow {task.workflow_id}" if task.workflow_id else ""
    return f"{kind} {task.activity_type}{where} (id {task.activity_id}, attempt {task.attempt}{most})"


def facts_of(task: ActivityTask) -> dict[str, object]:
    """Return the attempt's identity for log records."""
    return {
        "namespace": task.namespace,
        "task_queue": task.spec.task_queue,
        "workflow_id": task.workflow_id,
        "run_id": task.run_id,
        "workflow_type": task.workflow_type,
        "activity_type": task.activity_type,
        "activity_id": task.activity_id,
        "attempt": task.attempt,
    }


def retry_after(task: ActivityTask, failure: Failure, now_ns: int, *, cancelled: bool) -> int | RetryState:
    """Return the time of the next attempt, or the reason why there is none."""
    if cancelled:
        return RetryState.CANCEL_REQUESTED
    rule = task.spec.retry_policy or RetryRule()
    state = retry_state(rule, task.attempt, failure)
    if state is not RetryState.IN_PROGRESS:
        return state
    due = now_ns + round(next_delay(rule, task.attempt, failure) * 1e9)
    timeout = task.spec.schedule_to_close_timeout
    if timeout and task.scheduled_time_ns and due >= task.scheduled_time_ns + round(timeout * 1e9):
        return RetryState.TIMEOUT
    return due


def _failure_text(task: ActivityTask, failure: Failure, next_attempt: int | RetryState, now_ns: int) -> str:
    if isinstance(next_attempt, RetryState):
        outcome = f"failed permanently ({_NO_MORE.get(next_attempt, 'it is not retried')})"
    else:
        form = "%H:%M:%S" if next_attempt - now_ns < _DAY else "%Y-%m-%d %H:%M:%S"
        at = datetime.fromtimestamp(next_attempt / 1e9).strftime(form)
        outcome = f"failed (retried in {duration_text(next_attempt - now_ns)}, at {at})"
    return f"{named(task)} {outcome}: " + "\n".join(_chain(failure))


def duration_text(ns: int) -> str:
    """Return a duration for people: `0.1 s`, `20 s`, `1:30:00`, `2 days, 0:00:00`."""
    seconds = ns / 1e9
    if 0 < seconds < 0.001:
        return "less than 1 ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else str(timedelta(seconds=round(seconds)))


def _chain(failure: Failure) -> Iterator[str]:
    """Yield the failure and its causes, each with the author's frames."""
    for depth, link in enumerate(causes(failure)):
        if depth == _MOST_CAUSES:
            yield "caused by further errors, which are not shown"
            return
        yield ("caused by " if depth else "") + _message_of(link)
        if link.stack_trace:
            yield authors_frames(link.stack_trace)


def _step_failed(failure: Failure) -> str:
    """Return a one-line description of a run's failure if an activity or child workflow caused it, or else "".
    The cause's own failure is logged with its frames.
    """
    match failure.info:
        case ActivityFailure(activity_type=name):
            what = f"activity {name}"
        case ChildWorkflowFailure(workflow_type=name, workflow_id=child):
            what = f"child workflow {name} ({child})"
        case _:
            return ""
    *_, first = causes(failure)
    return f"{what} failed: {_message_of(first)}"


def _message_of(link: Failure) -> str:
    message = link.message if len(link.message) <= _LONGEST_MESSAGE else link.message[:_LONGEST_MESSAGE] + "…"
    return f"{_type(link)}: {message}" if message else _type(link)


def _type(failure: Failure) -> str:
    info = failure.info
    if isinstance(info, ApplicationFailure):
        return info.type or "ApplicationError"
    return _KINDS.get(type(info), "failed")


_KINDS: dict[type, str] = {
    TimeoutFailure: "timed out",
    CanceledFailure: "cancelled",
    TerminatedFailure: "terminated",
}


def _limits(task: ActivityTask) -> str:
    spec = task.spec
    timeouts = [
        f"{name} {limit:g} s"
        for name in ("start_to_close_timeout", "heartbeat_timeout", "schedule_to_close_timeout")
        if (limit := getattr(spec, name))
    ]
    return f" ({', '.join(timeouts)})" if timeouts else ""
