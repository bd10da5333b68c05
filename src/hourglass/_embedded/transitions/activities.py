"""Decisions about one activity: its deadlines, the retry of a failed attempt, its outcome. Pure.

Must not know: other parts of the run, handles, clocks. Messages, retry states and the precedence of timeouts are those
of a Temporal server (recorded from version 1.32).
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from hourglass._embedded.clock import later, to_ns
from hourglass._embedded.transitions.run import JUST_BEFORE, OpenActivity
from hourglass._evaluator.commands import ScheduleActivity
from hourglass._evaluator.retries import complete_retry, next_delay, retry_state
from hourglass._evaluator.specs import ActivitySpec, Payloads, RetryRule
from hourglass._history import events as h
from hourglass.converter import Failure, Payload, TimeoutFailure
from hourglass.errors import RetryState, TimeoutType

NO_TIME_LEFT = (
    "Not enough time to schedule next retry before activity ScheduleToClose timeout, giving up retrying"
)
NOT_STARTED = Payload(b'"ACTIVITY_ID_NOT_STARTED"', "json/plain")


def plan(
    command: ScheduleActivity, task_queue: str, run_timeout: float, task_completed_event_id: int
) -> h.ActivityTaskScheduled:
    """Return the event of a `ScheduleActivity` command, with timeouts and retry policy filled in as a server does."""
    complete = (
        _complete if run_timeout else _complete_once
    )  # not cached: a run's remaining time differs for each activity
    spec = complete(command.spec, task_queue, run_timeout)
    return h.ActivityTaskScheduled(
        command.activity_id,
        command.activity_type,
        spec,
        task_completed_event_id,
        command.arguments,
        command.headers,
        command.summary,
    )


def _complete(spec: ActivitySpec, task_queue: str, run_timeout: float) -> ActivitySpec:
    overall = spec.schedule_to_close_timeout or run_timeout
    if run_timeout:
        overall = min(overall, run_timeout)
    wait = spec.schedule_to_start_timeout or overall
    attempt = spec.start_to_close_timeout or overall
    attempt = min(attempt, overall) if overall else attempt
    beat = spec.heartbeat_timeout
    return msgspec.structs.replace(
        spec,
        task_queue=spec.task_queue or task_queue,
        schedule_to_close_timeout=overall,
        schedule_to_start_timeout=min(wait, overall) if overall else wait,
        start_to_close_timeout=attempt,
        heartbeat_timeout=min(beat, attempt) if attempt else beat,
        retry_policy=_USUAL_RETRY if spec.retry_policy is None else complete_retry(spec.retry_policy),
    )


_complete_once = lru_cache(maxsize=1024)(_complete)
"""All calls of an activity share one spec, so the spec with defaults is cached and shared, too."""


_USUAL_RETRY = complete_retry(RetryRule())


def retry_rule(activity: OpenActivity) -> RetryRule:
    """Return the retry policy of an activity, or the default policy."""
    return activity.spec.retry_policy or _USUAL_RETRY


def next_attempt(activity: OpenActivity, failure: Failure, now_ns: int) -> OpenActivity | RetryState:
    """Return the activity with its next attempt pending, or the reason why it is not retried."""
    if activity.cancel_requested_event_id:
        return RetryState.CANCEL_REQUESTED
    rule = retry_rule(activity)
    state = retry_state(rule, activity.tries, failure)
    if state is not RetryState.IN_PROGRESS:
        return state
    delay = next_delay(rule, activity.tries, failure) if activity.tries else 0.0
    available = later(now_ns, to_ns(delay))
    overall = activity.spec.schedule_to_close_timeout
    if overall and available >= later(activity.scheduled_ns, to_ns(overall)):
        return RetryState.TIMEOUT
    return msgspec.structs.replace(
        activity,
        attempt=activity.attempt + 1,
        available_ns=available,
        started_ns=0,
        heartbeat_ns=0,
        deferred=False,
        last_failure=failure,
    )


def deadline(activity: OpenActivity) -> tuple[int, TimeoutType]:
    """Return the next deadline of an activity and the timeout that sets it. If several timeouts expire at the same time,
    the narrowest wins. A deadline of 0 means never.
    """
    spec = activity.spec
    when, kind = 0, TimeoutType.UNSPECIFIED
    if not activity.started_ns:
        if spec.schedule_to_start_timeout:
            when = later(activity.available_ns, to_ns(spec.schedule_to_start_timeout))
            kind = TimeoutType.SCHEDULE_TO_START
    else:
        if spec.start_to_close_timeout:
            when = later(activity.started_ns, to_ns(spec.start_to_close_timeout))
            kind = TimeoutType.START_TO_CLOSE
        if spec.heartbeat_timeout:
            silent = later(activity.heartbeat_ns or activity.started_ns, to_ns(spec.heartbeat_timeout))
            if not when or silent < when:
                when, kind = silent, TimeoutType.HEARTBEAT
    if spec.schedule_to_close_timeout:
        overall = later(activity.scheduled_ns, to_ns(spec.schedule_to_close_timeout))
        if not when or overall < when:
            when, kind = overall, TimeoutType.SCHEDULE_TO_CLOSE
    return when, kind


@lru_cache(maxsize=1024)
def narrowest_timeout(spec: ActivitySpec) -> float:
    """Return the shortest timeout that applies while a worker has an attempt, or 0 if there is none."""
    limits = (spec.start_to_close_timeout, spec.heartbeat_timeout, spec.schedule_to_close_timeout)
    return min([limit for limit in limits if limit], default=0.0)


def put_off(activity: OpenActivity, withheld_ns: int) -> OpenActivity:
    """Return the activity with its timeouts extended by `withheld_ns`, the time during which the engine could not assign
    the activity to a worker.
    """
    return msgspec.structs.replace(
        activity,
        scheduled_ns=activity.scheduled_ns + withheld_ns,
        available_ns=activity.available_ns + withheld_ns,
    )


def timeout_failure(activity: OpenActivity, kind: TimeoutType) -> Failure:
    """Return the failure for a timeout, with the message that a server uses."""
    outright = kind is TimeoutType.SCHEDULE_TO_CLOSE  # a server has its own message for this timeout
    message = NO_TIME_LEFT if outright else f"activity {h.TIMEOUT_NAMES[kind]} timeout"
    return Failure(message, TimeoutFailure(kind, activity.heartbeat_details), source="Server")


def without_details(failure: Failure) -> Failure:
    """Return a timeout failure without its heartbeat details. The next attempt receives the details separately."""
    if not isinstance(failure.info, TimeoutFailure):
        return failure
    return msgspec.structs.replace(failure, info=TimeoutFailure(failure.info.type))


LOST = "activity Heartbeat timeout: the worker process of this attempt has ended or does not respond"


def lost_failure(activity: OpenActivity) -> Failure:
    """Return the failure of an attempt whose process has ended. A heartbeat timeout would report the same failure later."""
    return Failure(
        LOST,
        TimeoutFailure(TimeoutType.HEARTBEAT, activity.heartbeat_details),
        source="Server",
    )


def completed(
    activity: OpenActivity, result: Payload | None, identity: str
) -> tuple[h.Attributes, h.Attributes]:
    """Return the events of an activity that has completed with a result."""
    return (
        _started(activity),
        h.ActivityTaskCompleted(
            scheduled_event_id=activity.scheduled_event_id,
            started_event_id=JUST_BEFORE,
            result=result,
            identity=identity,
        ),
    )


def failed(
    activity: OpenActivity, failure: Failure, state: RetryState, identity: str
) -> tuple[h.Attributes, ...]:
    """Return the events of an activity that has failed and will not be retried."""
    return (
        _started(activity),
        h.ActivityTaskFailed(
            scheduled_event_id=activity.scheduled_event_id,
            started_event_id=JUST_BEFORE,
            failure=failure,
            retry_state=state,
            identity=identity,
        ),
    )


def timed_out(activity: OpenActivity, failure: Failure, state: RetryState) -> tuple[h.Attributes, ...]:
    """Return the events of an activity that has timed out and is not retried. The previous attempt's failure becomes the
    cause.
    """
    started = activity.started_ns != 0
    if state is RetryState.TIMEOUT and started and _is_retryable_timeout(failure):
        failure = Failure(
            NO_TIME_LEFT,
            TimeoutFailure(TimeoutType.SCHEDULE_TO_CLOSE, activity.heartbeat_details),
            source="Server",
        )
    end = h.ActivityTaskTimedOut(
        scheduled_event_id=activity.scheduled_event_id,
        started_event_id=JUST_BEFORE if started else 0,
        failure=msgspec.structs.replace(failure, cause=activity.last_failure),
        retry_state=state,
    )
    return (_started(activity), end) if started else (end,)


def canceled(activity: OpenActivity, details: Payloads, identity: str) -> tuple[h.Attributes, ...]:
    """Return the events of an activity that was cancelled by its worker, or before it was started."""
    started = activity.started_ns != 0
    end = h.ActivityTaskCanceled(
        scheduled_event_id=activity.scheduled_event_id,
        started_event_id=JUST_BEFORE if started else 0,
        cancel_requested_event_id=activity.cancel_requested_event_id,
        details=details if started else (NOT_STARTED,),
        identity=identity,
    )
    return (_started(activity), end) if started else (end,)


def _is_retryable_timeout(failure: Failure) -> bool:
    return isinstance(failure.info, TimeoutFailure) and failure.info.type in (
        TimeoutType.START_TO_CLOSE,
        TimeoutType.HEARTBEAT,
    )


def _started(activity: OpenActivity) -> h.ActivityTaskStarted:
    return h.ActivityTaskStarted(
        scheduled_event_id=activity.scheduled_event_id,
        attempt=activity.attempt - activity.earlier or 1,
        identity=activity.identity,
        last_failure=activity.last_failure,
        began_ns=max(activity.started_ns, activity.after_ns),
    )
