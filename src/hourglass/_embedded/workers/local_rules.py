"""Decisions about one local activity: its limits, and whether a failed attempt is tried again. Pure.

Must not know: runs, handles, clocks. These are Core's rules, which differ from a server's for remote activities: names
of errors are compared without regard to case, and a long pause is left to the run, which makes a timer of it.
"""

from __future__ import annotations

from hourglass._embedded.clock import later, to_ns
from hourglass._embedded.rules.activities import backoff
from hourglass._embedded.workers.local_activities import TIMED_OUT
from hourglass._engine.commands import ScheduleLocalActivity
from hourglass._engine.events import RetryRule
from hourglass.converter import ApplicationFailure, Failure, TimeoutFailure
from hourglass.errors import TimeoutType

DEFAULT_THRESHOLD = 60.0
"""Longer pauses than this between two attempts become timers, unless the activity says otherwise."""

HEARTBEAT_FRACTION = 0.8
"""The part of a task's time after which a task that waits for local activities is answered and asked for again."""


def timed_out(kind: TimeoutType) -> Failure:
    """The failure of a local activity that took too long."""
    return Failure(TIMED_OUT, TimeoutFailure(kind))


def limits(command: ScheduleLocalActivity) -> tuple[float, float, float]:
    """Schedule-to-close, schedule-to-start and start-to-close, as Core understands them; 0: no limit."""
    whole = command.schedule_to_close_timeout or 0.0
    wait = command.schedule_to_start_timeout or 0.0
    attempt = command.start_to_close_timeout or 0.0
    if whole:
        wait, attempt = min(wait, whole), min(attempt, whole)
    return whole, wait, attempt


def deadline(
    command: ScheduleLocalActivity, original_ns: int, ready_ns: int, started_ns: int
) -> tuple[int, TimeoutType]:
    """When it times out next, and how; 0: never. `ready_ns` is when the attempt may begin, `started_ns` when it did."""
    whole, wait, attempt = limits(command)
    found = (
        (later(original_ns, to_ns(whole)), TimeoutType.SCHEDULE_TO_CLOSE)
        if whole
        else (0, TimeoutType.UNSPECIFIED)
    )
    narrow = (0, TimeoutType.UNSPECIFIED)
    if started_ns and attempt:
        narrow = (later(started_ns, to_ns(attempt)), TimeoutType.START_TO_CLOSE)
    elif not started_ns and wait:
        narrow = (later(ready_ns, to_ns(wait)), TimeoutType.SCHEDULE_TO_START)
    if not found[0]:
        return narrow
    return narrow if narrow[0] and narrow[0] < found[0] else found


def retry_delay(rule: RetryRule | None, attempt: int, failure: Failure) -> float | None:
    """Seconds until the attempt after this one; None if there is none."""
    rule = rule or RetryRule()
    if rule.maximum_attempts and attempt >= rule.maximum_attempts:
        return None
    info = failure.info if isinstance(failure.info, ApplicationFailure) else None
    if info is not None and info.non_retryable:
        return None
    name = info.type.lower() if info is not None else ""
    if any(name == each.lower() for each in rule.non_retryable_error_types):
        return None
    if info is not None and info.next_retry_delay is not None:
        return info.next_retry_delay
    return backoff(rule, attempt)


def threshold(command: ScheduleLocalActivity) -> float:
    """How long a pause may be without becoming a timer."""
    given = command.local_retry_threshold
    return DEFAULT_THRESHOLD if given is None else given
