"""What the log says of runs and of attempts of activities that do not end well, each told once, where it ran; and what
metrics count of attempts.

An attempt that fails is a WARNING with the time of the next one; the last is an ERROR; one that the engine no longer waits
for is a WARNING, and so is a run that fails. An error that its author called benign is told to DEBUG alone. What is told:
types, ids, messages of exceptions, the author's frames; never arguments, results or details, which are payloads.

Where the logger `hourglass.runs` is at DEBUG when a worker starts, as in `hourglass dev`, runs that begin and end are told,
too: in production that would be two lines for each run.

Whether there is a next attempt is the engine's decision. It is said here by the same rule (`_evaluator.retries`), for only the
worker has the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
)
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
from hourglass.metrics import Registry
from hourglass.metrics._samples import Labels, labels_of

logger = logging.getLogger("hourglass.worker")
runs = logging.getLogger("hourglass.runs")

_DAY = 86_400_000_000_000  # in nanoseconds
_LONGEST_MESSAGE = 1000
_MOST_CAUSES = 5
_NO_MORE = {
    RetryState.NON_RETRYABLE_FAILURE: "it is not to be retried",
    RetryState.MAXIMUM_ATTEMPTS_REACHED: "no attempts are left",
    RetryState.TIMEOUT: "no time is left for another attempt",
    RetryState.CANCEL_REQUESTED: "it was asked to cancel",
}


# --- runs -------------------------------------------------------------------------------------------------------------


_ENDS: dict[type, str] = {
    CompleteRun: "completed",
    CancelRun: "was cancelled",
    ContinueAsNew: "continues as a new run",
}


def tells_of_runs() -> bool:
    """Whether runs that begin and end well are told."""
    return runs.isEnabledFor(logging.DEBUG)


def say_begun(started: RunStarted, run_id: str, queue: str) -> None:
    """A run begins."""
    again = f", attempt {started.attempt}" if started.attempt > 1 else ""
    runs.info(
        "%s %s begins%s",
        started.workflow_type,
        started.workflow_id,
        again,
        extra=_run(started, run_id, queue),
    )


def say_closed(
    started: RunStarted, run_id: str, queue: str, result: object, now_ns: int, hint: str = ""
) -> None:
    """A run has ended, at this time by the engine's clock; `hint` says what its author may have overlooked."""
    took = duration_text(max(now_ns - started.start_time_ns, 0))
    facts = _run(started, run_id, queue)
    named = f"{started.workflow_type} {started.workflow_id}"
    if not isinstance(result, FailRun):
        runs.info("%s %s after %s", named, _ENDS.get(type(result), "ended"), took, extra=facts)
        return
    level = logging.DEBUG if is_benign(result.failure) else logging.WARNING
    told = _step_failed(result.failure) or "\n".join(_chain(result.failure))
    if hint:
        told = f"{told}\n  {hint}"
    *_, first = causes(result.failure)
    runs.log(
        level,
        "%s failed after %s: %s",
        named,
        took,
        told,
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


# --- attempts ---------------------------------------------------------------------------------------------------------


def say_failed(task: ActivityTask, result: AttemptFailed, now_ns: int, cancel_reason: str | None) -> None:
    """An attempt failed at this time, by the engine's clock."""
    failure = result.failure
    ahead = outlook(task, failure, now_ns, cancelled=cancel_reason == "CANCELLED")
    if is_benign(failure):
        level = logging.DEBUG
    else:
        level = logging.ERROR if isinstance(ahead, RetryState) else logging.WARNING
    if logger.isEnabledFor(level):
        facts = {**facts_of(task), "error_type": _type(failure)}
        if not isinstance(ahead, RetryState):
            facts["next_attempt_time"] = datetime.fromtimestamp(ahead / 1e9, UTC).isoformat(
                timespec="milliseconds"
            )
        logger.log(level, "%s", _told(task, failure, ahead, now_ns), extra=facts)


def say_unwanted(task: ActivityTask, reason: str, seconds: float) -> None:
    """The engine does not wait for an attempt any more, which has been running for so long and may go on."""
    if reason == "TIMED_OUT":
        what = f"timed out{_limits(task)}: the engine has given it up"
    else:
        what = "is dropped: the engine does not wait for it any more, because it timed out or its workflow has ended"
    logger.warning(
        "%s %s after %.1f s. It is told to stop; what it still does does not count",
        named(task),
        what,
        seconds,
        extra=facts_of(task),
    )


def named(task: ActivityTask) -> str:
    """An attempt as the subject of a sentence."""
    kind = "local activity" if task.is_local else "activity"
    rule = task.spec.retry_policy
    most = f" of {rule.maximum_attempts}" if rule is not None and rule.maximum_attempts else ""
    where = f" of workflow {task.workflow_id}" if task.workflow_id else ""
    return f"{kind} {task.activity_type}{where} (id {task.activity_id}, attempt {task.attempt}{most})"


def facts_of(task: ActivityTask) -> dict[str, object]:
    """Which attempt a record is about, for logs that programs read."""
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


# --- failures ---------------------------------------------------------------------------------------------------------


def outlook(task: ActivityTask, failure: Failure, now_ns: int, *, cancelled: bool) -> int | RetryState:
    """When the next attempt is due, or why there is none."""
    if cancelled:
        return RetryState.CANCEL_REQUESTED
    rule = task.spec.retry_policy or RetryRule()
    state = retry_state(rule, task.attempt, failure)
    if state is not RetryState.IN_PROGRESS:
        return state
    due = now_ns + round(next_delay(rule, task.attempt, failure) * 1e9)
    whole = task.spec.schedule_to_close_timeout
    if whole and task.scheduled_time_ns and due >= task.scheduled_time_ns + round(whole * 1e9):
        return RetryState.TIMEOUT
    return due


def _told(task: ActivityTask, failure: Failure, ahead: int | RetryState, now_ns: int) -> str:
    if isinstance(ahead, RetryState):
        then = f"failed for good ({_NO_MORE.get(ahead, 'it is not tried again')})"
    else:
        form = "%H:%M:%S" if ahead - now_ns < _DAY else "%Y-%m-%d %H:%M:%S"
        at = datetime.fromtimestamp(ahead / 1e9).strftime(form)
        then = f"failed (tried again in {duration_text(ahead - now_ns)}, at {at})"
    return f"{named(task)} {then}: " + "\n".join(_chain(failure))


def duration_text(ns: int) -> str:
    """A duration as people read it: `0.1 s`, `20 s`, `1:30:00`, `2 days, 0:00:00`."""
    seconds = ns / 1e9
    if 0 < seconds < 0.001:
        return "less than 1 ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else str(timedelta(seconds=round(seconds)))


def _chain(failure: Failure) -> Iterator[str]:
    """The failure and its causes, each with the author's frames."""
    for at, link in enumerate(causes(failure)):
        if at == _MOST_CAUSES:
            yield "caused by more, left out here"
            return
        yield ("caused by " if at else "") + _said(link)
        if link.stack_trace:
            yield authors_frames(link.stack_trace)


def _step_failed(failure: Failure) -> str:
    """A run's failure in one line where a step made it, whose own failure is told with its frames."""
    match failure.info:
        case ActivityFailure(activity_type=name):
            what = f"activity {name}"
        case ChildWorkflowFailure(workflow_type=name, workflow_id=child):
            what = f"child workflow {name} ({child})"
        case _:
            return ""
    *_, first = causes(failure)
    return f"{what} failed: {_said(first)}"


def _said(link: Failure) -> str:
    said = link.message if len(link.message) <= _LONGEST_MESSAGE else link.message[:_LONGEST_MESSAGE] + "…"
    return f"{_type(link)}: {said}" if said else _type(link)


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
    given = [
        f"{name} {limit:g} s"
        for name in ("start_to_close_timeout", "heartbeat_timeout", "schedule_to_close_timeout")
        if (limit := getattr(spec, name))
    ]
    return f" ({', '.join(given)})" if given else ""


# --- metrics ---------------------------------------------------------------------------------------------------------


_OUTCOMES: dict[type[ActivityResult], str] = {
    ActivityOk: "completed",
    AttemptFailed: "failed",
    AttemptCancelled: "cancelled",
    ActivityDeferred: "deferred",
}


class _Series(NamedTuple):
    """The series of one activity type: of its times, and of how its attempts ended; and what is to be recorded in them."""

    plain: Labels
    outcomes: dict[type[ActivityResult], Labels]
    waits: list[float]
    seconds: list[float]
    ends: dict[type[ActivityResult], list[float]]


_BATCH = 256


class ActivityMetrics:
    """Counts the attempts of one queue: how many, how they ended, how long they took and waited.

    Belongs to the control loop. Every step comes by here, so records are made in batches, unless a sink wants to hear of
    each.
    """

    def __init__(self, registry: Registry, namespace: str, task_queue: str) -> None:
        self._registry = registry
        self._common = {"namespace": namespace, "task_queue": task_queue}
        self._known: dict[str, _Series] = {}
        self._executions = registry.metric(
            "hourglass_activity_executions", "counter", "Attempts of activities that have ended, by outcome."
        )
        self._seconds = registry.metric(
            "hourglass_activity_execution_seconds", "histogram", "How long attempts of activities took.", "s"
        )
        self._waits = registry.metric(
            "hourglass_activity_schedule_to_start_seconds",
            "histogram",
            "How long attempts waited in their task queue.",
            "s",
        )

    def began(self, task: ActivityTask) -> None:
        """An attempt begins."""
        since, until = task.current_attempt_scheduled_time_ns or task.scheduled_time_ns, task.started_time_ns
        if since and until and not task.is_local:
            series = self._known.get(task.activity_type) or self._series(task.activity_type)
            waited = (until - since) / 1e9 if until > since else 0.0
            if self._registry.sinks:
                self._waits.record(waited, series.plain)
            else:
                series.waits.append(waited)

    def ended(self, task: ActivityTask, result: ActivityResult, seconds: float) -> None:
        """An attempt has ended, after so long."""
        series = self._known.get(task.activity_type) or self._series(task.activity_type)
        if self._registry.sinks:
            self._executions.record(1, series.outcomes[type(result)])
            self._seconds.record(seconds, series.plain)
            return
        series.ends[type(result)].append(1)
        series.seconds.append(seconds)
        if len(series.seconds) >= _BATCH:
            for metric in (self._waits, self._executions, self._seconds):
                metric.fold()

    def _series(self, activity_type: str) -> _Series:
        plain = {**self._common, "activity_type": activity_type}
        labels = labels_of(plain)
        outcomes = {kind: labels_of({**plain, "outcome": name}) for kind, name in _OUTCOMES.items()}
        if len(self._known) >= self._registry.max_series:
            # Names come from the wire, and the metrics take no more of them either.
            return _Series(labels, outcomes, [], [], {kind: [] for kind in _OUTCOMES})
        found = self._known[activity_type] = _Series(
            labels,
            outcomes,
            self._waits.pending(labels),
            self._seconds.pending(labels),
            {kind: self._executions.pending(each) for kind, each in outcomes.items()},
        )
        return found
