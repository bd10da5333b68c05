"""Options that authors give: durations and retry policies, checked where they are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import msgspec

from hourglass._engine.commands import ActivityCancellationType
from hourglass._engine.events import RetryRule
from hourglass.errors import UsageError

Duration: TypeAlias = timedelta | float
"""A `timedelta`, or a number of seconds."""

# Temporal's servers keep durations in 64-bit nanoseconds: 292 years.
_LONGEST = 292 * 365 * 86400.0


def seconds(duration: Duration, what: str = "a duration") -> float:
    """A duration as seconds; refuses what is negative, not finite, absurdly long or no duration at all."""
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        value = float(duration)
    else:
        raise UsageError(f"{what} must be a timedelta or a number of seconds, not {type(duration).__name__}")
    if not math.isfinite(value) or value < 0 or value > _LONGEST:
        raise UsageError(f"{what} must be between 0 and 292 years, not {duration!r}")
    return value


def optional_seconds(duration: Duration | None, what: str) -> float | None:
    """Like `seconds`; None stays None."""
    return None if duration is None else seconds(duration, what)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How a failed activity or workflow is tried again. The defaults are Temporal's: for ever, 1 s, doubling."""

    initial_interval: Duration = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval: Duration | None = None
    maximum_attempts: int = 0
    non_retryable_error_types: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.rule()

    def rule(self) -> RetryRule:
        """The policy as checked data."""
        first = seconds(self.initial_interval, "initial_interval")
        longest = 0.0 if self.maximum_interval is None else seconds(self.maximum_interval, "maximum_interval")
        if first <= 0:
            raise UsageError("initial_interval must be more than 0")
        if self.maximum_interval is not None and longest < first:
            raise UsageError(
                f"maximum_interval ({longest:g} s) is shorter than initial_interval ({first:g} s)"
            )
        if self.backoff_coefficient < 1:
            raise UsageError(f"backoff_coefficient must be at least 1, not {self.backoff_coefficient}")
        if self.maximum_attempts < 0:
            raise UsageError(f"maximum_attempts must not be negative, not {self.maximum_attempts}")
        if isinstance(self.non_retryable_error_types, str):
            raise UsageError("non_retryable_error_types must be a list of names, not one string")
        return RetryRule(
            initial_interval=first,
            backoff_coefficient=float(self.backoff_coefficient),
            maximum_interval=longest,
            maximum_attempts=self.maximum_attempts,
            non_retryable_error_types=tuple(self.non_retryable_error_types),
        )


def policy_from(rule: RetryRule | None) -> RetryPolicy | None:
    """A rule as authors see it; what an engine left unset has Temporal's default."""
    if rule is None:
        return None
    return RetryPolicy(
        initial_interval=rule.initial_interval or 1.0,
        backoff_coefficient=rule.backoff_coefficient or 2.0,
        maximum_interval=rule.maximum_interval or None,
        maximum_attempts=rule.maximum_attempts,
        non_retryable_error_types=rule.non_retryable_error_types,
    )


class ActivitySettings(msgspec.Struct, frozen=True, kw_only=True):
    """An activity's options as checked data: what one durable call is scheduled with. Durations are seconds."""

    activity_id: str = ""
    task_queue: str = ""
    schedule_to_close_timeout: float | None = None
    schedule_to_start_timeout: float | None = None
    start_to_close_timeout: float | None = None
    heartbeat_timeout: float | None = None
    local_retry_threshold: float | None = None
    retry_policy: RetryRule | None = None
    cancellation_type: ActivityCancellationType = ActivityCancellationType.TRY_CANCEL
    summary: str = ""
    priority_key: int = 0
    disable_eager_execution: bool = False
