"""The options of an activity, validated and converted to `CallSettings`.

There are two kinds of heartbeats. Without a `heartbeat_timeout` from the author, heartbeats are automatic: the timeout is
exactly `LIVENESS_TIMEOUT`, and the worker sends heartbeats for the attempt as long as the worker's process lives. A timeout
set by the author is a promise of progress: only calls of `activity.heartbeat` count. The worker distinguishes the two kinds
by the timeout alone, so an author's timeout of exactly that length is increased by a millisecond. None disables heartbeats;
use it for activities that are completed from outside, or run by a worker of another SDK.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from hourglass._evaluator.event_groups import EventGroup, check_groups
from hourglass._evaluator.options import (
    CallSettings,
    Duration,
    RetryPolicy,
    check_text,
    fairness_key,
    fairness_weight,
    optional_seconds,
    priority,
    retry_rule,
)
from hourglass._evaluator.specs import ActivityCancellationType, ActivitySpec
from hourglass.errors import UsageError

LIVENESS_TIMEOUT = 30.0
_DISTINCT = 0.001


class KeptOptions(TypedDict, total=False):
    """The options of an activity that the engine stores, and that can be changed while the activity is open."""

    task_queue: str
    schedule_to_close_timeout: Duration | None
    schedule_to_start_timeout: Duration | None
    start_to_close_timeout: Duration | None
    heartbeat_timeout: Duration | None
    retry_policy: RetryPolicy | None
    priority_key: int
    fairness_key: str
    fairness_weight: float


class ActivityOptions(KeptOptions, total=False):
    """The options of an activity, or of a single call. A duration is a `timedelta` or a number of seconds."""

    cancellation_type: ActivityCancellationType
    activity_id: str
    summary: str
    event_groups: Sequence[EventGroup] | None
    local_retry_threshold: Duration | None
    disable_eager_execution: bool


DEFAULTS = CallSettings(spec=ActivitySpec(start_to_close_timeout=600.0, heartbeat_timeout=LIVENESS_TIMEOUT))
"""The defaults of a decorated activity: ten minutes per attempt, Temporal's default retry policy, automatic heartbeats."""

FOREIGN_DEFAULTS = CallSettings(spec=ActivitySpec(start_to_close_timeout=600.0))
"""The defaults of an activity that is known by name only. It has no automatic heartbeats, because another SDK may run it."""


def settings_with(base: CallSettings, options: Mapping[str, Any], where: str) -> CallSettings:
    """Return the settings with these options applied. `where` names the activity in messages."""
    if not options:
        return base
    spec_changes: dict[str, Any] = {}
    call_options: dict[str, Any] = {}
    for name, value in options.items():
        check = _CHECKS.get(name)
        if check is None:
            raise UsageError(_unknown(name, where))
        (call_options if name in _CALL_OPTIONS else spec_changes)[name] = check(value, f"{name} of {where}")
    spec = msgspec.structs.replace(base.spec, **spec_changes)
    if not spec.start_to_close_timeout and not spec.schedule_to_close_timeout:
        raise UsageError(f"{where} needs a start_to_close_timeout or a schedule_to_close_timeout")
    return msgspec.structs.replace(base, spec=spec, **call_options)


_SUGGESTIONS = {
    "timeout": "start_to_close_timeout",
    "queue": "task_queue",
    **dict.fromkeys(
        ("retries", "retry", "max_retries", "attempts"), "retry_policy=RetryPolicy(maximum_attempts=…)"
    ),
}


def _unknown(name: str, where: str) -> str:
    suggestions = (
        [_SUGGESTIONS[name]] if name in _SUGGESTIONS else difflib.get_close_matches(name, _CHECKS, n=1)
    )
    hint = (
        f"; did you mean {suggestions[0]}?"
        if suggestions
        else f"; known options: {', '.join(sorted(_CHECKS))}"
    )
    return f"{where} has no option {name!r}{hint}"


def _duration(value: Any, what: str) -> float:
    """Return a duration in seconds, or 0 for None. Raise `UsageError` for a duration of 0."""
    checked = optional_seconds(value, what)
    if checked == 0:
        raise UsageError(f"{what} must be more than 0; None means no limit")
    return checked or 0.0


def _heartbeat(value: Any, what: str) -> float:
    checked = _duration(value, what)
    return LIVENESS_TIMEOUT + _DISTINCT if checked == LIVENESS_TIMEOUT else checked


def _instance(kind: type) -> Callable[[Any, str], Any]:
    def check(value: Any, what: str) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise UsageError(f"{what} must be of type {kind.__name__}, not {type(value).__name__}")
        return value

    return check


_CALL_OPTIONS = frozenset({"activity_id", "event_groups", "summary"})
"""Options of a single call; all others are fields of the activity's spec with the same names."""

_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "task_queue": check_text,
    "schedule_to_close_timeout": _duration,
    "schedule_to_start_timeout": _duration,
    "start_to_close_timeout": _duration,
    "heartbeat_timeout": _heartbeat,
    "retry_policy": retry_rule,
    "cancellation_type": _instance(ActivityCancellationType),
    "activity_id": check_text,
    "summary": check_text,
    "event_groups": check_groups,
    "local_retry_threshold": _duration,
    "disable_eager_execution": _instance(bool),
    "priority_key": priority,
    "fairness_key": fairness_key,
    "fairness_weight": fairness_weight,
}
